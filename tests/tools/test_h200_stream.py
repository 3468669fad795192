"""The stream through service and loop on H200: its load, its checkpoints and its page, on a CPU."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import mean

import pytest
import torch

from benchmarks.random_checkpoint import FAMILIES, VIDEO_FAMILIES, write_checkpoint
from benchmarks.random_pipeline import Factory
from benchmarks.stream_load import poisson
from benchmarks.stream_page import lines_of, page
from epe.messages import OutputFormat, Request
from epe.runtime.weights import weights_digest
from tests.oracle import draw, load_oracle

CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parents[2]


def test_arrivals_are_the_same_for_both_and_of_every_side_equally_many() -> None:
    arrivals = poisson((256, 512, 1024), count=300, rate=2.0, seed=5)
    assert arrivals == poisson((256, 512, 1024), count=300, rate=2.0, seed=5)
    assert Counter(arrival.side for arrival in arrivals) == {256: 100, 512: 100, 1024: 100}
    gaps = [later.at_s - earlier.at_s for earlier, later in pairwise(arrivals)]
    assert min(gaps) > 0
    assert mean(gaps) == pytest.approx(0.5, rel=0.2)
    assert len({arrival.prompt for arrival in arrivals}) == len(arrivals)


@pytest.mark.parametrize("family", [*FAMILIES, *VIDEO_FAMILIES])
def test_a_written_checkpoint_draws_what_its_weights_draw(family: str, tmp_path: Path) -> None:
    factory = Factory(name=family, device=CPU, dtype=torch.float32, tiny=True)
    num_bytes = write_checkpoint(factory, tmp_path)
    weights = factory.weights()
    assert num_bytes == sum(tensor.nbytes for tensor in weights.values())
    pipeline = load_oracle(tmp_path)
    loaded = dict(pipeline.transformer.named_parameters())
    assert all(torch.equal(loaded[name], weight) for name, weight in weights.items())
    assert len(weights_digest(tmp_path)) == 16
    request = Request(
        id="r",
        prompt="a cat",
        height=64,
        width=64,
        num_steps=1,
        guidance_scale=0.0,
        seed=1,
        output_format=OutputFormat.RAW,
    )
    assert torch.isfinite(draw(pipeline, request).latents).all()


def test_the_page_shows_its_kept_runs() -> None:
    kept = [
        ROOT / f"benchmarks/kept/h200-{name}.jsonl"
        for name in (
            "soak-zimage",
            "checks",
            *(f"stream-{family}{run}" for family in ("zimage", "flux1") for run in ("", "-fast", "-fast-b")),
        )
    ]
    assert page(lines_of(kept)) == (ROOT / "docs/results/stream-h200.md").read_text()


def test_the_page_tells_throughput_and_tails_of_each_run_and_memory(tmp_path: Path) -> None:
    setting = {"case": "setting", "device": "a card", "num_cores": 2, "python": "3", "torch": "2"}
    setting |= {"diffusers": "0", "numerics": "exact", "sides": [64, 128]}
    setting["drafts"] = {"flux1": {"num_steps": 4, "guidance_scale": 3.5}}
    ours = {"throughput": 3.0, "latency_s": {"64": [0.1] * 20, "128": [0.4] * 20}}
    theirs = {"throughput": 1.5, "latency_s": {"64": [1.0] * 20, "128": [0.8] * 20}}
    line = {"case": "stream", "family": "flux1", "load": 3.0, "rate": 4.5, "num_requests": 40}
    rounds = [{**line, "round": number, "service": ours, "loop": theirs} for number in range(3)]
    samples = [
        {
            "num_done": done,
            'epe_rank_memory_bytes{kind="reserved",rank="0"}': 2**30,
            'epe_graph_bytes{rank="0"}': 2**20,
            'epe_graph_passes_total{kind="captured",rank="0"}': 5.0,
            "host_mib": 100 + done,
        }
        for done in (0, 25, 50, 75, 100)
    ]
    soak = {"case": "soak", "family": "flux1", "num_requests": 100, "num_steps": 4, "sides": [64, 80]}
    work = {"encode": 1.0, "denoise": 7.0, "decode": 1.0, "finish": 5.0}
    runs = (
        [setting, {**rounds[0], "service": theirs}],
        [setting | {"num_cores": 4}, *rounds],
        [
            setting | {"numerics": "fast"},
            {**rounds[0], "service": ours | {"took_s": 10.0}, "service_work_s": work},
        ],
        [setting, {**soak, "took_s": 9.0, "samples": samples}],
    )
    for number, run in enumerate(runs):
        (tmp_path / f"{number}.jsonl").write_text("\n".join(map(json.dumps, run)))
    text = page(lines_of(sorted(tmp_path.iterdir())))
    assert "| flux1 | 3.0 | 2 | 1 | 4.50 | 1.50 | 1.50 | 1.00× |" in text
    assert "| flux1 | 3.0 | 4 | 3 | 4.50 | 1.50 | 3.00 | 2.00× (2.00 to 2.00) |" in text
    assert "| flux1, fast | 3.0 | 2 | 1 | 4.50 | 1.50 | 3.00 | 2.00× | 90 % |" in text
    assert "| flux1 | 3.0 | 4 | 64 | 60 | 1.00 | 1.00 | 0.10 | 0.10 | 0.10× (0.10 to 0.10) |" in text
    assert "| 100 | 0 | 1024 | 1 | 200 |" in text
    assert "5 passes captured" in text
    assert "changed by +0 MiB, that of the host by\n+75 MiB" in text
