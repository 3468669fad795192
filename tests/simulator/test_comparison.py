"""The program that compares schedulers: a tiny cell from tuning to page, and how it judges."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from types import ModuleType

import msgspec
import pytest

pytest.importorskip("scipy")
pytest.importorskip("matplotlib")

from epe.simulator.bounds import Bound, fluid_bound
from epe.simulator.metrics import Metrics
from epe.simulator.published import PUBLISHED
from epe.simulator.workloads import WORKLOADS, generate
from tests.simulator.conftest import CELL
from tests.world import ROOT


def compare(folder: Path, command: str, *flags: str) -> str:
    """Run the program as a user does, in a folder of its own."""
    given = ["--cells", CELL, "--outputs", str(folder), "--tuned", str(folder / "tuned.json"), "--page",
             str(folder / "page.md"), "--requests", "12", "--tuning-requests", "6", "--seeds", "2",
             "--baselines", "2", "--bound-seconds", "1", *flags]  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "scheduling.py"), command, *given],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that the program leaves of one cell."""
    folder = tmp_path_factory.mktemp("comparison")
    compare(folder, "tune")
    compare(folder, "run", "--what", "baselines,bounds,elastic")
    compare(folder, "report")
    return folder


def test_every_baseline_is_tuned_in_the_cell(folder: Path) -> None:
    tuned = msgspec.json.decode((folder / "tuned.json").read_bytes())
    assert len({each["entrant"]["name"] for each in tuned}) == len(tuned) == 12


def test_a_stopped_comparison_goes_on_where_it_was(folder: Path) -> None:
    kept = (folder / "runs.jsonl").read_bytes()
    whole = kept.splitlines(keepends=True)
    assert len(whole) == 8
    (folder / "runs.jsonl").write_bytes(b"".join(whole[:5]) + whole[5][:40])
    told = compare(folder, "run", "--what", "baselines,bounds,elastic")
    assert told.startswith("8 runs, 3 to do")
    assert [without_time(line) for line in (folder / "runs.jsonl").read_bytes().splitlines()] == [
        without_time(line) for line in kept.splitlines()
    ]


def test_runs_of_another_version_are_told_and_made_again_but_bounds_are_not(folder: Path) -> None:
    kept = (folder / "runs.jsonl").read_bytes()
    older = re.sub(rb'"simulator":"[0-9a-f]+"', b'"simulator":"0"', kept)
    (folder / "runs.jsonl").write_bytes(older)
    compare(folder, "report")
    page = (folder / "page.md").read_text()
    assert "was changed after 6 of 6 runs. 6 runs are of older versions, 2 of `elastic` among them" in page
    assert "each is 0.0 points or more behind the best of its cell" in page
    assert len(re.findall(r"\d\* \|", page)) == 3
    told = compare(folder, "run", "--what", "baselines,bounds,elastic", "--renew")
    assert told.startswith("8 runs, 6 to do")
    compare(folder, "report")
    page = (folder / "page.md").read_text()
    assert "changed after" not in page
    assert not re.search(r"\d\* \|", page)


def without_time(line: bytes) -> object:
    """What a run must give again."""
    found = msgspec.json.decode(line)
    (found.get("metrics") or {}).update(plan_ms_p50=0, plan_ms_p99=0)
    return {**found, "took_s": 0}


def test_the_page_says_what_the_runs_gave(folder: Path) -> None:
    runs = [msgspec.json.decode(line) for line in (folder / "runs.jsonl").read_bytes().splitlines()]
    ours = [
        run["metrics"]["slo_attainment"]
        for run in runs
        if (run["job"].get("entrant") or {}).get("name") == "elastic"
    ]
    page = (folder / "page.md").read_text()
    section = page.split("## In time")[1]
    (row,) = re.findall(rf"^\| {CELL} \| ([\d.]+) \|", section, re.MULTILINE)[:1]
    assert float(row) == pytest.approx(100 * fmean(ours), abs=0.05)
    assert "1 of 24 cells" in page


