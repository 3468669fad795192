from __future__ import annotations

import threading

import pytest
import torch

from epe.errors import Gone
from epe.execution.states import States
from epe.models.contract import State
from tests.execution.counting import request


def state(step: int, name: str = "a") -> State:
    return State(request=request(name), step=step, tensors={"latents": torch.zeros(1)})


def test_a_state_is_taken_at_exactly_its_step():
    states = States()
    states.put(state(3))
    assert states.take("a", 3).step == 3
    with pytest.raises(Gone, match="held: step 3"):
        states.take("a", 4)
    with pytest.raises(Gone, match="held: nothing"):
        states.take("b", 0)


def test_whoever_asks_early_is_served_when_the_step_is_reached():
    states = States()
    coming = states.when_at("a", 5)
    states.put(state(4))
    assert not coming.done()
    states.put(state(5))
    assert coming.result(0).step == 5


def test_a_step_that_has_passed_is_gone():
    states = States()
    states.put(state(5))
    with pytest.raises(Gone, match="moved on"):
        states.when_at("a", 4).result(0)


def test_those_who_wait_for_a_request_that_ends_hear_why():
    states = States()
    coming = states.when_at("a", 5)
    states.end("a", "latents hold NaN")
    with pytest.raises(Gone, match="NaN"):
        coming.result(0)
    with pytest.raises(Gone, match="NaN"):
        states.when_at("a", 6).result(0)


def test_a_rank_that_let_a_request_go_can_be_given_it_again():
    states = States()
    states.put(state(1))
    states.end("a", "it was let go")
    states.put(state(2))
    assert states.when_at("a", 2).result(0).step == 2


def test_whoever_asks_before_a_state_comes_back_to_a_rank_waits_for_it():
    states = States()
    states.end("a", "it was let go")
    states.expect("a")
    coming = states.when_at("a", 2)
    states.put(state(2))
    assert coming.result(0).step == 2


def test_nothing_is_kept_of_many_ended_requests():
    states = States()
    for index in range(3 * States.MAX_ENDED):
        states.put(state(0, name=str(index)))
        states.end(str(index), "done")
    assert len(states) == 0
    assert len(states._ended) == States.MAX_ENDED


def test_a_question_and_an_answer_at_the_same_moment_never_miss_each_other():
    for _ in range(300):
        states = States()
        barrier = threading.Barrier(2)

        def put(states: States = states, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            states.put(state(1))

        thread = threading.Thread(target=put)
        thread.start()
        barrier.wait()
        assert states.when_at("a", 1).result(5).step == 1
        thread.join()
