"""EPE inside a program that owns its processes and its event loop.

One process:      python examples/epe_embedded.py outputs/tiny-zimage
Four processes:   torchrun --standalone --nproc-per-node=4 examples/epe_embedded.py outputs/tiny-zimage

Make the checkpoint with `epe models make-tiny zimage outputs/tiny-zimage`, or name a real Z-Image folder. Without one
the demo model draws; behind it the folder for the pictures may be named.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import torch.distributed as dist

from epe import EmbeddedDiffusionRuntime
from epe.messages import OutputFormat

PROMPTS = ("a red cube on a white table", "a blue ball on the left", "a green cone")


def stage(model_path: str, world_size: int) -> dict[str, object]:
    """What a stage file would say."""
    return {
        "name": "embedded",
        "factory": "zimage",
        "gpu": list(range(world_size)),
        "parallelism": {
            "cp": {"world_size": world_size},
            "scheduler": {"policy": "elastic", "warmup_resolutions": [256], "warmup_steps": 3},
        },
        "factory_args": {
            "model_path": model_path,
            "default_width": 256,
            "default_height": 256,
            "num_steps": 8,
        },
    }


async def host(model_path: str, output: Path) -> None:
    """The host's own loop: three pictures at once, beside whatever else it does."""
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    async with EmbeddedDiffusionRuntime.from_stage(stage(model_path, world_size), warm_up=True) as runtime:
        if not runtime.is_leader:
            return  # this rank draws until the leader leaves its block
        drawings = (
            runtime.generate(prompt, seed=seed, output_format=OutputFormat.PNG)
            for seed, prompt in enumerate(PROMPTS)
        )
        for seed, result in enumerate(await asyncio.gather(*drawings)):
            file = output / f"embedded-{seed}.png"
            file.write_bytes(result.data)
            lanes = [list(visit.ranks) for visit in result.account.visits if visit.stage == "denoise"]
            print(f"{file}: {result.account.total_s:.2f} s on lanes {lanes}")


def main() -> None:
    model_path = sys.argv[1] if len(sys.argv) > 1 else "demo"
    output = Path(sys.argv[2] if len(sys.argv) > 2 else "outputs")
    output.mkdir(parents=True, exist_ok=True)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    asyncio.run(host(model_path, output))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