def test_all_pictures_of_the_page_are_there(folder: Path) -> None:
    pictures = re.findall(r"\]\((\S+\.png)\)", (folder / "page.md").read_text())
    assert pictures
    assert [name for name in pictures if not (folder / name).is_file()] == []


@pytest.fixture
def verdicts(program: Callable[[str], ModuleType]) -> ModuleType:
    return program("scheduling_verdicts")


def test_everybody_has_equally_many_tries_and_no_two_alike(program: Callable[[str], ModuleType]) -> None:
    entrants = program("scheduling_entrants")
    for grid in entrants.GRIDS.values():
        assert len(grid) == entrants.NUM_TRIES
        assert len({msgspec.json.encode(settings) for settings in grid}) == len(grid)


def test_no_seed_is_tuned_on_and_judged_by(program: Callable[[str], ModuleType]) -> None:
    jobs = program("scheduling_jobs")
    seeds = [
        *jobs.SEEDS,
        *jobs.SWEEP_SEEDS,
        *jobs.GFDIT_SEEDS,
        jobs.TUNING_SEED,
        program("scheduling_offline").SEED,
    ]
    assert len(set(seeds)) == len(seeds)


def test_what_the_search_finds_can_be_done_and_no_more_than_the_bound(
    program: Callable[[str], ModuleType],
) -> None:
    offline, cell = (
        program("scheduling_offline"),
        program("scheduling_cells").CELL_OF["qwen-burst-large-0.7-x2"],
    )
    arrivals = generate(cell.of(num_requests=20), cell.cost_set, world_size=4, seed=71)
    costs = cell.cost_set.table({arrival.workload for arrival in arrivals}, world_size=4)
    wants = offline.wants_of(arrivals, costs, num_ranks=4, finish_s=0.0)
    search = offline.Search(wants, 4, seed=1)
    begun_with = len(search.served)
    for _ in range(60):
        search.exchange()
    taken = Counter[int]()
    for number, parts in search.served.items():
        assert wants[number].first <= parts[0][0] < parts[-1][1] <= wants[number].last
        assert all(end == begin for (_, end, _), (begin, _, _) in pairwise(parts))
        for begin, end, ranks in parts:
            taken.update(dict.fromkeys(range(begin, end), ranks))
    assert max(taken.values()) <= 4
    assert search.table.free.tolist() == [4 - taken[place] for place in range(len(search.table.free))]
    bound = fluid_bound(arrivals, costs, world_size=4, time_limit_s=20.0).slo_attainment
    assert begun_with <= len(search.served) <= 20 * bound


def test_a_short_run_is_renewed_without_another_search(program: Callable[[str], ModuleType]) -> None:
    offline = program("scheduling_offline")
    line = offline.Offline(cell=CELL, num_requests=60, bound=0.9, proven=True, found=0.8, elastic=0.0,
                           clairvoyant=0.0, baseline=0.0)  # fmt: skip
    anew = offline.renewed(line)
    assert (anew.cell, anew.num_requests, anew.bound, anew.proven, anew.found) == (CELL, 60, 0.9, True, 0.8)
    assert min(anew.elastic, anew.clairvoyant, anew.baseline) > 0.5


def test_there_are_24_cells_of_every_machine_load_and_tightness(program: Callable[[str], ModuleType]) -> None:
    cells = program("scheduling_cells").CELLS
    assert len({cell.name for cell in cells}) == len(cells) == 24
    assert {cell.costs for cell in cells} == set(PUBLISHED)
    assert {cell.workload.name for cell in cells} == set(WORKLOADS)
    assert (min(cell.workload.load for cell in cells), max(cell.workload.load for cell in cells)) == (
        0.4,
        1.2,
    )
    scales = {cell.workload.deadlines.scale for cell in cells if cell.workload.deadlines.kind == "relative"}
    assert {min(scales), max(scales)} == {1.1, 5.0}


