"""What a stage asks of GPUs that are not there, or too few."""

from __future__ import annotations

import pytest

from epe.config.gpus import check_gpus
from epe.config.load import build_stage
from epe.config.stage import Stage
from epe.errors import BadSetting


@pytest.fixture
def stage(tiny_zimage):
    def build(*, ranks: int = 1, **settings: object) -> Stage:
        own = {"name": "image", "factory": "zimage", "gpu": list(range(ranks))}
        return build_stage({**own, "factory_args": {"model_path": str(tiny_zimage)}, **settings}, env={})

    return build


def over_nccl(method: str, transport: str = "nccl") -> dict[str, object]:
    return {"cp": {"attention_mode": method, f"{method}_transport": transport}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "cuda"}, "device: cuda was asked for, but torch sees no GPU; use cpu or auto"),
        ({"numerics": "fast"}, "numerics: fast numerics compile blocks for a GPU, .* on the CPU; use exact"),
    ],
)
def test_what_only_a_gpu_can_do_is_refused_where_there_is_none(stage, settings, message):
    with pytest.raises(BadSetting, match=message):
        check_gpus(stage(**settings), num_gpus=0, num_ranks=1)
    check_gpus(stage(**settings), num_gpus=1, num_ranks=1)
    check_gpus(stage(), num_gpus=0, num_ranks=1)


@pytest.mark.parametrize("method", ["agkv", "ulysses"])
@pytest.mark.parametrize("transport", ["nccl", "fast"])
@pytest.mark.parametrize(("num_gpus", "here"), [(0, "run on the CPU"), (1, "share one")])
def test_a_transport_that_was_asked_for_and_cannot_be_had_is_an_error(
    stage, method, transport, num_gpus, here
):
    asked = stage(ranks=2, parallelism=over_nccl(method, transport))
    with pytest.raises(
        BadSetting,
        match=f"{method}_transport: {transport} needs a GPU for each rank, but ranks here {here}; use auto",
    ):
        check_gpus(asked, num_gpus=num_gpus, num_ranks=2)
    check_gpus(asked, num_gpus=2, num_ranks=2)


def test_a_world_over_several_hosts_has_nccl_with_as_many_gpus_on_each_as_it_has_ranks_there(stage):
    """Two hosts of two GPUs, and ranks that are narrowed to one each, were told that they share one."""
    asked = stage(ranks=4, parallelism=over_nccl("agkv"))
    check_gpus(asked, num_gpus=2, num_ranks=2)
    check_gpus(asked, num_gpus=1, num_ranks=1)
    with pytest.raises(BadSetting, match="ranks here share one"):
        check_gpus(asked, num_gpus=2, num_ranks=4)
    with pytest.raises(BadSetting, match="ranks here run on the CPU"):
        check_gpus(asked, num_gpus=0, num_ranks=1)


def test_a_rank_on_a_cpu_has_no_nccl_whatever_gpus_there_are(stage):
    with pytest.raises(BadSetting, match="ranks here run on the CPU"):
        check_gpus(stage(ranks=2, device="cpu", parallelism=over_nccl("agkv")), num_gpus=8, num_ranks=2)


def test_a_rank_alone_exchanges_nothing(stage):
    check_gpus(stage(parallelism=over_nccl("agkv")), num_gpus=0, num_ranks=1)
