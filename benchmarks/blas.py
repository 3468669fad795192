"""Settings of torch's matrix products on CUDA, of which some give the rows of one rank the bits that they have among
all, and some do not."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from epe.parallel.products import keep_products_whole


@dataclass(frozen=True, kw_only=True)
class Blas:
    """What the environment of a process says before it begins, and what is set once torch is there."""

    environment: tuple[tuple[str, str], ...] = ()
    library: str = "default"
    exact: bool = False

    def apply(self) -> None:
        """For this process."""
        torch.backends.cuda.preferred_blas_library(self.library)
        if self.exact:
            keep_products_whole()


BLAS = {
    "exact": Blas(exact=True),
    "as-it-is": Blas(),
    "cublaslt": Blas(library="cublaslt"),
    "no-workspace": Blas(environment=(("CUBLAS_WORKSPACE_CONFIG", ":0:0"), ("CUBLASLT_WORKSPACE_SIZE", "0"))),
}
