"""The canonical states that a rank holds, and those who wait for one to reach a step."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from concurrent.futures import Future

from epe.errors import Gone
from epe.models.contract import State


class States:
    """Written by the device thread, read by the event loop; a state is never changed in place."""

    # How many ended requests are remembered, so that a late question is answered at once.
    MAX_ENDED = 4096

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, State] = {}
        self._waiting: dict[str, list[tuple[int, Future[State]]]] = defaultdict(list)
        self._ended: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def expect(self, request_id: str) -> None:
        """A rank that let a request go is given it again: whoever asks from now on waits for the new state."""
        with self._lock:
            self._ended.pop(request_id, None)

    def put(self, state: State) -> None:
        """Keep a state (instead of the earlier one of the request) and serve those who wait for it."""
        request_id = state.request.id
        with self._lock:
            self._ended.pop(request_id, None)
            self._states[request_id] = state
            waiting = self._waiting.pop(request_id, [])
            later = [(step, future) for step, future in waiting if step != state.step]
            if later:
                self._waiting[request_id] = later
        for step, future in waiting:
            if step == state.step:
                future.set_result(state)

    def take(self, request_id: str, step: int) -> State:
        """The state at the boundary before `step`; raises `Gone` if this rank does not hold it."""
        state = self._states.get(request_id)
        if state is None or state.step != step:
            held = "nothing" if state is None else f"step {state.step}"
            raise Gone(f"state of request {request_id} at step {step} is not here (held: {held})")
        return state

    def when_at(self, request_id: str, step: int) -> Future[State]:
        """The state once it has reached `step`; `Gone` when it never will."""
        future: Future[State] = Future()
        with self._lock:
            state = self._states.get(request_id)
            if state is not None and state.step == step:
                future.set_result(state)
            elif request_id in self._ended or (state is not None and state.step > step):
                reason = self._ended.get(request_id, "it has moved on")
                future.set_exception(Gone(f"state of request {request_id} at step {step}: {reason}"))
            else:
                self._waiting[request_id].append((step, future))
        return future

    def end(self, request_id: str, reason: str) -> None:
        """Free a request's state; whoever waits for it hears why it will not come."""
        self._end(request_id, reason, keep=False)

    def stay(self, request_id: str, reason: str) -> None:
        """Keep a request's state, from which it goes on elsewhere; whoever waits for a later one hears why it will
        not come."""
        self._end(request_id, reason, keep=True)

    def _end(self, request_id: str, reason: str, *, keep: bool) -> None:
        with self._lock:
            if not keep:
                self._states.pop(request_id, None)
            waiting = self._waiting.pop(request_id, [])
            self._ended[request_id] = reason
            while len(self._ended) > self.MAX_ENDED:
                self._ended.popitem(last=False)
        for step, future in waiting:
            future.set_exception(Gone(f"state of request {request_id} at step {step}: {reason}"))
