"""Whether the ranks of a world were started with the same settings."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import HashStore

from epe.config.demo import model_folder
from epe.config.load import build_stage
from epe.config.stage import Stage
from epe.errors import BadSetting, StartFailed
from epe.runtime.agreement import check_same_settings
from epe.runtime.rank import Seat, load

DEMO = {"model_path": "demo"}
METHOD = {"parallelism": {"cp": {"attention_mode": "ulysses"}}}
WIDTHS = {"parallelism": {"scheduler": {"allowed_lane_widths": [2]}}}
BANDS = {"parallelism": {"vae": {"enabled": True}}}
BRANCHES = {"parallelism": {"model": {"cfg_parallel_degree": 1}}}


def stage_with(settings: dict[str, object]) -> Stage:
    return build_stage({"name": "two", "factory": "zimage", "gpu": [0, 1], "factory_args": DEMO} | settings)


def said(stages: list[Stage], store: HashStore) -> list[str]:
    """What each rank of a world refuses to start with; empty for one that starts."""

    def ask(rank: int) -> str:
        try:
            check_same_settings(stages[rank], rank=rank, world_size=len(stages), store=store, timeout_s=20)
        except BadSetting as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(stages)) as ranks:
        return list(ranks.map(ask, range(len(stages))))


@pytest.mark.parametrize(
    ("other", "path", "here", "there"),
    [
        (METHOD, "parallelism.cp.attention_mode", "agkv", "ulysses"),
        (WIDTHS, "parallelism.scheduler.allowed_lane_widths", "[1,2]", "[2]"),
        (BRANCHES, "parallelism.model.cfg_parallel_degree", "2", "1"),
        (BANDS, "parallelism.vae.enabled", "false", "true"),
        ({"dtype": "float16"}, "dtype", "auto", "float16"),
    ],
)
def test_ranks_that_were_given_different_settings_do_not_start(other, path, here, there):
    """One of them ended the process of another in the middle of a picture."""
    sentence = f"{path}: ranks of one world need the same, and it is {here} on rank 0, {there} on rank 1"
    assert said([stage_with({}), stage_with(other)], HashStore()) == [sentence] * 2


def test_they_find_out_before_they_load_anything(monkeypatch):
    """Rank 1 is without the other one, whose word is in the store."""
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    monkeypatch.setattr("epe.runtime.rank.adapter_of", lambda *args, **options: pytest.fail("it has loaded"))
    store = HashStore()
    with pytest.raises(StartFailed):
        check_same_settings(stage_with({}), rank=0, world_size=2, store=store, timeout_s=0)
    seat = Seat(rank=1, world_size=2, device_index=0, store=store)
    with pytest.raises(BadSetting, match=r"attention_mode: .* ulysses on rank 1$"):
        load(seat, target=torch.device("cpu"), stage=stage_with(METHOD))


def test_ranks_may_have_paths_and_devices_of_their_own():
    there = {"factory_args": {"model_path": str(model_folder("demo"))}, "device": "cpu", "gpu": [2, 3]}
    assert said([stage_with({}), stage_with(there)], HashStore()) == ["", ""]


def test_a_rank_that_comes_back_with_other_settings_does_not_start():
    store = HashStore()
    assert said([stage_with({}), stage_with({})], store) == ["", ""]
    check_same_settings(stage_with({}), rank=1, world_size=2, store=store, timeout_s=0)
    with pytest.raises(BadSetting, match="ulysses on rank 1"):
        check_same_settings(stage_with(METHOD), rank=1, world_size=2, store=store, timeout_s=0)


def test_a_rank_that_says_nothing_is_named():
    with pytest.raises(StartFailed, match="rank 0 told nobody its settings"):
        check_same_settings(stage_with({}), rank=1, world_size=2, store=HashStore(), timeout_s=0.05)
