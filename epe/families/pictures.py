"""The families that draw pictures: data alone."""

from __future__ import annotations

from epe.families.family import AttentionModules, Defaults, Family

ZIMAGE = Family(
    name="zimage",
    width_keys=("dim",),
    attention_modules=(
        AttentionModules(kind="self", count_keys=("n_refiner_layers",)),
        AttentionModules(kind="joint", count_keys=("n_layers",), gives_text=True),
    ),
    title="Z-Image",
    makes="picture",
    pipeline="ZImagePipeline",
    available=True,
    axes=("tp", "cfg", "cp"),
    side_multiple=16,
    patch=16,
    parallel_vae=False,
    heads_key="n_heads",
    defaults=Defaults(height=1024, width=1024, num_steps=50, guidance_scale=5.0, seed=7),
)

FLUX1 = Family(
    name="flux1",
    attention_modules=(
        AttentionModules(kind="joint", count_keys=("num_layers", "num_single_layers"), gives_text=True),
    ),
    title="FLUX.1",
    makes="picture",
    pipeline="FluxPipeline",
    available=True,
    axes=("cp",),
    side_multiple=16,
    patch=16,
    # The scale is an input of the model.
    branches_above=None,
    negative_prompt=False,
    # 512 tokens of 4096 values in bfloat16.
    text_bytes=2 * 512 * 4096,
    defaults=Defaults(height=1024, width=1024, num_steps=28, guidance_scale=3.5, seed=7),
)

FLUX2_KLEIN = Family(
    name="flux2-klein",
    title="FLUX.2-klein",
    makes="picture",
    pipeline="Flux2KleinPipeline",
    available=True,
    axes=("cp",),
    side_multiple=16,
    patch=16,
    # Distilled checkpoints want 1, which is no guidance; base ones about 4, away from the empty prompt.
    branches_above=1.0,
    negative_prompt=False,
    latent_channels=32,
    vae_halo=False,
    # 512 tokens of 7680 values in bfloat16.
    text_bytes=2 * 512 * 7680,
    defaults=Defaults(height=512, width=512, num_steps=4, guidance_scale=1.0, seed=7),
)

QWEN_IMAGE = Family(
    name="qwen-image",
    attention_modules=(AttentionModules(kind="joint", count_keys=("num_layers",), gives_text=True),),
    title="Qwen-Image",
    makes="picture",
    pipeline="QwenImagePipeline",
    available=True,
    axes=("cfg", "cp"),
    side_multiple=16,
    patch=16,
    # Its schedule ends at a given sigma; stretched over one step it divides by nothing.
    min_steps=2,
    guidance="true_cfg_scale",
    branches_above=1.0,
    max_text_tokens=1024,
    # 512 tokens of 3584 values in bfloat16.
    text_bytes=2 * 512 * 3584,
    # The reference's four steps are kept as its default; a real picture wants about 50.
    defaults=Defaults(height=512, width=512, num_steps=4, guidance_scale=4.0, seed=7, negative_prompt=" "),
)

LLADA_IMAGE = Family(
    name="llada-image",
    title="LLaDA-Image",
    makes="picture",
    pipeline="LLaDAImagePipeline",
    available=False,
    planned_axes=("cfg", "cp"),
    side_multiple=16,
    patch=16,
    parallel_vae=False,
    max_text_tokens=2048,
    # One latent pixel is a 2 x 2 patch of the 32-channel latent.
    latent_channels=128,
    latent_scale=16,
    defaults=Defaults(
        height=1024, width=1024, num_steps=50, guidance_scale=4.5, seed=42, max_sequence_length=2048
    ),
)

HUNYUAN_IMAGE3 = Family(
    name="hunyuan-image3",
    title="HunyuanImage-3.0",
    makes="picture",
    pipeline="HunyuanImage3ForCausalMM",
    available=False,
    planned_axes=("tp", "cfg", "cp", "ep"),
    side_multiple=64,
    patch=16,
    migratable=False,
    min_side=512,
    max_side=2048,
    max_text_tokens=12800,
    latent_channels=32,
    latent_scale=16,
    defaults=Defaults(height=1024, width=1024, num_steps=50, guidance_scale=5.0, seed=0),
)
