"""How a canonical state leaves a rank and enters another one: the same for every family whose state can move."""

from __future__ import annotations

import torch

from epe.messages import Request, StateHeader
from epe.models.contract import State


class Movable:
    """Lets the states of an adapter move, as named tensors through host memory; it has a `_device`."""

    _device: torch.device

    def export_state(self, state: State) -> tuple[StateHeader, tuple[torch.Tensor, ...]]:
        """The state as named tensors in host memory, and its plain fields."""
        names = tuple(state.tensors)
        header = StateHeader(
            request_id=state.request.id,
            step=state.step,
            names=names,
            scalars=state.scalars,
            reuse=state.request.reuse,
        )
        return header, _in_host_memory(tuple(state.tensors[name] for name in names))

    def import_state(self, request: Request, header: StateHeader, tensors: tuple[torch.Tensor, ...]) -> State:
        """The state on this rank's device, with the bits that were exported."""
        if header.request_id != request.id:
            raise ValueError(f"the state of request {header.request_id} is not that of {request.id}")
        named = zip(header.names, tensors, strict=True)
        return State(
            request=request,
            step=header.step,
            tensors={name: tensor.to(self._device) for name, tensor in named},
            scalars=header.scalars,
        )


def _in_host_memory(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Pinned where they come from a GPU: all copies are queued on the current stream, and awaited once."""
    copies = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return tuple(copy.contiguous() for copy in copies)
