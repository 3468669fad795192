"""What FlexCache costs and gives on the demo model: pictures of held-out prompts with each setting beside those without
it, and how much faster one request is.

    python -m benchmarks.flexcache --output OUT                 # on CUDA, about five minutes
    python -m benchmarks.flexcache --size quick --output OUT    # the same program on a CPU, in a minute

One JSON object a line, as it goes; OUT/profile.json is the profile that was fitted, OUT/pictures.npz has the pictures
of the contact sheet. `benchmarks.flexcache_page` makes the page of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec.structs import replace

from benchmarks.flexcache_settings import PLANS, Plan, Setting, settings
from benchmarks.likeness import psnr, ssim
from epe.cache import Profile, num_records, read_profile
from epe.config.demo import DEFAULTS, model_folder
from epe.graphs import CudaGraphs, Graphs
from epe.messages import Request, Reuse, Split
from epe.models.catalog import load_adapter
from epe.models.contract import Adapter, State
from epe.models.loading import Loading
from epe.models.reusing import kept_bytes, num_computed
from epe.runtime.fitting import Drawer, fit_profile
from epe.transport.exchange import SoloExchange

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from demo_model.captions import full_caption
from demo_model.evaluate import prompts, score
from demo_model.oracle import Oracle, calibrate, find_things
from demo_model.scenes import Scene, draw_scene

NUM_SHOWN = 6


def main() -> None:
    args = _parser().parse_args()
    plan, out = PLANS[args.size], args.output
    if args.step_counts:
        plan = dataclasses.replace(plan, step_counts=tuple(args.step_counts))
    out.mkdir(parents=True, exist_ok=True)
    # Copies of a process that has asked for CUDA could not use it, and torch's optimizers ask.
    with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as judges:
        ready = judges.submit(_prepare, out / "oracle.pt", plan.oracle_scenes)
        bench = Bench(plan, out, device=torch.device(args.device), judges=judges, ready=ready)
        bench.tell(_about(args.device, plan))
        bench.run(read_profile(args.profile, "zimage") if args.profile else None)
    (out / "oracle.pt").unlink()


class Bench:
    """One run of the program; `judges` say in other processes what is right in the pictures."""

    def __init__(
        self,
        plan: Plan,
        out: Path,
        *,
        device: torch.device,
        judges: ProcessPoolExecutor,
        ready: Future[None],
    ) -> None:
        self.plan, self.out, self.device, self.judges, self.ready = plan, out, device, judges, ready
        self.lines = (out / "flexcache.jsonl").open("a", encoding="utf-8")
        adapter = load_adapter("zimage", model_folder("demo"), Loading(device=device))
        assert isinstance(adapter, Drawer)
        self.adapter = adapter
        self.timed: dict[str, Adapter] = {"speed": adapter}
        if device.type == "cuda":
            self.timed["captured speed"] = self._captured()
        self.verdicts: list[Future[dict[str, Any]]] = []
        self.shown: dict[str, np.ndarray] = {}

    def _captured(self) -> Adapter:
        """Another one, whose forward passes are captured and replayed."""
        graphs = Graphs(CudaGraphs(self.device), budget_bytes=8 * 2**30)
        return load_adapter("zimage", model_folder("demo"), Loading(device=self.device, graphs=graphs))

    def tell(self, line: dict[str, Any]) -> None:
        print(json.dumps(line), file=self.lines, flush=True)
        print(json.dumps(line), flush=True)

    def run(self, profile: Profile | None) -> None:
        profile = profile or self._fitted()
        (self.out / "profile.json").write_bytes(msgspec.json.encode(profile))
        asked = prompts(self.plan.num_prompts)
        states = self._encoded([text for _, text in asked])
        scenes = [scene for scene, _ in asked] * self.plan.num_seeds
        for num_steps in self.plan.step_counts:
            self._compare(profile, states, scenes, num_steps)
        for verdict in self.verdicts:
            self.tell(verdict.result())
        np.savez_compressed(self.out / "pictures.npz", **self.shown)

    def _fitted(self) -> Profile:
        rng, plan, begin_s = Random("flexcache/fit"), self.plan, time.perf_counter()
        texts = [
            full_caption(draw_scene(rng, split="train", num_things=1 + (place % 5 < 2)), rng)
            for place in range(plan.num_fitting)
        ]
        requests = [_request(text, 10_000 + place, plan) for place, text in enumerate(texts)]
        source = (
            f"python -m benchmarks.flexcache: {len(texts)} trajectories of training prompts, "
            f"{plan.fitting_steps} steps at {plan.side} x {plan.side}, guidance {DEFAULTS.guidance_scale:g}"
        )
        profile = fit_profile(
            self.adapter,
            requests,
            model="demo",
            source=source,
            num_tried=min(16, len(texts)),
            batch=plan.batch,
        )
        self.tell({"case": "fit", "rho": profile.rho, "took_s": round(time.perf_counter() - begin_s, 1)})
        return profile

    def _encoded(self, texts: Sequence[str]) -> list[State]:
        """Each prompt with each seed, all of the first seed before those of the next."""
        numbered = [
            (text, 1000 * seed + place)
            for seed in range(self.plan.num_seeds)
            for place, text in enumerate(texts)
        ]
        return [self.adapter.encode(_request(text, seed, self.plan)) for text, seed in numbered]

    def _compare(
        self, profile: Profile, states: Sequence[State], scenes: Sequence[Scene], num_steps: int
    ) -> None:
        whole = self._pictures(states, num_steps, None)
        self._judge(
            whole, scenes, {"case": "quality", "steps": num_steps, "strategy": "none", "value": num_steps}
        )
        everything = list(settings(profile, num_steps))
        for setting in everything:
            pictures = self._pictures(states, num_steps, setting.reuse)
            line = {"case": "quality", "steps": num_steps, **_named(setting)}
            line |= {"psnr_db": psnr(pictures, whole), "ssim": ssim(pictures, whole, self.device)}
            self._judge(pictures, scenes, line | {"computed": self.computed})
        for case, adapter in self.timed.items():
            self._time(case, adapter, states[0], everything, num_steps)

    def _pictures(self, states: Sequence[State], num_steps: int, reuse: Reuse | None) -> np.ndarray:
        """(pictures, height, width, 3)."""
        drawn: list[np.ndarray] = []
        counts = []
        for start in range(0, len(states), self.plan.batch):
            begun = [_again(state, num_steps, reuse) for state in states[start : start + self.plan.batch]]
            ended = begun
            for _ in range(num_steps):
                ended = self.adapter.step_together(ended, SoloExchange(), Split())
            counts += [num_computed(*each) for each in zip(begun, ended, strict=True)]
            for state in ended:
                pixels = self.adapter.decode(state)
                assert pixels is not None
                drawn.append(pixels[0].cpu().numpy())
        self.computed = round(sum(counts) / len(counts), 2)
        return np.stack(drawn)

    def _judge(self, pictures: np.ndarray, scenes: Sequence[Scene], line: dict[str, Any]) -> None:
        key = f"{line['steps']}/{line['strategy']}/{line['value']:g}"
        self.shown[key] = pictures[:NUM_SHOWN]
        self.ready.result()
        self.verdicts.append(self.judges.submit(_judged, self.out / "oracle.pt", pictures, scenes, line))
        self.tell({**line, "judged": False})

    def _time(
        self, case: str, adapter: Adapter, state: State, everything: Sequence[Setting], num_steps: int
    ) -> None:
        """Seconds of one request's steps alone on the device, all settings in turn, against those without FlexCache."""
        plain_s: list[float] = []
        taken: dict[int, list[float]] = {place: [] for place in range(len(everything))}
        self._seconds(adapter, _again(state, num_steps, None))
        for _ in range(self.plan.rounds):
            plain_s.append(self._seconds(adapter, _again(state, num_steps, None))[0])
            for place, setting in enumerate(everything):
                taken[place].append(self._seconds(adapter, _again(state, num_steps, setting.reuse))[0])
        self.tell({"case": case, "steps": num_steps, "strategy": "none", "seconds": median(plain_s)})
        for place, setting in enumerate(everything):
            _, computed, bytes_kept = self._seconds(adapter, _again(state, num_steps, setting.reuse))
            line = {"case": case, "steps": num_steps, **_named(setting), "computed": computed}
            ratios = sorted(whole / ours for whole, ours in zip(plain_s, taken[place], strict=True))
            speed = {"speed_up": median(ratios), "least": ratios[0], "most": ratios[-1]}
            records = num_records(setting.reuse, num_steps)
            self.tell({**line, **speed, "kept_bytes": bytes_kept, "num_records": records})

    def _seconds(self, adapter: Adapter, state: State) -> tuple[float, int, int]:
        """Of its steps; how many were computed, and the most bytes that were kept."""
        begun, most = state, 0
        self._wait()
        begin_s = time.perf_counter()
        for _ in range(state.request.num_steps):
            state = adapter.step(state, SoloExchange(), Split())
            most = max(most, kept_bytes(state))
        self._wait()
        return time.perf_counter() - begin_s, num_computed(begun, state), most

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _request(text: str, seed: int, plan: Plan) -> Request:
    return Request(
        id=f"{seed}",
        prompt=text,
        height=plan.side,
        width=plan.side,
        num_steps=plan.fitting_steps,
        guidance_scale=DEFAULTS.guidance_scale,
        seed=seed,
        max_sequence_length=DEFAULTS.max_sequence_length,
    )


