"""The facts about a picture or video, in a JSON file beside it."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from epe.config.generate import FlagValue, GenerateOptions
from epe.config.stage import CpMethod
from epe.files import write_whole
from epe.messages import CacheAccount


class Effective(Struct, frozen=True, kw_only=True):
    """How the work was in fact divided. `cp_backend` is None on one rank, where nothing is exchanged.
    `vae_width` ranks decoded in bands; None where one decoded whole. `cache` is None where every step was computed."""

    world_size: int
    device: str
    dtype: str
    cp_backend: Literal["gloo", "nccl", "fast"] | None
    cfg_parallel: bool
    lane_width: int
    vae_width: int | None
    cache: CacheAccount | None = None


class Sidecar(Struct, frozen=True, kw_only=True):
    """What `x.json` says about `x.png`. `elapsed_s` and `generate_seconds` are the same seconds: text
    encoding, denoising, decoding and postprocessing, without loading and saving."""

    implementation: str = "epe"
    version: str
    model: str
    model_path: str
    output: str
    prompt: str
    negative_prompt: str
    seed: int
    steps: int
    height: int
    width: int
    frames: int
    fps: int | None
    guidance_scale: float
    flow_shift: float | None
    elapsed_s: float
    generate_seconds: float
    world_size: int
    lane_width: int
    device: str
    dtype: str
    cp_method: CpMethod
    ulysses_degree: int | None
    requested_cp_backend: str
    cp_backend: str | None
    requested_cfg_parallel: bool
    cfg_parallel: bool
    tensor_parallel_degree: int
    requested_parallel_vae: bool | None
    parallel_vae: bool
    vae_decode_mode: Literal["leader", "layerwise"]
    vae_parallel_degree: int
    requested_vae_parallel_halo: int | None
    vae_parallel_halo: int | None = None
    cache: CacheAccount | None
    flags: dict[str, FlagValue]


def make_sidecar(options: GenerateOptions, effective: Effective, *, elapsed_s: float) -> Sidecar:
    """The facts about one finished picture."""
    request = options.request
    return Sidecar(
        version=options.version,
        model=options.family,
        model_path=options.model_path,
        output=options.output,
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        seed=request.seed,
        steps=request.num_steps,
        height=request.height,
        width=request.width,
        frames=request.num_frames,
        fps=request.fps if request.output_format.holds == "video" else None,
        guidance_scale=request.guidance_scale,
        flow_shift=request.flow_shift,
        elapsed_s=elapsed_s,
        generate_seconds=elapsed_s,
        world_size=effective.world_size,
        lane_width=effective.lane_width,
        device=effective.device,
        dtype=effective.dtype,
        cp_method=options.transport.method,
        ulysses_degree=options.transport.ulysses_degree,
        requested_cp_backend=options.transport.backend,
        cp_backend=effective.cp_backend,
        requested_cfg_parallel=options.cfg_parallel_degree == 2,
        cfg_parallel=effective.cfg_parallel,
        tensor_parallel_degree=options.tensor_parallel_degree,
        requested_parallel_vae=options.parallel_vae,
        parallel_vae=effective.vae_width is not None,
        vae_decode_mode="leader" if effective.vae_width is None else "layerwise",
        vae_parallel_degree=effective.vae_width or 1,
        requested_vae_parallel_halo=options.vae_parallel_halo,
        cache=effective.cache,
        flags=options.flags,
    )


def write_sidecar(path: str, sidecar: Sidecar) -> None:
    """Write the facts as JSON."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(sidecar), indent=2) + b"\n")
