from __future__ import annotations

import json

from epe.config.generate import GenerateOptions
from epe.config.request import resolve_request
from epe.families import FAMILIES
from epe.media.sidecar import Effective, make_sidecar, write_sidecar


def sidecar(output: str, *, vae_width: int | None = None):
    options = GenerateOptions(
        family="zimage",
        model_path="/models/Z-Image",
        request=resolve_request(FAMILIES["zimage"], prompt="一只猫", seed=5, num_steps=4),
        output=output,
        cfg_parallel_degree=2,
        vae_parallel_halo=4,
        version="1.2.3",
        flags={"steps": 4},
    )
    effective = Effective(
        world_size=3,
        lane_width=3,
        device="cpu",
        dtype="float32",
        cp_backend="gloo",
        cfg_parallel=False,
        vae_width=vae_width,
    )
    return options, make_sidecar(options, effective, elapsed_s=1.5)


def test_the_sidecar_says_what_was_asked_and_what_was_done(tmp_path):
    options, facts = sidecar(str(tmp_path / "new" / "x.png"))
    write_sidecar(options.sidecar, facts)
    text = (tmp_path / "new" / "x.json").read_text(encoding="utf-8")
    read = json.loads(text)
    assert "一只猫" in text
    assert (read["prompt"], read["seed"], read["steps"]) == ("一只猫", 5, 4)
    assert (read["implementation"], read["model"]) == ("epe", "zimage")
    assert read["version"] == "1.2.3"
    assert read["elapsed_s"] == read["generate_seconds"] == 1.5
    assert (read["requested_cfg_parallel"], read["cfg_parallel"]) == (True, False)
    assert (read["requested_cp_backend"], read["cp_backend"]) == ("auto", "gloo")
    assert (read["requested_vae_parallel_halo"], read["vae_parallel_halo"]) == (4, None)
    assert (read["parallel_vae"], read["vae_decode_mode"], read["vae_parallel_degree"]) == (
        False,
        "leader",
        1,
    )
    assert (read["world_size"], read["dtype"], read["device"]) == (3, "float32", "cpu")
    assert read["flags"] == {"steps": 4}
    assert (read["frames"], read["fps"]) == (1, None)


def test_the_sidecar_says_how_many_ranks_decoded(tmp_path):
    _, facts = sidecar(str(tmp_path / "x.png"), vae_width=3)
    assert (facts.parallel_vae, facts.vae_decode_mode, facts.vae_parallel_degree) == (True, "layerwise", 3)
    assert facts.requested_parallel_vae is None
