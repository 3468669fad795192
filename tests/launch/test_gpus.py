from __future__ import annotations

import os
from contextlib import nullcontext

import pytest

from epe.config.load import build_stage
from epe.errors import BadSetting
from epe.launch.gpus import ask_torch, check_enough, count_gpus


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 4), ("0,1", 2), ("", 0), ("-1", 0), ("0,1,2,3,4,5", 4)]
)
def test_gpus_are_counted_without_cuda(tmp_path, visible, count):
    for bus in range(4):
        (tmp_path / f"0000:0{bus}:00.0").mkdir()
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert count_gpus(env, driver=tmp_path) == count


def test_a_machine_without_the_driver_has_none(tmp_path):
    assert count_gpus({}, driver=tmp_path / "nothing") == 0


@pytest.fixture
def fast_stage(tiny_zimage):
    settings = {"name": "image", "factory": "zimage", "gpu": [0], "numerics": "fast"}
    return build_stage({**settings, "factory_args": {"model_path": str(tiny_zimage)}}, env={})


@pytest.fixture
def nccl_stage(tiny_zimage):
    cp = {"attention_mode": "agkv", "agkv_transport": "nccl"}
    settings = {"name": "image", "factory": "zimage", "gpu": [0, 1, 2, 3], "parallelism": {"cp": cp}}
    return build_stage({**settings, "factory_args": {"model_path": str(tiny_zimage)}}, env={})


def test_torch_is_asked_only_where_the_driver_shows_too_few(tmp_path, fast_stage):
    asked = []
    (tmp_path / "0000:01:00.0").mkdir()
    check_enough(fast_stage, {}, driver=tmp_path, ask=lambda env: asked.append(env))
    assert asked == []
    for answer in (1, None):  # None: the ranks will say what is wrong
        check_enough(fast_stage, {}, driver=tmp_path / "nothing", ask=lambda env, answer=answer: answer)
    with pytest.raises(BadSetting, match="numerics: fast numerics compile blocks for a GPU"):
        check_enough(fast_stage, {}, driver=tmp_path / "nothing", ask=lambda env: 0)


@pytest.mark.parametrize(
    ("told", "num_gpus", "message"),
    [
        ({"LOCAL_WORLD_SIZE": "2"}, 2, None),  # the ranks of another host have GPUs there
        ({"LOCAL_WORLD_SIZE": "2"}, 1, "share one"),
        ({"LOCAL_WORLD_SIZE": "4"}, 2, "share one"),
        ({"LOCAL_WORLD_SIZE": "4", "CUDA_VISIBLE_DEVICES": "3"}, 4, None),  # narrowed to one of its own
        ({}, 1, None),  # on how many hosts they are, and who has which GPU, the ranks find out
        ({}, 0, "run on the CPU"),
        (None, 2, "share one"),  # without a launcher all are here
        (None, 4, None),
    ],
)
def test_gpus_are_held_against_the_ranks_that_they_are_for(tmp_path, nccl_stage, told, num_gpus, message):
    """A world over two hosts, or of narrowed ranks, was refused: it was held against the GPUs of one process."""
    world = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"}
    env = {} if told is None else {**world, **told}
    for bus in range(num_gpus):
        (tmp_path / f"0000:0{bus}:00.0").mkdir()
    with pytest.raises(BadSetting, match=message) if message else nullcontext():
        check_enough(nccl_stage, env, driver=tmp_path, ask=lambda env: num_gpus)


def test_torch_sees_no_gpu_that_is_hidden_from_it():
    assert ask_torch({**os.environ, "CUDA_VISIBLE_DEVICES": ""}) == 0


def test_a_torch_that_does_not_answer_says_nothing(monkeypatch):
    monkeypatch.setattr("epe.launch.gpus._ASK_TORCH", "print('no number')")
    assert ask_torch(os.environ) is None
