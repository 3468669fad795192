from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from epe.cli.main import run
from epe.planning.policies import BUILT_IN
from epe.simulator.baselines import BASELINES
from epe.simulator.published import PUBLISHED

FAST = ["simulate", "--requests", "20", "--steps", "3", "--seeds", "2", "--bound", "none"]
LINE = {"arrival_s": 0.0, "height": 512, "width": 512, "steps": 4, "deadline_s": 3.0}

KEYS = {
    "slo_attainment",
    "weighted_goodput",
    "throughput_rps",
    "mean_latency_s",
    "p50_latency_s",
    "p95_latency_s",
    "p99_latency_s",
    "starved",
    "max_normalized_latency",
    "migrations_per_request",
    "useful_busy",
    "plan_ms_p50",
    "plan_ms_p99",
    "ci95",
}


def trace(tmp_path: Path, *lines: object) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_the_json_holds_every_number_of_every_policy(tmp_path, capsys):
    out = tmp_path / "out.json"
    assert run([*FAST, "--policy", "elastic,static-sp1,static_dp", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert (found["workload"], found["world"]) == ("poisson", 4)
    assert found["load"] == pytest.approx(0.9)
    assert set(found["policies"]) == {"elastic", "static-sp1", "static_dp"}
    for numbers in found["policies"].values():
        assert set(numbers) == KEYS
        assert set(numbers["ci95"]) == KEYS - {"ci95"}
        low, high = numbers["ci95"]["slo_attainment"]
        assert low <= numbers["slo_attainment"] <= high
    assert set(found["bound"]) == {"slo_attainment", "kind"}
    assert found["settings"]["seeds"] == [1, 2]
    assert set(found["classes"]["elastic"]) <= {"512x512", "1024x1024", "1536x1536"}
    table = capsys.readouterr().out
    assert "static-sp1" in table
    assert "load 0.90, 20 requests, 2 seeds" in table


def test_the_same_command_gives_the_same_numbers(tmp_path):
    outs = []
    for name in ("a", "b"):
        path = tmp_path / f"{name}.json"
        assert run([*FAST, "--jitter", "0.1", "--json", str(path)]) == 0
        found = json.loads(path.read_text())["policies"]["elastic"]
        outs.append({key: found[key] for key in KEYS if not key.startswith("plan") and key != "ci95"})
    assert outs[0] == outs[1]


def test_several_loads_make_a_list(tmp_path):
    out = tmp_path / "out.json"
    assert run([*FAST, "--load", "0.4,1.2", "--json", str(out)]) == 0
    assert [each["load"] for each in json.loads(out.read_text())] == pytest.approx([0.4, 1.2])


def test_a_trace_of_one_s_own_is_replayed_at_its_load_or_at_another(tmp_path):
    path = trace(tmp_path, *({**LINE, "arrival_s": float(i)} for i in range(10)))
    out = tmp_path / "out.json"
    assert run(["simulate", "--trace", path, "--bound", "none", "--json", str(out)]) == 0
    own = json.loads(out.read_text())
    assert own["workload"] == path
    assert run(["simulate", "--trace", path, "--load", "1.5", "--bound", "none", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["load"] == pytest.approx(1.5)
    assert own["load"] == pytest.approx(10 * (0.055 + 4 * 0.155 + 0.52 * 1024 / 6889) / (4 * 9), rel=1e-4)


def test_the_bound_is_told_with_its_kind(tmp_path):
    pytest.importorskip("scipy")
    out = tmp_path / "out.json"
    assert run(["simulate", "--requests", "20", "--steps", "3", "--seeds", "1", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["bound"]["kind"].startswith("fluid MILP")
    assert found["policies"]["elastic"]["slo_attainment"] <= found["bound"]["slo_attainment"]


def test_without_scipy_the_bound_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr("epe.simulator.bounds.has_solver", lambda: False)
    out = tmp_path / "out.json"
    assert run(["simulate", "--requests", "20", "--steps", "3", "--seeds", "1", "--json", str(out)]) == 0
    bound = json.loads(out.read_text())["bound"]
    assert bound["slo_attainment"] is None
    assert "epe[simulate]" in bound["kind"]


def test_plots_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "out.svg"
    assert run([*FAST, "--load", "0.5,0.9", "--policy", "elastic,static-sp2", "--plot", str(out)]) == 0
    text = out.read_text()
    assert text.startswith("<?xml")
    assert "lanes of static-sp2" in text


def test_the_list_names_all_there_is(capsys):
    assert run(["simulate", "--list"]) == 0
    text = capsys.readouterr().out
    for name in (*BUILT_IN, *BASELINES, *PUBLISHED, "gamma3", "burst", "only-video"):
        assert f"  {name} " in text


def test_costs_come_from_a_file(tmp_path):
    from tests.simulator.scenes import machine

    path = tmp_path / "costs.json"
    path.write_bytes(msgspec.json.encode(machine()))
    out = tmp_path / "out.json"
    assert run([*FAST, "--costs", str(path), "--json", str(out)]) == 0
    assert json.loads(out.read_text())["settings"]["costs"] == "round"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--workload", "sometimes"], "--workload"),
        (["--mix", "huge"], "--mix: mix 'huge' is not known"),
        (["--mix", "only-video"], "--mix: no class"),
        (["--costs", "nowhere"], "--costs: 'nowhere' is neither one of qwen-h20"),
        (["--policy", "magic"], "--policy: policy 'magic' is not known"),
        (["--policy", "no.such.Policy"], "no.such.Policy"),
        (["--policy", "elastic,elastic"], "--policy: a policy is named twice"),
        (["--policy", "static-sp8"], "static-sp8: "),
        (["--world", "0"], "--world: is 0; at least 1"),
        (["--load", "0"], "--load: is 0; a number above 0"),
        (["--load", "much"], "--load: 'much' is not a number"),
        (["--load", "nan"], "--load: "),
        (["--requests", "1"], "--requests: is 1; at least 2"),
        (["--steps", "0"], "--steps: is 0; at least 1"),
        (["--seeds", "0"], "--seeds: is 0; at least 1"),
        (["--first-seed", "0"], "--first-seed: "),
        (["--deadline-scale", "-1"], "--deadline-scale: is -1"),
        (["--deadlines", "soon"], "--deadlines: 'soon' is not a number"),
        (["--deadlines", "1,2"], "--deadlines: 2 deadlines for 3 classes"),
        (["--deadlines", "gfdit", "--deadline-scale", "2"], "--deadlines: give either"),
        (["--jitter", "1"], "--jitter: is 1; less than 1"),
        (["--migration-ms", "-1"], "--migration-ms: is -1"),
        (["--dispatch-ms", "-1"], "--dispatch-ms: is -1"),
        (["--report-ms", "-1"], "--report-ms: is -1"),
        (["--plan-ms", "fast"], "--plan-ms: 'fast' is not a number"),
        (["--bound-seconds", "0"], "--bound-seconds: is 0"),
        (["--replay", "x.csv"], "--replay: goes with --workload replay"),
        (["--workload", "replay", "--replay", "nowhere.csv"], "nowhere.csv: cannot be read"),
        (["--trace", "nowhere.jsonl"], "nowhere.jsonl: cannot be read"),
        (["--trace", "x", "--mix", "small"], "--mix: is of no use with --trace"),
        (["--json", "/no/such/folder/x.json"], "--json: the folder of"),
        (["--plot", "x.txt"], "--plot: x.txt must end in .png"),
        (["--colour", "red"], "--colour is not known"),
    ],
)
def test_a_bad_value_is_one_sentence_and_exit_code_2(flags: list[str], words: str, capsys):
    assert run(["simulate", "--seeds", "1", "--bound", "none", *flags]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err


def test_a_bad_trace_names_line_and_field(tmp_path, capsys):
    path = trace(tmp_path, LINE, {**LINE, "arrival_s": -3})
    assert run(["simulate", "--trace", path]) == 2
    assert f"{path}:2: arrival_s: " in capsys.readouterr().err


def test_a_user_s_policy_that_raises_is_named_with_the_time(capsys, monkeypatch, tmp_path):
    (tmp_path / "broken_policy.py").write_text(
        "class Broken:\n    def plan(self, view):\n        raise KeyError('oh')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert run([*FAST, "--policy", "broken_policy.Broken"]) == 2
    assert "policy broken_policy.Broken: at " in capsys.readouterr().err


def test_the_command_needs_no_heavy_library_before_it_draws_or_solves():
    code = (
        "import sys; from epe.cli.main import run; run(['simulate', '--list']); "
        "heavy = {'torch', 'scipy', 'numpy', 'matplotlib', 'aiohttp'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_trace_is_not_written_over_by_the_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace(tmp_path, LINE)
    before = Path(path).read_bytes()
    assert run(["simulate", "--trace", path, "--json", path]) == 2
    assert f"--json: {path} is also --trace; each needs a file of its own" in capsys.readouterr().err
    assert Path(path).read_bytes() == before
