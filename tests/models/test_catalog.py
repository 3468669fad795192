from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from epe.errors import BadSetting, StartFailed
from epe.models.catalog import load_adapter, make_tiny
from epe.models.loading import Loading

CPU = torch.device("cpu")


def test_an_adapter_is_loaded_by_the_name_of_its_family(tiny_zimage: Path) -> None:
    adapter = load_adapter("zimage", tiny_zimage, Loading(device=CPU))
    assert adapter.family.name == "zimage"


def test_a_family_without_code_says_that_it_is_not_yet_available(tmp_path: Path) -> None:
    with pytest.raises(
        BadSetting, match=r"^family 'llada-image' is not yet available; available are zimage, "
    ):
        load_adapter("llada-image", tmp_path, Loading(device=CPU))


def test_a_name_that_is_no_family_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="'nonsense' is not known"):
        make_tiny("nonsense", tmp_path)


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        BadSetting, match=r"nowhere does not exist; expected the folder of a Z-Image checkpoint"
    ):
        load_adapter("zimage", tmp_path / "nowhere", Loading(device=CPU))


def test_a_folder_without_an_index_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"holds no model_index\.json"):
        load_adapter("zimage", tmp_path, Loading(device=CPU))


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (
            json.dumps({"_class_name": "FluxPipeline"}),
            "names the pipeline FluxPipeline; .* needs ZImagePipeline",
        ),
        (json.dumps(["ZImagePipeline"]), "names the pipeline None"),
        ("{", "is not valid JSON"),
    ],
)
def test_the_checkpoint_of_another_family_is_refused(index: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text(index)
    with pytest.raises(BadSetting, match=message):
        load_adapter("zimage", tmp_path, Loading(device=CPU))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (
            "transformer/diffusion_pytorch_model.safetensors",
            b"\x10\x00\x00\x00\x00\x00\x00\x00not safetensors",
        ),
        ("transformer/diffusion_pytorch_model.safetensors", None),
        ("text_encoder/model.safetensors", b"short"),
        ("text_encoder/config.json", b"{"),
        ("vae/config.json", None),
        ("tokenizer/tokenizer.json", b"[]"),
        ("scheduler/scheduler_config.json", b"{}{}"),
    ],
)
def test_weights_that_cannot_be_read_fail_the_start_with_the_folders_name(
    file: str, content: bytes | None, tiny_zimage: Path, tmp_path: Path
) -> None:
    broken = shutil.copytree(tiny_zimage, tmp_path / "broken")
    (broken / file).unlink()
    if content is not None:
        (broken / file).write_bytes(content)
    with pytest.raises(StartFailed, match=r"broken cannot be loaded as ZImagePipeline: .+"):
        load_adapter("zimage", broken, Loading(device=CPU))
