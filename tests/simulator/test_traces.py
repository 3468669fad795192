"""Traces: what is wrong is said with its line and field."""

from __future__ import annotations

import json

import msgspec
import pytest

from epe.errors import BadSetting
from epe.planning.trace_line import TraceLine, encode_line, line_of
from epe.simulator.published import PUBLISHED
from epe.simulator.traces import read_trace, trace_arrivals

QWEN, FOUR = PUBLISHED["qwen-h20"](), PUBLISHED["four-models"]()
GOOD = {"arrival_s": 1.5, "height": 512, "width": 512, "steps": 20}


def written(tmp_path, *lines: object) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return str(path)


def test_a_trace_is_read_as_it_was_written(tmp_path):
    lines = (
        TraceLine(arrival_s=0.0, height=512, width=768, steps=4, deadline_s=3.0, priority=2, client_id="me"),
        TraceLine(arrival_s=0.25, height=512, width=512, steps=50, batch=2, on_deadline="expire"),
    )
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(encode_line(line) for line in lines))
    assert read_trace(str(path)) == lines
    assert path.read_text().splitlines()[0].count(":") == 7  # defaults are left out


def test_what_a_service_records_is_what_the_simulator_replays(tmp_path):
    path = written(tmp_path, {**GOOD, "deadline_s": 9, "client_id": "me", "priority": 1})
    (first,) = trace_arrivals(read_trace(path), QWEN, path=path, world_size=4)
    assert (line_of(first.request, arrival_s=1.5, conditions=1),) == tuple(
        msgspec.structs.replace(line, conditions=1) for line in read_trace(path)
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({**GOOD, "arrival_s": -1}, "arrival_s: expected `float` >= 0"),
        ({**GOOD, "arrival_s": 1.0}, "arrival_s: 1 is before the 1.5"),
        ({**GOOD, "deadline_s": 0}, "deadline_s: "),
        ({**GOOD, "steps": 0}, "steps: "),
        ({**GOOD, "steps": 2.5}, "steps: "),
        ({**GOOD, "height": "512"}, "height: "),
        ({**GOOD, "colour": "red"}, "colour"),
        ({**GOOD, "batch": 0}, "batch: "),
        ({**GOOD, "conditions": 3}, "conditions: "),
        ({**GOOD, "on_deadline": "cry"}, "on_deadline: "),
        ({"arrival_s": 2.0}, "height"),
        ("{", "truncated"),
        ("", "truncated"),
        ("[1]", "array"),
    ],
)
def test_a_line_that_is_wrong_is_named_with_its_field(tmp_path, line: object, words: str):
    path = written(tmp_path, GOOD, line)
    with pytest.raises(BadSetting) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert words in str(caught.value)


def test_an_empty_or_missing_trace_is_refused(tmp_path):
    with pytest.raises(BadSetting, match="holds no request"):
        read_trace(written(tmp_path))
    with pytest.raises(BadSetting, match="cannot be read"):
        read_trace(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("costs", "line", "words"),
    [
        (QWEN, {**GOOD, "height": 2048, "width": 2048}, "covers from 1024 to 9216 tokens"),
        (QWEN, {**GOOD, "height": 1000}, "height: 1000 is not a multiple of 16; nearest are 992 and 1008"),
        (QWEN, {**GOOD, "frames": 17}, "frames: Qwen-Image has no 17 frames"),
        (QWEN, {**GOOD, "conditions": 2}, "2 guidance branches"),
        (QWEN, {**GOOD, "model": "flux"}, "model: 'flux' is not one of"),
        (FOUR, GOOD, "model: must be given: one of flux1-dev"),
        (FOUR, {**GOOD, "model": "flux1-dev"}, "covers 4096 tokens"),
        (
            FOUR,
            {**GOOD, "model": "wan", "frames": 80},
            "frames: Wan 2.1 T2V has no 80 frames; nearest are 77 and 81",
        ),
    ],
)
def test_a_request_that_the_costs_do_not_cover_is_named_with_its_line(
    tmp_path, costs, line: dict, words: str
):
    path = written(tmp_path, line)
    with pytest.raises(BadSetting) as caught:
        trace_arrivals(read_trace(path), costs, path=path, world_size=4)
    assert str(caught.value).startswith(f"{path}:1: ")
    assert words in str(caught.value)


def test_a_trace_becomes_requests_with_their_deadlines_and_classes(tmp_path):
    path = written(tmp_path, {**GOOD, "deadline_s": 9, "batch": 3}, {**GOOD, "width": 1024, "client_id": "c"})
    arrivals = trace_arrivals(read_trace(path), QWEN, path=path, world_size=4)
    assert [a.size for a in arrivals] == ["512x512"] * 3 + ["1024x512"]
    assert [a.deadline_s for a in arrivals] == [10.5] * 3 + [None]
    assert len({a.request.id for a in arrivals}) == 4
    assert arrivals[3].request.client_id == "c"
    assert arrivals[0].single_s == pytest.approx(0.055 + 20 * 0.155 + 0.520 * 1024 / 6889)
