"""Compiled functions, with a compiler that leaves operations as they are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from epe.errors import StartFailed
from epe.parallel.inductor import compiled


def test_a_thread_that_compiled_nothing_before_may_meet_more_forms_than_torch_allows() -> None:
    torch.compiler.reset()

    def add(rows: torch.Tensor, name: str) -> torch.Tensor:
        return rows + len(name)

    function, names = compiled(add, backend="eager"), ["x" * count for count in range(1, 13)]
    with ThreadPoolExecutor(1) as device_thread:
        sums = list(device_thread.map(lambda name: function(torch.zeros(2), name), names))
    assert [row[0].item() for row in sums] == list(range(1, 13))


def test_code_on_disk_is_found_again_only_by_the_version_that_wrote_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch's key knows its own version and settings, and nothing of a way to compile that is ours."""
    tags: list[str] = []

    def noting(graph: torch.fx.GraphModule, inputs: object) -> object:
        tags.append(torch.compiler.config.cache_key_tag)
        return graph.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", noting)
    for digest in ("one", "other"):
        torch.compiler.reset()
        monkeypatch.setattr("epe.parallel.inductor._own_digest", lambda digest=digest: digest)
        compiled(lambda x: x + 1, backend="inductor")(torch.zeros(2))
    before = torch.compiler.config.cache_key_tag
    assert tags == [f"{before} epe one", f"{before} epe other"]


def test_a_machine_without_a_compiler_is_told_so_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(graph: object, inputs: object) -> object:
        raise RuntimeError("Failed to find C compiler.\n\nSet TORCHDYNAMO_VERBOSE=1")

    monkeypatch.setattr("epe.parallel.inductor.compile_rows", failing)
    call = compiled(lambda x: x + 1, backend="inductor")
    with pytest.raises(
        StartFailed, match=r"^fast numerics .*: Failed to find C compiler\.; install .* exact$"
    ):
        call(torch.zeros(2))
