"""The families that draw videos: data alone."""

from __future__ import annotations

from epe.families.family import AttentionModules, Defaults, Family, FrameRule

WAN = Family(
    name="wan",
    attention_modules=(
        AttentionModules(kind="self", count_keys=("num_layers",)),
        AttentionModules(kind="cross", count_keys=("num_layers",)),
    ),
    title="Wan 2.1 T2V",
    makes="video",
    pipeline="WanPipeline",
    available=True,
    axes=("tp", "cfg", "cp"),
    side_multiple=16,
    patch=16,
    branches_above=1.0,
    flow_shift=True,
    frames=FrameRule(base=1, step=4, latent_base=1, latent_step=1),
    # The rotary table covers 1024 latent frames.
    max_frames=4093,
    # UniPC of order 2 keeps two predictions and the last sample.
    num_histories=3,
    heads_key="num_attention_heads",
    # 512 tokens of 4096 values in bfloat16.
    text_bytes=2 * 512 * 4096,
    # The reference's four steps are kept as its default; a real video wants about 50.
    defaults=Defaults(height=480, width=832, num_frames=17, num_steps=4, guidance_scale=6.0, seed=42),
)

MINIMAX_H3 = Family(
    name="minimax-h3",
    title="MiniMax-H3",
    makes="video",
    pipeline="MiniMaxH3ModularPipeline",
    available=False,
    planned_axes=("tp", "cp"),
    side_multiple=32,
    patch=32,
    guidance=None,
    branches_above=None,
    negative_prompt=False,
    max_side=1344,
    latent_channels=24,
    latent_scale=16,
    # 5 to 15 seconds at 24 frames a second, in the VAE's groups of 17 frames.
    frames=FrameRule(base=5, step=17, latent_base=2, latent_step=5),
    max_frames=362,
    # Distilled: one branch a step.
    defaults=Defaults(
        height=768, width=1344, num_frames=124, fps=24, num_steps=20, guidance_scale=0.0, seed=0
    ),
)
