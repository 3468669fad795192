from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import structlog

from epe.messages import Stage
from epe.telemetry.log import configure, configure_unless_done, get_logger, make_scribe

early = get_logger("early")


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    out, err = capsys.readouterr()
    assert out == ""
    return [json.loads(line) for line in err.splitlines()]


def test_a_line_is_one_json_object_with_event_room_level_and_values(capsys):
    configure(json=True)
    get_logger("planning").info("request.admitted", request_id="a", predicted_s=1.5, ranks=(0, 1))
    (line,) = lines_of(capsys)
    assert line.pop("timestamp")
    assert line == {
        "event": "request.admitted",
        "level": "info",
        "room": "planning",
        "request_id": "a",
        "predicted_s": 1.5,
        "ranks": [0, 1],
    }


def test_a_stream_that_is_no_terminal_gets_json(capsys):
    configure()
    get_logger("server").info("service.started")
    assert lines_of(capsys)[0]["event"] == "service.started"


def test_people_get_a_readable_line(capsys):
    configure(json=False)
    get_logger("server").info("service.started", port=18200)
    out, err = capsys.readouterr()
    assert out == ""
    assert "service.started" in err
    assert "port=18200" in err


def test_a_logger_made_before_the_settings_follows_them(capsys):
    configure(json=True)
    early.warning("rank.lost", rank=3)
    assert lines_of(capsys)[0]["rank"] == 3


def test_lines_below_the_level_are_left_out(capsys):
    configure(json=True, level="warning")
    log = get_logger("server")
    log.info("request.admitted")
    log.warning("rank.lost")
    assert [line["event"] for line in lines_of(capsys)] == ["rank.lost"]


def test_every_line_names_its_node(capsys):
    configure(json=True, node="r2")
    early.info("lease.begun")
    assert lines_of(capsys)[0]["node"] == "r2"


def test_values_that_json_does_not_know_do_not_break_the_line(capsys):
    configure(json=True)
    get_logger("server").info("thing.happened", stage=Stage.DECODE, thing=object, text="a\nb")
    (line,) = lines_of(capsys)
    assert (line["stage"], line["text"]) == ("decode", "a\nb")
    assert "object" in str(line["thing"])


def test_a_traceback_carries_no_local_variables(capsys):
    configure(json=True)
    secret = "a prompt " * 2

    def fail(prompt: str) -> None:
        raise ValueError("no")

    try:
        fail(secret)
    except ValueError:
        get_logger("server").exception("http.crashed")
    (line,) = lines_of(capsys)
    assert "ValueError: no" in str(line["exception"])
    assert secret not in json.dumps(line)


def test_a_host_without_settings_hears_of_warnings_on_stderr_alone(capsys):
    configure_unless_done(level="warning")
    log = get_logger("planner")
    log.info("request.admitted")
    log.warning("rank.lost")
    out, err = capsys.readouterr()
    assert out == ""
    assert "rank.lost" in err
    assert "request.admitted" not in err


def test_the_settings_of_a_host_are_left_alone():
    structlog.configure(processors=[structlog.processors.KeyValueRenderer()])
    before = structlog.get_config()
    configure_unless_done(level="warning")
    assert structlog.get_config() == before


def test_that_lines_were_lost_is_a_line_like_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It had no time, which whoever gathers lines goes by."""
    with (tmp_path / "log").open("w") as place, open("/dev/full", "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        scribe = make_scribe("r1")
        scribe.write("nobody reads this\n")
        scribe.drain(within_s=10)
        os.dup2(place.fileno(), stream.fileno())
        scribe.write("there is room\n")
        scribe.drain(within_s=10)
        told, _ = (tmp_path / "log").read_text().splitlines()
    line = json.loads(told)
    assert line.pop("timestamp")
    assert line == {
        "event": "log.lines_lost",
        "level": "warning",
        "room": "telemetry",
        "node": "r1",
        "num_lost": 1,
    }
