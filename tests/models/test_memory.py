"""What loading costs: ranks of one host share the weights that they read from the mapped files of a checkpoint."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import pytest
import torch
from diffusers import ZImagePipeline, ZImageTransformer2DModel
from transformers import Qwen3Config, Qwen3Model

from epe.models.catalog import load_adapter
from epe.models.checkpoint import quiet_progress
from epe.models.loading import Loading
from epe.models.tiny_parts import save
from epe.parallel import Plane
from tests.world import RankContext, World

pytestmark = pytest.mark.world

MIB = 2**20


@pytest.fixture(scope="module")
def large_zimage(tiny_zimage: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Z-Image of about 200 MB, in the proportions of the real one."""
    with quiet_progress():
        pipeline = ZImagePipeline.from_pretrained(tiny_zimage, dtype=torch.float32, local_files_only=True)
    pipeline.transformer = ZImageTransformer2DModel(
        dim=768,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=6,
        n_kv_heads=6,
        cap_feat_dim=512,
        axes_dims=[64, 32, 32],
        axes_lens=[1024, 512, 512],
    )
    config = Qwen3Config(
        vocab_size=len(pipeline.tokenizer),
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=5,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
    )
    pipeline.text_encoder = Qwen3Model(config)
    folder = tmp_path_factory.mktemp("large") / "zimage"
    save(pipeline, folder)
    return folder


def file_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.safetensors"))


@pytest.mark.parametrize("num_planes", [1, 2])
def test_four_ranks_that_load_one_checkpoint_hold_it_once_and_not_four_times(
    num_planes: int, world: World, tiny_zimage: Path, large_zimage: Path
) -> None:
    added = world.run(added_bytes, str(tiny_zimage), str(large_zimage), num_planes)
    stored = file_bytes(large_zimage)
    assert 180 * MIB < stored < 260 * MIB
    # Each page is counted once, in parts: all weights are there, and hardly anything is there twice.
    assert 0.9 * stored < sum(added) < 1.3 * stored


def added_bytes(context: RankContext, tiny: str, large: str, num_planes: int) -> int:
    """What loading the large model adds to this rank's share of the host's memory, all weights being in use."""
    index = context.rank // (context.world_size // num_planes)
    plane = Plane(index, num_planes)
    cpu = torch.device("cpu")
    load_adapter("zimage", Path(tiny), Loading(device=cpu, plane=plane))  # so that all code is loaded
    give_back_what_is_free()
    meet(context, "ready")
    before = held_bytes(large)
    meet(context, "measured")
    pipeline = load_adapter("zimage", Path(large), Loading(device=cpu, plane=plane)).pipeline  # type: ignore[attr-defined]
    models = [each for each in pipeline.components.values() if isinstance(each, torch.nn.Module)]
    for weight in (weight for model in models for weight in model.parameters()):
        weight.sum()
    meet(context, "loaded")
    after = held_bytes(large)
    meet(context, "done")
    return after - before


def give_back_what_is_free() -> None:
    """What earlier tests have left in cycles, or freed: loading would fill it, and not be seen."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def held_bytes(folder: str) -> int:
    """This process's own memory, and its part of the mapped files in `folder`: a page that n processes have mapped
    counts for the nth part (PSS). Code counts for nothing: whoever else starts or ends on this machine shares it."""
    held, counted = 0, ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split(maxsplit=5)
        if not name.endswith(":"):
            counted = "Pss:" if values and values[-1].startswith(folder) else "Anonymous:"
        elif name == counted:
            held += int(values[0]) * 1024
    return held


def meet(context: RankContext, name: str) -> None:
    context.store.set(f"{name}{context.rank}", "1")
    context.store.wait([f"{name}{rank}" for rank in range(context.world_size)])
