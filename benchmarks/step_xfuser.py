"""xfuser in `benchmarks.h200_steps`, where it is installed: on one GPU it compiles a transformer as a whole."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.step_entrants import Bench, Diffusers


class Xfuser(Diffusers):
    """FLUX.1 as its wrapper has it, which leaves the model to diffusers; Qwen-Image and Wan as its runners have them,
    with transformers of its own. Raises ValueError for other families."""

    def __init__(self, bench: Bench) -> None:
        if bench.name not in ("flux1", *_OWN):
            raise ValueError(f"xfuser does not draw {bench.name} here; it draws flux1, {', '.join(_OWN)}")
        super().__init__(bench)
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        # Of its own: another case may draw beside this one.
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        import xfuser

        config, _ = xfuser.xFuserArgs(model=bench.name, use_torch_compile=True).create_config()
        if bench.name == "flux1":
            xfuser.xFuserFluxPipeline(self._pipeline, config)
        else:
            self._run(config, bench)

    def _run(self, config: Any, bench: Bench) -> None:
        """Its runners' constructors read checkpoints: here the model that is there turns into theirs."""
        from xfuser.core.distributed import initialize_runtime_state

        initialize_runtime_state(self._pipeline, config)
        transformer = self._pipeline.transformer
        _OWN[bench.name](transformer)
        self._pipeline.transformer = torch.compile(transformer, mode="default", backend=bench.backend)


def _qwen_image(transformer: Any) -> None:
    from xfuser.model_executor.models.transformers import transformer_qwen as module

    transformer.__class__ = module.xFuserQwenImageTransformerWrapper
    for block in transformer.transformer_blocks:
        block.attn.processor = module.xFuserQwenDoubleStreamAttnProcessor()


def _wan(transformer: Any) -> None:
    from xfuser.model_executor.models.transformers import transformer_wan as module

    transformer.__class__ = module.xFuserWanTransformer3DWrapper
    transformer.attention_kwargs = None
    heads = torch.arange(transformer.config.num_attention_heads, device=transformer.device)
    for block in transformer.blocks:
        block.attn1.processor = module.xFuserWanAttnProcessor(attention_kwargs=None)
        block.attn1.register_buffer("head_perm", heads.clone(), persistent=False)
        block.attn2.processor = module.xFuserWanAttnProcessor(
            use_ulysses_parallel_attention=False, is_cross_attention=True
        )


# Families for which it has a transformer of its own that takes the calls of this diffusers.
_OWN: dict[str, Callable[[Any], None]] = {"qwen-image": _qwen_image, "wan": _wan}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port
