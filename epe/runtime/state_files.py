"""States of requests on disk, as safetensors, believed only by a service that draws as their writer did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from epe.jobs.files import remove_others, write_lasting
from epe.messages import Checkpoint, StateHeader
from epe.telemetry.log import get_logger
from epe.transport.link import Parcel

log = get_logger("jobs")


class StateFiles:
    """One folder. `drawn_by` names all that the bits of a state depend on; it is set once all ranks are there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.drawn_by = ""

    def write(self, header: StateHeader, tensors: Mapping[str, Any]) -> None:
        """Write the whole state of a request. Raises `OSError`."""
        metadata = {"header": msgspec.json.encode(header).decode(), "drawn_by": self.drawn_by}
        plain = {name: torch.as_tensor(tensor).contiguous() for name, tensor in tensors.items()}
        write_lasting(self._path(header.request_id), save(plain, metadata))

    def read(self, request_id: str) -> Parcel | None:
        """The state of a request, as of before all leases of this service; None where none fits."""
        path = self._path(request_id)
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata()
                if metadata["drawn_by"] != self.drawn_by:
                    log.info("state.was_of_another", request=request_id, drawn_by=metadata["drawn_by"])
                    return None
                header = msgspec.json.decode(metadata["header"], type=StateHeader)
                tensors = tuple(file.get_tensor(name) for name in header.names)
        except (SafetensorError, msgspec.DecodeError, KeyError) as error:
            log.warning("state.unreadable", request=request_id, reason=str(error))
            return None
        return Parcel(Checkpoint(seq=0, header=header), tensors)

    def remove(self, request_id: str) -> None:
        self._path(request_id).unlink(missing_ok=True)

    def remove_others(self, request_ids: Iterable[str]) -> None:
        """Remove the states of all other requests."""
        remove_others(self.folder, {self._path(request_id).name for request_id in request_ids})

    def _path(self, request_id: str) -> Path:
        return self.folder / request_id
