from __future__ import annotations

import pytest
from torch import nn

from epe.errors import StartFailed
from epe.parallel.plan import argument_index, find_modules


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(n, n) for n in (1, 2, 3)])
        self.heads = nn.ModuleDict({"2-1": nn.Linear(4, 4)})


@pytest.mark.parametrize(
    ("path", "widths"),
    [("layers.0", [1]), ("layers.*", [1, 2, 3]), ("layers.-1", [3]), ("heads.*", [4]), ("heads.2-1", [4])],
)
def test_a_path_names_one_child_every_child_or_one_from_the_end(path: str, widths: list[int]) -> None:
    assert [module.in_features for module in find_modules(Toy(), path)] == widths


@pytest.mark.parametrize("path", ["layers.3", "layers.-4", "nothing", "layers.0.inner", "layers.*.attention"])
def test_a_path_that_leads_nowhere_fails_the_start(path: str) -> None:
    with pytest.raises(StartFailed, match="Toy has no module at"):
        find_modules(Toy(), path)


def test_an_argument_is_found_by_name() -> None:
    assert argument_index(nn.Bilinear(1, 1, 1), "input2") == 1
    with pytest.raises(StartFailed, match=r"Linear\.forward has no argument 'freqs'; it has input"):
        argument_index(nn.Linear(1, 1), "freqs")