def test_what_is_committed_as_tuned_is_one_try_of_each_baseline(program: Callable[[str], ModuleType]) -> None:
    entrants, cells = program("scheduling_entrants"), program("scheduling_cells")
    for name, tuned in entrants.read_tuned().items():
        cell = cells.CELL_OF[name]
        tries = entrants.tries(widths=cell.cost_set.widths(cell.world_size))
        assert all(each.entrant in tries for each in tuned)
        assert sorted(each.entrant.name for each in tuned) == sorted({entrant.name for entrant in tries})


def compared(verdicts: ModuleType, *, ours: float, best: float, margin: float, bound: float = 1.0) -> object:
    """A cell whose difference is known to plus or minus `margin`."""
    return verdicts.Compared(
        cell=f"{ours} against {best}",
        ours=ours,
        best=best,
        best_name="other",
        low=ours - best - margin,
        high=ours - best + margin,
        num_seeds=5,
        num_baselines=12,
        bound=bound,
    )


def test_a_cell_below_the_best_by_more_than_chance_fails_the_comparison(verdicts: ModuleType) -> None:
    level = [compared(verdicts, ours=0.8, best=0.8, margin=0.01)] * 18
    by_chance = compared(verdicts, ours=0.79, best=0.8, margin=0.02)
    below = compared(verdicts, ours=0.785, best=0.8, margin=0.01)
    inside, worst, _ = verdicts.judge([*level, by_chance, below], field="slo_attainment")
    assert (inside.found, inside.reached, worst.reached) == ("19 of 20", True, True)
    inside, worst, _ = verdicts.judge([*level, below, below], field="slo_attainment")
    assert (inside.found, inside.reached) == ("18 of 20", False)
    far = compared(verdicts, ours=0.77, best=0.8, margin=0.05)
    assert [each.reached for each in verdicts.judge([*level, far], field="weighted_goodput")] == [True, False]


def test_only_cells_where_the_best_is_well_short_of_the_bound_count_for_the_shortfall(
    verdicts: ModuleType,
) -> None:
    near = compared(verdicts, ours=0.5, best=0.98, margin=0.01)
    half = compared(verdicts, ours=0.9, best=0.8, margin=0.01)
    less = compared(verdicts, ours=0.85, best=0.8, margin=0.01)
    assert verdicts.judge([near], field="slo_attainment")[2].reached is None
    assert verdicts.judge([near, half], field="slo_attainment")[2].reached is True
    assert verdicts.judge([near, less], field="slo_attainment")[2].reached is False


def test_of_two_bounds_of_a_seed_the_tighter_one_counts(program: Callable[[str], ModuleType]) -> None:
    runs, verdicts = program("scheduling_runs"), program("scheduling_verdicts")
    lines = [
        runs.Line(
            job=runs.Job(cell=CELL, seed=1, num_requests=9, limit_s=limit_s),
            code="",
            took_s=limit_s,
            bound=Bound(slo_attainment=share, kind="fluid MILP"),
        )
        for limit_s, share in ((1.0, 0.9), (20.0, 0.8), (2.0, 0.85), (3.0, None))
    ]
    assert verdicts.Lines(lines, num_requests=9).bound(CELL) == 0.8


def test_what_the_future_gives_is_told_by_the_seeds_on_which_both_were_run(
    program: Callable[[str], ModuleType], verdicts: ModuleType
) -> None:
    """The clairvoyant run of some seeds was compared with ours of all: easy seeds looked like a gain."""
    runs, entrants = program("scheduling_runs"), program("scheduling_entrants")
    nothing = dict.fromkeys(Metrics.__struct_fields__, 0.0)
    lines = [
        runs.Line(
            job=runs.Job(cell=CELL, seed=seed, num_requests=9, entrant=entrant),
            code="",
            took_s=1.0,
            metrics=Metrics(**{**nothing, "slo_attainment": share}),
        )
        for entrant, seed, share in (
            (entrants.OURS, 1, 0.5),
            (entrants.OURS, 2, 0.9),
            (entrants.CLAIRVOYANT, 2, 0.92),
        )
    ]
    told = verdicts.Lines(lines, num_requests=9)
    assert told.clairvoyant(CELL, "slo_attainment") == pytest.approx(0.72)
    assert told.clairvoyant("another", "slo_attainment") is None
