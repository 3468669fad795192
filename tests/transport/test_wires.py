"""What can be told of wires without ranks: of NCCL's without a GPU, and of those that break."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch

from epe.errors import Gone
from epe.messages import Lane
from epe.transport.exchange import Bytes, GroupExchange
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


class BrokenWires:
    """Gloo's, whose peer was killed: what it says where a send begins, and not where one is waited for."""

    closed = False

    def start(self, outgoing: Bytes, incoming: Bytes) -> Callable[[], None]:
        raise RuntimeError(
            "[/__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1. "
            "This is typically caused by a remote worker crashing. Check the logs before reporting an error. GLHF!"
        )

    def close(self) -> None:
        pass


def test_a_killed_peer_is_told_without_the_places_in_the_sources_of_gloo() -> None:
    """`epe bench` with a killed rank ended in `pair.cc:553 ... GLHF!`."""
    exchange = GroupExchange(Lane(ranks=(0, 1)), position=0, wires=BrokenWires())
    with pytest.raises(Gone) as caught:
        exchange.send(torch.zeros(1), target=1)
    told = str(caught.value)
    assert (
        told == "send on lane (0, 1) (incarnation 0) at position 0: Connection closed by peer [127.0.0.1]:1"
    )
