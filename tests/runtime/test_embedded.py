from __future__ import annotations

import asyncio
import gc
from threading import current_thread

import numpy as np
import pytest
import structlog
import torch
from structlog.testing import capture_logs

from epe import EmbeddedDiffusionRuntime
from epe.config.request import resolve_request
from epe.errors import BadRequest, BadSetting, Cancelled
from epe.messages import FreeCache, OutputFormat, Stage, TaylorSeer
from epe.planning.costs import CostKey
from epe.runtime import embedded


def stage(model_path, *, ranks: int = 1) -> dict:
    return {
        "name": "embedded",
        "factory": "zimage",
        "gpu": list(range(ranks)),
        "device": "cpu",
        "parallelism": {"scheduler": {"warmup_resolutions": [128], "warmup_steps": 3}},
        "factory_args": {
            "model_path": str(model_path),
            "default_width": 128,
            "default_height": 128,
            "num_steps": 3,
        },
    }


@pytest.fixture
async def runtime(tiny_zimage):
    async with EmbeddedDiffusionRuntime.from_stage(stage(tiny_zimage)) as runtime:
        yield runtime


async def test_a_picture_is_drawn_in_the_hosts_own_loop(runtime):
    ticks = 0

    async def host() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.002)
            ticks += 1

    beside = asyncio.create_task(host())
    result = await runtime.generate("a red cube", num_steps=12)
    beside.cancel()
    assert np.asarray(result.pixels).shape == (1, 128, 128, 3)
    assert ticks > 3
    assert result.account.total_s > 0


