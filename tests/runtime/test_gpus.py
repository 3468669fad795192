"""Whether every rank of a world has a GPU to itself: ranks of any number of hosts tell each other where they are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from structlog.testing import capture_logs
from torch.distributed import HashStore

from epe.errors import StartFailed
from epe.runtime.gpus import CPU, SLICE, each_has_its_gpu, place_of, warn_of_sharing

TWO = ["GPU a", "GPU b"]


def answers(places: list[str], store: HashStore) -> list[bool]:
    """What each rank of a world in these places is told."""

    def ask(rank: int) -> bool:
        return each_has_its_gpu(places[rank], rank=rank, world_size=len(places), store=store, timeout_s=20)

    with ThreadPoolExecutor(len(places)) as ranks:
        return list(ranks.map(ask, range(len(places))))


@pytest.mark.parametrize(
    ("places", "answer"),
    [
        (TWO, True),
        ([*TWO, "GPU c", "GPU d"], True),  # of two hosts, or of four processes that see one GPU each
        ([*TWO, *TWO], False),
        (["GPU a", "GPU a"], False),
        ([*TWO, CPU], False),
        ([CPU, CPU], False),
        ([SLICE, "GPU a"], False),
        ([SLICE, SLICE], False),
    ],
)
def test_all_ranks_are_told_alike_whether_each_has_a_gpu_to_itself(places, answer):
    """Ranks that see fewer GPUs than the world has ranks, for it is on several hosts or each sees only its own, took
    gloo and captured nothing; ranks that each count for themselves could have taken different ones."""
    assert answers(places, HashStore()) == [answer] * len(places)


def test_a_rank_that_comes_back_hears_what_it_heard_at_first():
    store = HashStore()
    assert answers(TWO, store) == [True, True]
    assert each_has_its_gpu("GPU b", rank=1, world_size=2, store=store, timeout_s=0)


def test_a_rank_whose_gpu_is_lost_does_not_take_its_neighbours():
    store = HashStore()
    answers(TWO, store)
    with pytest.raises(StartFailed, match=r"^rank 1 was on GPU b when its world began, and now finds GPU a$"):
        each_has_its_gpu("GPU a", rank=1, world_size=2, store=store)


def test_a_place_is_a_whole_gpu_by_its_own_name(monkeypatch):
    gpus = {
        0: SimpleNamespace(name="NVIDIA H200", uuid="a"),
        1: SimpleNamespace(name="NVIDIA H200 MIG 1g.18gb", uuid="b"),
    }
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpus[device.index])
    assert place_of(torch.device("cuda", 0)) == "GPU a"
    assert place_of(torch.device("cuda", 1)) == SLICE
    assert place_of(torch.device("cpu")) == CPU


def test_ranks_that_share_gpus_say_so(monkeypatch):
    """A `gpu` that named one which is not there had two ranks share another, without a word."""
    monkeypatch.setattr("epe.runtime.gpus.num_gpus", lambda: 2)
    with capture_logs() as lines:
        warn_of_sharing(torch.device("cuda", 0))
        warn_of_sharing(torch.device("cpu"))
    assert [(line["event"], line["gpu"], line["num_gpus"]) for line in lines] == [("gpu.shared", 0, 2)]
