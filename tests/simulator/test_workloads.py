"""Generated workloads: rates, spread, shares and deadlines are what their names say."""

from __future__ import annotations

import gzip
from collections import Counter
from itertools import pairwise
from random import Random
from statistics import fmean, pstdev, pvariance

import pytest

from epe.errors import BadSetting
from epe.simulator.mixes import MIXES, mix_of
from epe.simulator.processes import evening, gamma, on_off, poisson, times
from epe.simulator.published import PUBLISHED
from epe.simulator.replay import busy_window, read_times
from epe.simulator.workloads import WORKLOADS, Deadlines, WorkloadSpec, generate, load_of, rescaled

QWEN = PUBLISHED["qwen-h20"]()
FOUR = PUBLISHED["four-models"]()


def variation(gaps: list[float]) -> float:
    return pstdev(gaps) / fmean(gaps)


def spec(**fields: object) -> WorkloadSpec:
    return WorkloadSpec(**{"num_requests": 300, **fields})


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [(poisson, 1.0), (gamma(2.0), 2.0), (gamma(3.0), 3.0)],
    ids=["poisson", "cv2", "cv3"],
)
def test_gaps_have_a_mean_of_one_and_the_spread_that_they_are_named_for(gaps, expected: float):
    drawn = gaps(Random(1), 40_000)
    assert fmean(drawn) == pytest.approx(1.0, rel=0.06)
    assert variation(drawn) == pytest.approx(expected, rel=0.06)


