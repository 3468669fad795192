"""Reading a plane's part of the weights: from one file or several, and what is said where something lacks."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree

import pytest
import torch
from diffusers import ZImageTransformer2DModel
from safetensors.torch import load_file, save_file

from epe.errors import StartFailed
from epe.models.catalog import load_adapter
from epe.models.loading import Loading
from epe.parallel import Plane

CPU = torch.device("cpu")
WEIGHTS = "diffusion_pytorch_model.safetensors"


def parts_of(checkpoint: Path) -> list[dict[str, torch.Tensor]]:
    adapters = [
        load_adapter("zimage", checkpoint, Loading(device=CPU, plane=Plane(index, 2))) for index in range(2)
    ]
    return [dict(each.pipeline.transformer.named_parameters()) for each in adapters]  # type: ignore[attr-defined]


def test_the_planes_parts_are_the_whole_weights_of_the_checkpoint(tiny_zimage: Path) -> None:
    whole = load_file(tiny_zimage / "transformer" / WEIGHTS)
    first, second = parts_of(tiny_zimage)
    assert set(first) == set(second) == set(whole)
    for name, weight in whole.items():
        if first[name].shape == weight.shape:
            assert torch.equal(first[name], weight), name
            assert torch.equal(second[name], weight), name
        else:
            rows = name.endswith(("to_out.0.weight", "w2.weight"))
            assert torch.equal(torch.cat((first[name], second[name]), dim=int(rows)), weight), name


def test_a_checkpoint_in_several_files_is_read_alike(tiny_zimage: Path, tmp_path: Path) -> None:
    folder = copytree(tiny_zimage, tmp_path / "zimage")
    transformer = ZImageTransformer2DModel.from_pretrained(folder / "transformer")
    (folder / "transformer" / WEIGHTS).unlink()
    transformer.save_pretrained(folder / "transformer", max_shard_size="200KB")
    assert len(list((folder / "transformer").glob("*.safetensors"))) > 1
    for one, several in zip(parts_of(tiny_zimage), parts_of(folder), strict=True):
        assert all(torch.equal(several[name], weight) for name, weight in one.items())


def test_a_weight_that_lacks_is_named(tiny_zimage: Path, tmp_path: Path) -> None:
    folder = copytree(tiny_zimage, tmp_path / "zimage")
    file = folder / "transformer" / WEIGHTS
    weights = load_file(file)
    del weights["layers.1.attention.to_q.weight"], weights["layers.2.attention.to_q.weight"]
    save_file(weights, file)
    with pytest.raises(StartFailed, match=r"lacks layers\.1\.attention\.to_q\.weight and 1 other weights"):
        load_adapter("zimage", folder, Loading(device=CPU, plane=Plane(0, 2)))


def test_a_weight_of_another_shape_is_named_with_both(tiny_zimage: Path, tmp_path: Path) -> None:
    folder = copytree(tiny_zimage, tmp_path / "zimage")
    file = folder / "transformer" / WEIGHTS
    weights = load_file(file)
    weights["layers.0.attention_norm1.weight"] = torch.ones(5)
    save_file(weights, file)
    with pytest.raises(
        StartFailed, match=r"layers\.0\.attention_norm1\.weight in .* is \(5,\); the model wants"
    ):
        load_adapter("zimage", folder, Loading(device=CPU, plane=Plane(0, 2)))


def test_a_folder_without_weights_is_said_so(tiny_zimage: Path, tmp_path: Path) -> None:
    folder = copytree(tiny_zimage, tmp_path / "zimage")
    (folder / "transformer" / WEIGHTS).unlink()
    with pytest.raises(StartFailed, match="cannot be loaded as ZImagePipeline: No such file"):
        load_adapter("zimage", folder, Loading(device=CPU, plane=Plane(0, 2)))