async def test_no_tensor_of_a_request_waits_for_a_collection_of_garbage(runtime):
    """A rank collects it seldom: what lies in cycles would take memory of the device for minutes."""
    await runtime.generate("first")
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await runtime.generate("second")
        gc.collect()
        assert not any(isinstance(each, torch.Tensor) for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def test_a_plan_of_reuse_is_made_beside_the_hosts_loop(runtime, monkeypatch):
    """That of 1,000 steps stopped it for half a second."""
    threads = []

    def resolve(*given, **named):
        threads.append(current_thread())
        return resolve_request(*given, **named)

    monkeypatch.setattr(embedded, "resolve_request", resolve)
    result = await runtime.generate("a ring", num_steps=9, cache=TaylorSeer())
    assert result.account.cache.reused_steps > 0
    with pytest.raises(BadRequest, match="freecache is not supported with this model"):
        await runtime.generate("a ring", num_steps=9, cache=FreeCache())
    assert len(threads) == 2
    assert current_thread() not in threads


async def test_eight_requests_with_different_step_counts_are_each_right(runtime):
    together = await asyncio.gather(*(runtime.generate("a ball", seed=s, num_steps=s + 1) for s in range(8)))
    for seed, result in enumerate(together):
        alone = await runtime.generate("a ball", seed=seed, num_steps=seed + 1)
        assert np.array_equal(np.asarray(alone.pixels), np.asarray(result.pixels))


async def after_its_cancellation(runtime, drawing):
    drawing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await drawing
    for _ in range(200):
        if not (status := await runtime.status()).num_running:
            break
        await asyncio.sleep(0.02)
    return status


async def test_a_caller_that_is_cancelled_cancels_its_request(runtime):
    drawing = asyncio.create_task(runtime.generate("a cone", num_steps=500))
    await asyncio.sleep(0.2)
    status = await after_its_cancellation(runtime, drawing)
    assert status.num_running == status.num_waiting == 0


async def test_what_is_kept_of_a_request_is_told_while_it_runs_and_gone_when_it_is_cancelled(runtime):
    drawing = asyncio.create_task(runtime.generate("a cone", num_steps=500, cache=TaylorSeer()))
    for _ in range(500):
        if (status := await runtime.status()).kept_bytes:
            break
        await asyncio.sleep(0.02)
    # Of 16 channels at an eighth of the size, in 32 bits: of a straight line one at first, then two.
    velocity_bytes = 16 * 16 * 16 * 4
    assert status.kept_bytes in (velocity_bytes, 2 * velocity_bytes)
    status = await after_its_cancellation(runtime, drawing)
    assert (status.num_running, status.kept_bytes) == (0, 0)


async def test_a_cancelled_handle_says_so(runtime):
    from epe.config.request import resolve_request

    request = resolve_request(runtime.stage.family, prompt="a", num_steps=500, height=128, width=128)
    handle = await runtime.submit(request)
    handle.cancel()
    with pytest.raises(Cancelled, match="cancelled"):
        await handle.result()


async def test_progress_only_grows_and_reaches_the_end(runtime):
    seen = []
    await runtime.generate("a star", num_steps=5, watcher=seen.append)
    steps = [progress.step for progress in seen]
    assert steps == sorted(steps)
    assert steps[-1] == 5
    assert seen[-1].stage == "decode"


async def test_a_prompt_that_is_too_long_is_the_callers_error(runtime):
    with pytest.raises(BadRequest, match="at most"):
        await runtime.generate("very " * 3000)
    assert (await runtime.generate("short")).pixels is not None


async def test_a_file_comes_out_in_the_format_that_was_asked_for(runtime):
    result = await runtime.generate("a ring", output_format=OutputFormat.JPEG)
    assert result.media_type == "image/jpeg"
    assert result.data[:3] == b"\xff\xd8\xff"


def test_more_ranks_than_the_host_has_processes_is_an_error(tiny_zimage):
    with pytest.raises(BadSetting, match="one process"):
        EmbeddedDiffusionRuntime.from_stage(stage(tiny_zimage, ranks=2))


async def test_a_gpu_that_is_not_there_is_a_setting_that_is_wrong(tiny_zimage, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadSetting, match="device: cuda was asked for, but torch sees no GPU"):
        async with EmbeddedDiffusionRuntime.from_stage(stage(tiny_zimage) | {"device": "cuda"}):
            pass


async def test_a_runtime_can_be_opened_again_after_it_was_closed(tiny_zimage):
    pictures = []
    for _ in range(2):
        async with EmbeddedDiffusionRuntime.from_stage(stage(tiny_zimage)) as runtime:
            pictures.append(np.asarray((await runtime.generate("a cube")).pixels))
    assert np.array_equal(*pictures)


async def test_an_orderly_end_is_not_called_a_failure(tiny_zimage):
    structlog.configure()  # a host with settings of its own hears everything
    with capture_logs() as lines:
        async with EmbeddedDiffusionRuntime.from_stage(stage(tiny_zimage)) as runtime:
            await runtime.generate("a cube")
    phases = [line["phase"] for line in lines if line["event"] == "service.changed_phase"]
    assert phases == ["warming", "running", "draining"]


async def test_requests_of_one_size_are_drawn_as_batches_and_each_as_it_is_alone(tiny_zimage):
    settings = stage(tiny_zimage)
    settings["parallelism"]["scheduler"] |= {"max_batch": 4, "online_calibration": False}
    async with EmbeddedDiffusionRuntime.from_stage(settings) as runtime:
        sizes = batches_of(runtime)
        let_batches_pay(runtime)
        wanted = [{"seed": s, "num_steps": 6 + s, "guidance_scale": 3.0 + s} for s in range(4)]
        together = await asyncio.gather(*(runtime.generate("a ball", **each) for each in wanted))
        assert max(sizes) == 4
        sizes.clear()
        for each, result in zip(wanted, together, strict=True):
            alone = np.asarray((await runtime.generate("a ball", **each)).pixels).astype(int)
            # Latents differ in their last bits, and so a value may be rounded to its neighbour.
            assert abs(alone - np.asarray(result.pixels)).max() <= 1
            assert alone.std() > 10
        assert sizes == []


def batches_of(runtime) -> list[int]:
    """How many requests stepped together, each time that several did."""
    sizes: list[int] = []
    adapter = runtime._rank._device.adapter
    step_together = adapter.step_together

    def counted(states, exchange, split):
        if len(states) > 1:
            sizes.append(len(states))
        return step_together(states, exchange, split)

    adapter.step_together = counted
    return sizes


def let_batches_pay(runtime) -> None:
    """Costs of which the plan follows, instead of measured ones."""
    costs = runtime._leader.planner.costs
    for size in (1, 2, 3, 4):
        key = CostKey(stage=Stage.DENOISE, tokens=64, batch=size, conditions=2)
        costs.enter(key, 0.02 * (1 + 0.1 * (size - 1)))


async def test_what_one_request_asks_for_does_not_reach_the_next(runtime):
    plain = await runtime.generate("a cube", seed=4, num_steps=2)
    await runtime.generate(
        "a cube", seed=4, num_steps=3, negative_prompt="a ball", guidance_scale=9.0, height=64, width=96
    )
    again = await runtime.generate("a cube", seed=4, num_steps=2)
    assert np.array_equal(np.asarray(plain.pixels), np.asarray(again.pixels))
