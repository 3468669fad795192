"""Makes the demo model from nothing: autoencoder, transformer, export, evaluation, in resumable pieces.

    python tools/demo_model/make.py --run outputs/demo --target epe/models/demo

A piece ends after `--piece-s` seconds with a checkpoint, and the command after `--limit-s` with one as well; start it
again to go on from there.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo_model.train_dit import train_dit
from demo_model.train_vae import PHASES, train_vae

SEED = 0
DIT_STEPS = 8_700


def main() -> None:
    """Runs the stages asked for, in order."""
    args = _parser().parse_args()
    args.run.mkdir(parents=True, exist_ok=True)
    args.end_s = time.monotonic() + args.limit_s
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    for stage in args.stages:
        started = time.monotonic()
        done = _run(stage, args)
        print(
            f"{stage}: {'done' if done else 'to be continued'}, {time.monotonic() - started:.0f} s",
            flush=True,
        )
        if not done:
            break


def _run(stage: str, args: argparse.Namespace) -> bool:
    common = {"device": args.device, "seed": SEED, "compiled": args.device != "cpu"}
    match stage:
        case "vae":
            return _in_pieces(
                args, lambda limit_s: train_vae(args.run, phases=PHASES, limit_s=limit_s, **common)
            )
        case "dit":
            return _in_pieces(
                args, lambda limit_s: train_dit(args.run, num_steps=args.dit_steps, limit_s=limit_s, **common)
            )
        case "export":
            from demo_model.export import export

            print(f"{export(args.run, args.target)} bytes in {args.target}", flush=True)
        case _:
            program = [sys.executable, str(Path(__file__).with_name("evaluate.py")), str(args.target)]
            subprocess.run([*program, "--device", args.device], check=True)
    return True


def _in_pieces(args: argparse.Namespace, piece: Callable[[float], bool]) -> bool:
    """Runs pieces until the stage is complete (True) or the command's time is over."""
    while (left_s := args.end_s - time.monotonic()) > 0:
        if piece(min(args.piece_s, left_s)):
            return True
    return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, default=Path("outputs/demo"), help="checkpoints")
    parser.add_argument("--target", type=Path, default=Path("epe/models/demo"), help="the finished model")
    parser.add_argument("--stages", nargs="+", default=["vae", "dit", "export", "evaluate"])
    parser.add_argument("--piece-s", type=float, default=420.0)
    parser.add_argument("--limit-s", type=float, default=math.inf, help="seconds before the command stops")
    parser.add_argument("--dit-steps", type=int, default=DIT_STEPS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


if __name__ == "__main__":
    main()
