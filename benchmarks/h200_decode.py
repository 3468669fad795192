"""What a whole decode costs: diffusers' AutoencoderKL as it is, and as `numerics: fast` has it; in turn, in one run.

python -m benchmarks.h200_decode                        # on CUDA
python -m benchmarks.h200_decode --tiny --device cpu    # a small VAE
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from statistics import median
from typing import Any

import torch
from diffusers import AutoencoderKL

from benchmarks.real_sizes import MODELS
from epe.models.decoding import compile_decoder, decoded

SIDES = (512, 1024, 2048)
ROUNDS, DECODES = 5, 3


def main() -> None:
    arguments = _arguments()
    device = torch.device(arguments.device)
    is_gpu = device.type == "cuda"
    model = MODELS["flux1"]
    torch.manual_seed(0)
    plain = AutoencoderKL(**{**model.vae_config, **(model.tiny_vae if arguments.tiny else {})})
    plain = plain.to(device, torch.bfloat16 if is_gpu else torch.float32).eval().requires_grad_(False)
    fast = copy.deepcopy(plain)
    compile_decoder(fast, backend="inductor" if is_gpu else "eager")
    for side in SIDES:
        print(json.dumps(_line(plain, fast, side // (8 if arguments.tiny else 1))), flush=True)


@torch.inference_mode()
def _line(plain: Any, fast: Any, side: int) -> dict[str, Any]:
    latents = torch.randn(1, 16, side // 8, side // 8, device=plain.device, dtype=plain.dtype)
    begin_s = time.perf_counter()
    difference = (decoded(fast, latents, None) - decoded(plain, latents, None)).abs().max().item()
    warm_s = time.perf_counter() - begin_s
    rounds = [(_decode_s(plain, latents), _decode_s(fast, latents)) for _ in range(ROUNDS)]
    ratios = [theirs / ours for theirs, ours in rounds]
    return {
        "decode": "AutoencoderKL",
        "side": side,
        "diffusers_ms": round(1e3 * median(theirs for theirs, _ in rounds), 2),
        "fast_ms": round(1e3 * median(ours for _, ours in rounds), 2),
        "ratio": [round(each, 3) for each in (median(ratios), min(ratios), max(ratios))],
        "largest_difference": difference,
        "warm_up_s": round(warm_s, 1),
    }


def _decode_s(vae: Any, latents: torch.Tensor) -> float:
    """Seconds of a decode, of some that follow each other."""
    times = []
    for count in range(1 + DECODES):
        if count in (0, 1):
            times.append(_now_s(latents.device))
        decoded(vae, latents, None)
    times.append(_now_s(latents.device))
    return (times[2] - times[1]) / DECODES


def _now_s(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a small VAE in place of the real one")
    return parser.parse_args()


if __name__ == "__main__":
    main()
