"""Settings of torch's matrix products on CUDA, of which some give the rows of one rank the bits that they have among
all, and some do not."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Blas:
    """What the environment of a process says before it begins, and what is set once torch is there."""

    environment: tuple[tuple[str, str], ...] = ()
    split_k: bool = True
    library: str = "default"

    def apply(self) -> None:
        """For this process; raises `RuntimeError` or `TypeError` where this torch has no such setting."""
        if not self.split_k:
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
        torch.backends.cuda.preferred_blas_library(self.library)


_NO_WORKSPACE = (("CUBLAS_WORKSPACE_CONFIG", ":0:0"), ("CUBLASLT_WORKSPACE_SIZE", "0"))
BLAS = {
    "as-it-is": Blas(),
    "no-split-k": Blas(split_k=False, library="cublaslt"),
    "no-workspace": Blas(environment=_NO_WORKSPACE),
    "no-split-k-no-workspace": Blas(environment=_NO_WORKSPACE, split_k=False, library="cublaslt"),
    "cublaslt": Blas(library="cublaslt"),
    "cublas": Blas(environment=(("DISABLE_ADDMM_CUDA_LT", "1"),), library="cublas"),
}