def test_a_fifth_of_the_time_is_busy():
    at = times(on_off(Random(2), 60_000))
    assert at[-1] / len(at) == pytest.approx(1.0, rel=0.1)
    counts = Counter(int(t // 5) for t in at)
    windows = [counts[i] / 5 for i in range(int(at[-1] // 5))]
    busy = [rate for rate in windows if rate > 1.9]  # half-way between 0.4 and 3.4
    assert len(busy) / len(windows) == pytest.approx(0.2, abs=0.04)
    assert fmean(busy) == pytest.approx(3.4, rel=0.1)


def test_the_evening_is_poisson_in_the_small_and_wanders_in_the_large():
    a_minute = 3.2  # requests
    small, large = [], []
    for seed in range(20):
        at = times(evening(Random(seed), 1000))
        counts = Counter(int(t // a_minute) for t in at)
        minutes = [counts[i] for i in range(int(at[-1] // a_minute))]
        tens = [sum(minutes[i : i + 10]) for i in range(0, len(minutes) - 9, 10)]
        small.append(pvariance(minutes) / fmean(minutes))
        large.append(pvariance(tens) / fmean(tens))
    assert 1.4 < fmean(small) < 2.2
    assert 4.5 < fmean(large) < 11


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("costs", [QWEN, FOUR], ids=["qwen", "four"])
def test_every_workload_meets_its_load_exactly_and_comes_in_order(name: str, costs):
    arrivals = generate(spec(name=name, load=0.7), costs, world_size=8, seed=4)
    assert len(arrivals) == 300
    assert load_of(arrivals, world_size=8) == pytest.approx(0.7)
    at = [arrival.arrival_s for arrival in arrivals]
    assert at == sorted(at)
    assert at[0] >= 0


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_gives_the_same_requests_at_every_load(name: str):
    slow = generate(spec(name=name, load=0.4), QWEN, world_size=4, seed=9)
    fast = generate(spec(name=name, load=0.8), QWEN, world_size=4, seed=9)
    assert [a.request.id for a in slow] == [a.request.id for a in fast]
    assert [a.size for a in slow] == [a.size for a in fast]
    assert [a.arrival_s for a in slow] == pytest.approx([2 * a.arrival_s for a in fast])
    assert slow != generate(spec(name=name, load=0.4), QWEN, world_size=4, seed=10)


def test_ids_do_not_tell_who_came_first():
    ids = [arrival.request.id for arrival in generate(spec(), QWEN, world_size=4, seed=1)]
    assert len(set(ids)) == len(ids)
    assert sum(a < b for a, b in pairwise(ids)) == pytest.approx(150, abs=45)


def test_the_small_mix_is_mostly_small():
    sizes = Counter(a.size for a in generate(spec(num_requests=4000), QWEN, world_size=4, seed=1))
    shares = [sizes[name] / 4000 for name in ("512x512", "1024x1024", "1536x1536")]
    assert shares == pytest.approx([0.55, 0.35, 0.10], abs=0.03)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("only-small", ["flux2-klein"]),
        ("only-large", ["wan"]),
        ("only-video", ["wan"]),
        ("uniform", ["flux2-klein", "flux1-dev", "qwen-image", "wan"]),
        ("flux1-dev=3,wan=1", ["flux1-dev", "wan"]),
    ],
)
def test_a_mix_holds_its_classes_by_ascending_work(name: str, sizes: list[str]):
    mix = mix_of(name, FOUR)
    assert [size.name for size in mix.sizes] == sizes
    assert sum(mix.shares) == pytest.approx(1)
    assert list(mix.single_s) == sorted(mix.single_s)


def test_an_explicit_mix_keeps_its_ratio():
    assert mix_of("flux1-dev=3,wan=1", FOUR).shares == (0.75, 0.25)


def test_the_few_step_mix_takes_four_steps_and_steps_can_be_given():
    assert {size.num_steps for size in mix_of("few-step", QWEN).sizes} == {4}
    assert {size.num_steps for size in mix_of("small", QWEN, num_steps=20).sizes} == {20}


@pytest.mark.parametrize("name", ["huge", "512x512=x", "nobody=1", "512x512=-1", "only-video", "512x512=0"])
def test_a_mix_that_does_not_exist_is_refused(name: str):
    with pytest.raises(BadSetting, match="--mix"):
        mix_of(name, QWEN)


def test_a_phase_shift_turns_the_shares_round_but_not_the_load():
    arrivals = generate(spec(name="shift", num_requests=4000), QWEN, world_size=4, seed=1)
    quarters = [arrivals[first : first + 1000] for first in range(0, 4000, 1000)]
    small = [sum(a.size == "512x512" for a in quarter) / 1000 for quarter in quarters]
    assert small == pytest.approx([0.55, 0.10, 0.55, 0.10], abs=0.05)
    for quarter in quarters:
        span_s = quarter[-1].arrival_s - quarter[0].arrival_s
        assert sum(a.single_s for a in quarter) / (4 * span_s) == pytest.approx(0.9, rel=0.15)


def test_a_burst_of_small_requests_meets_long_ones_in_flight():
    arrivals = generate(spec(name="burst", num_requests=1000), QWEN, world_size=4, seed=1)
    cycle_s = arrivals[-1].arrival_s / 19.5
    places = [(a.arrival_s / cycle_s % 1, a.size) for a in arrivals]
    wave = [size for place, size in places if place > 0.38]
    before = [size for place, size in places if place < 0.32]
    assert len(wave) + len(before) == 1000
    assert "512x512" not in before
    assert "1536x1536" not in wave


def test_deadlines_are_relative_to_the_best_latency_alone():
    for arrival in generate(spec(deadlines=Deadlines(scale=1.25)), FOUR, world_size=8, seed=1):
        assert arrival.request.deadline_s == pytest.approx(1.25 * arrival.best_s)
    klein = next(a for a in generate(spec(), FOUR, world_size=8, seed=1) if a.size == "flux2-klein")
    assert klein.best_s == pytest.approx(0.049 + 0.278 + 0.044)
    assert klein.single_s == pytest.approx(0.049 + 1.358 + 0.171)


def test_the_best_latency_is_that_of_the_world_not_of_the_table():
    small = next(a for a in generate(spec(), FOUR, world_size=2, seed=1) if a.size == "flux2-klein")
    assert small.best_s == pytest.approx(0.049 + 0.74 + 0.094)


def test_gf_dits_deadlines_are_multiples_of_the_latency_on_one_rank():
    arrivals = generate(spec(deadlines=Deadlines(kind="gfdit")), QWEN, world_size=4, seed=1)
    factors = {a.size: round(a.request.deadline_s / a.single_s, 6) for a in arrivals}
    assert factors == {"512x512": 1.5, "1024x1024": 2.0, "1536x1536": 6.0}


def test_absolute_deadlines_are_given_by_class():
    rule = Deadlines(kind="absolute", seconds=(5.0, 10.0, 20.0))
    arrivals = generate(spec(deadlines=rule), QWEN, world_size=4, seed=1)
    assert {(a.size, a.request.deadline_s) for a in arrivals} == {
        ("512x512", 5.0),
        ("1024x1024", 10.0),
        ("1536x1536", 20.0),
    }
    with pytest.raises(BadSetting, match="2 deadlines for 3 classes"):
        generate(spec(deadlines=Deadlines(kind="absolute", seconds=(1.0, 2.0))), QWEN, world_size=4, seed=1)


def test_a_few_clients_send_most_requests():
    clients = Counter(
        a.request.client_id for a in generate(spec(num_requests=3000), QWEN, world_size=4, seed=1)
    )
    top = sum(count for _, count in clients.most_common(len(clients) // 10))
    assert 0.35 < top / 3000 < 0.65


def test_a_workload_can_be_stretched_to_another_load():
    arrivals = generate(spec(load=0.5), QWEN, world_size=4, seed=1)
    faster = rescaled(arrivals, world_size=8, load=1.0)
    assert load_of(faster, world_size=8) == pytest.approx(1.0)
    assert [a.request for a in faster] == [a.request for a in arrivals]


def test_a_replay_takes_the_gaps_of_the_densest_windows(tmp_path):
    path = tmp_path / "trace.csv"
    seconds = [*range(0, 600, 60), *range(600, 640, 2), *range(1000, 4000, 300)]
    rows = "\n".join(f"2024-12-02 {s // 3600:02}:{s // 60 % 60:02}:{s % 60:02},x" for s in seconds)
    path.write_text(f"gmt_create,other\n{rows}\n")
    gaps = busy_window(read_times(str(path)), num=10, index=0, path=str(path))
    assert gaps == [2.0] * 10
    arrivals = generate(spec(name="replay", num_requests=10, replay=str(path)), QWEN, world_size=4, seed=1)
    assert variation([b.arrival_s - a.arrival_s for a, b in pairwise(arrivals)]) == pytest.approx(0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("when\n1\n", "no column"),
        ("gmt_create\nyesterday\n", ":2: gmt_create"),
        ("gmt_create\n", "0 requests"),
        ("other,gmt_create\n1\n", ":2: gmt_create"),
    ],
)
def test_a_replay_of_something_else_is_refused(tmp_path, text: str, words: str):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(BadSetting) as caught:
        generate(spec(name="replay", replay=str(path)), QWEN, world_size=4, seed=1)
    assert words in str(caught.value)


def test_a_replay_that_was_cut_off_is_refused(tmp_path):
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(b"gmt_create\n" + b"2024-12-02 10:00:00\n" * 99)[:-9])
    with pytest.raises(BadSetting, match="cannot be read"):
        generate(spec(name="replay", replay=str(path)), QWEN, world_size=4, seed=1)


def test_the_names_of_mixes_and_workloads_are_these():
    assert set(WORKLOADS) == {"poisson", "gamma2", "gamma3", "onoff", "replay", "shift", "burst"}
    assert {"small", "uniform", "large", "few-step", "only-small", "only-large", "only-video"} == set(MIXES)
