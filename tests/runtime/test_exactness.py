"""A rank leaves out widths on which its device would draw other pictures."""

from __future__ import annotations

import torch

from epe.config.load import build_stage
from epe.models.catalog import load_adapter
from epe.models.loading import Loading
from epe.runtime.exactness import widths_to_leave_out
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
