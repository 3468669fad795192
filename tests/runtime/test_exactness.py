"""A rank leaves out widths on which its device would draw other pictures."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from torch.distributed import HashStore, PrefixStore

from epe.config.load import build_stage
from epe.errors import StartFailed
from epe.models.catalog import load_adapter
from epe.models.loading import Loading
from epe.runtime.exactness import check_kernels, left_out_by_any, widths_to_leave_out
from tests.parallel.test_products import Dividing


def test_a_rank_names_the_widths_on_which_a_layer_gives_other_bits(tiny_zimage, capsys):
    stage = build_stage(
        {
            "name": "image",
            "factory": "zimage",
            "gpu": [0, 1, 2, 3],
            "parallelism": {"scheduler": {"warmup_resolutions": ["512x512", "256x272"]}},
            "factory_args": {"model_path": str(tiny_zimage)},
        }
    )
    adapter = load_adapter("zimage", tiny_zimage, Loading(device=torch.device("cpu")))
    assert stage.parallelism.scheduler.allowed_lane_widths == (1, 2, 4)
    assert widths_to_leave_out(adapter, stage) == ()
    linear = adapter.pipeline.transformer.noise_refiner[0].attention.to_q
    weight = linear.weight.detach()
    del linear.weight
    # 272 rows of picture: 136 and 68 a rank.
    linear.weight = weight.as_subclass(Dividing)
    assert widths_to_leave_out(adapter, stage) == (4,)
    said = capsys.readouterr()
    assert "width.left_out" in said.out + said.err
    assert "noise_refiner.0.attention.to_q" in said.out + said.err


def test_a_stage_that_measures_no_size_is_tried_at_its_default_one(tiny_zimage):
    """It had no smallest size, and a rank on a GPU could not start."""
    stage = build_stage(
        {
            "name": "image",
            "factory": "zimage",
            "gpu": [0, 1],
            "parallelism": {"scheduler": {"warmup_resolutions": []}},
            "factory_args": {"model_path": str(tiny_zimage)},
        }
    )
    adapter = load_adapter("zimage", tiny_zimage, Loading(device=torch.device("cpu")))
    assert widths_to_leave_out(adapter, stage) == ()


def test_a_width_that_one_rank_leaves_out_is_left_out_by_all():
    """A rank of `epe bench` that alone found a width unequal went on to the next one, and the others waited for it."""
    store, found = HashStore(), [(2,), (), (2, 4), ()]

    def ask(rank: int) -> tuple[int, ...]:
        return left_out_by_any(found[rank], rank=rank, world_size=4, store=store)

    with ThreadPoolExecutor(4) as ranks:
        assert list(ranks.map(ask, range(4))) == [(2, 4)] * 4


@pytest.mark.parametrize(("others", "without"), [("there", "0"), ("left out", "")])
def test_a_kernel_that_one_rank_alone_lacks_ends_the_start_on_all(tiny_zimage, others, without):
    """The rows of that rank had other last bits than those of the others. Here is no kernel."""
    adapter = load_adapter("zimage", tiny_zimage, Loading(device=torch.device("cpu")))
    store = HashStore()
    for rank in (1, 2):
        PrefixStore("kernels", store).set(str(rank), others)
    expected = pytest.raises(
        StartFailed, match=f"^ranks {without} have not the kernel of rotation that others have"
    )
    with expected if without else nullcontext():
        check_kernels(adapter, rank=0, world_size=3, store=store)
