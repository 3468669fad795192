"""CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Matrices that make cuBLAS take its workspace.
_SIDE = 64


class CudaGraphs:
    """The graphs of one GPU, for one thread. Create it in the thread that captures."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None

    def new_pool(self) -> object:
        return torch.cuda.graph_pool_handle()

    def graph(self, pool: object) -> CudaGraph:
        return CudaGraph(pool, device=self.device)

    @contextmanager
    def aside(self) -> Iterator[None]:
        stream = self._capture_stream()
        current = torch.cuda.current_stream(self.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            yield
        current.wait_stream(stream)

    def without_owning(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel() == 0:
            return tensor
        memory = torch.as_tensor(_Memory(tensor.data_ptr(), tensor.nbytes), device=tensor.device)
        return memory.view(tensor.dtype).view(tensor.shape)

    def used_bytes(self) -> int:
        # Not what is used of the GPU: others may load a model on it while a pass is captured.
        return int(torch.cuda.memory_reserved(self.device))

    def let_go(self) -> None:
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()

    def _capture_stream(self) -> torch.cuda.Stream:
        """Graphs are captured on a stream of their own. What libraries keep for a stream is taken here, so that it does
        not lie in the pool of the first graph."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)
            with torch.cuda.stream(self._stream):
                for dtype in (torch.float32, torch.bfloat16, torch.float16):
                    matrix = torch.ones(_SIDE, _SIDE, device=self.device, dtype=dtype)
                    torch.addmm(matrix[0], matrix, matrix)
            self._stream.synchronize()
        return self._stream


class CudaGraph:
    """One graph in a pool."""

    def __init__(self, pool: object, *, device: torch.device) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._pool = pool
        self._device = device

    def begin(self) -> None:
        # Only this thread's calls count: others copy states to the host meanwhile.
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def end(self) -> None:
        self._graph.capture_end()

    def replay(self) -> None:
        self._graph.replay()


class _Memory:
    """Bytes at an address, in the form that torch takes from other libraries (CUDA array interface, version 2)."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 2,
        }
