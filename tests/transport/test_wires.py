"""What can be told of lanes over NCCL without a GPU."""

from __future__ import annotations

import os

import pytest

from epe.transport.wires import failures_left_to_lanes

ON_FAILURE = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


def test_torch_does_not_end_a_rank_whose_peer_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ON_FAILURE, raising=False)
    with failures_left_to_lanes():
        assert os.environ[ON_FAILURE] == "0"
    assert ON_FAILURE not in os.environ


def test_what_the_user_has_asked_torch_to_do_then_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ON_FAILURE, "1")
    with failures_left_to_lanes():
        assert os.environ[ON_FAILURE] == "1"
    assert os.environ[ON_FAILURE] == "1"
