"""How much of a rank's memory a task needs, by its key: a layout that does not fit is never planned."""

from __future__ import annotations

from epe.planning.fitting import CostKey, Lines


class Memory:
    """The peaks that ranks reported. `limit_bytes` is what a rank may use (None: nobody knows, and all fits),
    `resident_bytes` what its model takes while it idles."""

    def __init__(self, *, limit_bytes: int | None = None, resident_bytes: int = 0) -> None:
        self.limit_bytes = limit_bytes
        self.resident_bytes = resident_bytes
        self.peaks: dict[CostKey, int] = {}
        self._lines = Lines()

    def enter(self, key: CostKey, peak_bytes: int) -> None:
        """Take the peak of a task, model included; the largest of each key counts."""
        if peak_bytes > self.peaks.get(key, 0):
            self.peaks[key] = peak_bytes
            self._lines.enter(key, max(1, peak_bytes - self.resident_bytes))

    def predicted_bytes(self, key: CostKey) -> int | None:
        """The peak of a task, model included: measured, or fitted from what its activations take at other sizes
        and widths; None where no task of its kind was measured."""
        fit = self._lines.fit(key)
        return None if fit is None else self.peaks.get(key) or self.resident_bytes + int(fit.seconds)

    def fits(self, key: CostKey, *, beside_bytes: int = 0) -> bool:
        """Whether a rank has the memory for a task and for so many bytes beside it, as far as is known."""
        if self.limit_bytes is None:
            return True
        predicted = self.predicted_bytes(key)
        if predicted is None:
            return beside_bytes == 0 or self.resident_bytes + beside_bytes <= self.limit_bytes
        return predicted + beside_bytes <= self.limit_bytes
