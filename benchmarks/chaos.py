"""Kills, stops, faults and leaving clients against a service of four CPU ranks: is anything lost?

    python -m benchmarks.chaos [--requests 300] [--deaths 40] [--over 900] [--seed 1] [--output docs/results/chaos.md]

Exits with 1 and names what was wrong if a promise was broken. The same seed gives the same requests and, as far as a
real machine allows, the same deaths.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: every rank has one core at most

from benchmarks.chaos_deaths import kill_ranks
from benchmarks.chaos_findings import Findings, judge, read_events, sizes_of
from benchmarks.chaos_load import ALLOWED, PROMPT, plan_requests, send_all, undisturbed
from benchmarks.chaos_report import report
from epe.models.catalog import make_tiny
from tests.service.served import EPE, Served, Traces, user_environment, write_stage

# In every life of every rank, again and again.
FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "raise", "stage": "encode", "probability": 0.03},
    {"kind": "raise", "stage": "denoise", "probability": 0.004},
    {"kind": "raise", "stage": "decode", "probability": 0.03},
    {"kind": "raise", "stage": "finish", "probability": 0.03},
    {"kind": "nan", "stage": "denoise", "probability": 0.004},
    {"kind": "nan", "stage": "decode", "probability": 0.03},
    {"kind": "oom", "stage": "denoise", "probability": 0.01},
    {"kind": "hang", "stage": "denoise", "probability": 0.002, "count": 1},
    {"kind": "slow", "stage": "denoise", "probability": 0.01, "seconds": 0.3},
)
HANG_S = 5.0
QUIET_WITHIN_S = 120.0


def write_chaos_stage(folder: Path, checkpoint: Path, *, seed: int) -> Path:
    """Four ranks and all the faults."""
    path = write_stage(folder, checkpoint, num_ranks=4)
    stage = yaml.safe_load(path.read_text())
    stage["faults"] = [{"count": None, "life": None, "seed": seed, **fault} for fault in FAULTS]
    stage["parallelism"]["scheduler"] |= {"warmup_resolutions": [64, 512], "cost_file": "none"}
    stage["service"] |= {"hang_s": HANG_S}
    stage["cache"] = {"allowed": ALLOWED}
    path.write_text(yaml.safe_dump(stage))
    return path


async def run_chaos(
    folder: Path, checkpoint: Path, *, num_requests: int, num_deaths: int, over_s: float, seed: int
) -> Findings:
    """One whole run, from the start of the service to its end."""
    expected = await undisturbed(checkpoint)
    stage = write_chaos_stage(folder, checkpoint, seed=seed)
    begin_s = time.monotonic()
    command = (*EPE, "serve", "--stage-config", str(stage), "--log-level", "debug")
    served = Served(folder, [command], [user_environment(EPE_FAULTS="1")])
    try:
        url = await asyncio.to_thread(lambda: served.url)
        start_s = time.monotonic() - begin_s
        before, mark = sizes_of(served.processes()), served.mark()
        plans = plan_requests(num_requests, over_s=over_s, seed=seed)
        leader_mb: list[float] = []
        watching = asyncio.create_task(_watch(served, leader_mb))
        ends, deaths = await asyncio.gather(
            send_all(url, plans, expected), kill_ranks(served, num=num_deaths, over_s=over_s, seed=seed)
        )
        left = await _until_quiet(served)
        watching.cancel()
        after = sizes_of(served.processes())
        left += await asyncio.to_thread(_end, served)
        events = read_events(served, since=mark)
    finally:
        served.close()
    findings = Findings(
        ends=ends,
        deaths=deaths,
        events=events,
        before=before,
        after=after,
        leader_mb=leader_mb,
        left=left,
        start_s=start_s,
    )
    return judge(findings)


async def _watch(served: Served, leader_mb: list[float]) -> None:
    """The leader's memory, again and again."""
    while True:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            leader = sizes_of(served.processes()).get(None)
            if leader is not None:
                leader_mb.append(leader.resident_mb)
        await asyncio.sleep(1)


async def _until_quiet(served: Served) -> list[str]:
    """Wait until nothing is at work and every rank is back; what is wrong if that does not come."""
    try:
        async with asyncio.timeout(QUIET_WITHIN_S):
            await served.until_idle()
            await _until_ranks_are_back(served)
            reply = await served.draw(prompt=PROMPT, size="64x64", num_inference_steps=2)
    except TimeoutError:
        return [f"not quiet {QUIET_WITHIN_S:g} s after the last request: {await served.health()}"]
    return [] if reply.status in (200, 500) else [f"after all of it a request was answered {reply.status}"]


async def _until_ranks_are_back(served: Served) -> None:
    """One that faults have struck thrice in a row is quarantined, and stays so: that is what was asked for."""
    there = ("idle", "busy", "quarantined")
    while not all(rank["state"] in there for rank in (await served.health())["ranks"]):  # noqa: ASYNC110
        await asyncio.sleep(0.1)


def _end(served: Served) -> list[str]:
    """Ask the service to end; what it leaves behind."""
    traces = Traces(served)
    served.parents[0].terminate()
    code = served.parents[0].wait(timeout=90)
    try:
        traces.assert_gone(within_s=5)
    except AssertionError as error:
        return [f"something was left behind: {error}"]
    return [] if code == 0 else [f"the service ended with exit code {code}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--deaths", type=int, default=40)
    parser.add_argument("--over", type=float, default=900.0, help="seconds in which all requests come")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="write the page there; else it is printed")
    parser.add_argument("--keep", type=Path, help="a folder for the log of the service")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        make_tiny("zimage", folder / "zimage")
        findings = asyncio.run(
            run_chaos(
                folder,
                folder / "zimage",
                num_requests=args.requests,
                num_deaths=args.deaths,
                over_s=args.over,
                seed=args.seed,
            )
        )
    shape = ("requests", "deaths", "over", "seed")
    options = [word for name in shape for word in (f"--{name}", f"{getattr(args, name):g}")]
    page = report(findings, command=shlex.join(["python", "-m", "benchmarks.chaos", *options]))
    if args.output:
        args.output.write_text(page)
    else:
        print(page)
    sys.exit("\n".join(findings.problems) or None)


if __name__ == "__main__":
    main()