def _again(state: State, num_steps: int, reuse: Reuse | None) -> State:
    """The same first latents and prompt, to be drawn in so many steps."""
    request = replace(state.request, num_steps=num_steps, reuse=reuse)
    return State(request=request, step=0, tensors=state.tensors)


def _named(setting: Setting) -> dict[str, Any]:
    return {"strategy": setting.strategy, "value": setting.value, "plan": list(setting.reuse.computed)}


def _prepare(path: Path, num_scenes: int) -> None:
    torch.set_num_threads(4)
    torch.save(calibrate(num_scenes=num_scenes), path)


_oracles: dict[Path, Oracle] = {}


def _judged(
    path: Path, pictures: np.ndarray, scenes: Sequence[Scene], line: dict[str, Any]
) -> dict[str, Any]:
    """The line with the shares of things of which colour, place and kind are right."""
    torch.set_num_threads(1)
    if path not in _oracles:
        _oracles[path] = torch.load(path, weights_only=False)  # written by this program
    seen = [find_things(torch.from_numpy(each).permute(2, 0, 1) / 255) for each in pictures]
    right = asdict(score(_oracles[path], list(scenes), seen))
    return {**line, "judged": True, **{name: right[name] for name in ("colour", "place", "kind", "number")}}


def _about(device: str, plan: Plan) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name(0) if device == "cuda" else None
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    size = next((name for name, each in PLANS.items() if each == plan), "other")
    return {"case": "setting", "size": size, "device": device, "gpu": gpu, **versions, **asdict(plan)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=PLANS, default="full", help="how much is drawn")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--step-counts", type=int, nargs="+", help="instead of all")
    parser.add_argument("--profile", type=Path, help="instead of fitting one")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--processes", type=int, default=2)
    return parser


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """What a run has told, for the page."""
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


if __name__ == "__main__":
    main()
