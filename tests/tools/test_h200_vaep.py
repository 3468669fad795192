"""The program and the page of decoding in bands on a GPU, on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from benchmarks.h200_vaep import Case, alone
from benchmarks.h200_vaep_page import page

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_shows_its_kept_run() -> None:
    kept = (ROOT / "benchmarks/kept/h200-vaep.jsonl").read_text().splitlines()
    assert page([json.loads(line) for line in kept]) == (ROOT / "docs/results/vaep-h200.md").read_text()


def test_one_rank_is_timed_in_each_way_and_captured_bands_have_their_bits() -> None:
    torch.set_num_threads(1)
    case = Case(decoder="AutoencoderKL", rows=16, columns=8, dtype="float32", device="cpu", tiny=True)
    line = alone(case)
    assert line["captured_equals_bands"]
    assert line["difference"] < 1e-5
    assert line["graphs"]["num_replayed"] > 0
    assert all(line[f"{way}_ms"] > 0 for way in ("whole", "bands", "captured"))
    assert "| AutoencoderKL | float32 | 2 |" in page(
        [
            {"case": "setting", "device": "cpu", "torch": "x"},
            {"case": "alone", "decoder": case.decoder, "dtype": case.dtype, **line},
        ]
    )
