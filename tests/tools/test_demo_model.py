"""The demo model's world, grammar, training format and evaluation: what its figures rest on."""

from __future__ import annotations

import json
import sys
from itertools import pairwise, product
from pathlib import Path
from random import Random

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from demo_model.captions import describe, full_caption, known_words, with_unknown_words  # noqa: E402
from demo_model.evaluate import own_accuracy, prompts, score  # noqa: E402
from demo_model.model import (  # noqa: E402
    SHIFT,
    Sizes,
    build_scheduler,
    build_text_encoder,
    build_transformer,
    build_vae,
    caption_features,
    use_real_rotations,
    velocity,
)
from demo_model.oracle import calibrate, find_things  # noqa: E402
from demo_model.renderer import render  # noqa: E402
from demo_model.scenes import COLOURS, KINDS, TABLES, draw_scene, is_held_out  # noqa: E402
from demo_model.tokens import build_tokenizer, padded, prompts_of, token_lists  # noqa: E402

SHIPPED = ROOT / "epe" / "models" / "demo"
TINY = Sizes(
    dim=48, num_layers=2, num_heads=2, text_dim=32, text_layers=3, vae_channels=(8, 8, 8, 8), vae_groups=4
)
CAPTIONS = ["a red cube on a white table", ""]


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="module")
def networks(tokenizer):
    """A tiny transformer and text encoder in which no parameter is zero."""
    torch.manual_seed(0)
    text_encoder = build_text_encoder(TINY, vocabulary_size=len(tokenizer)).eval()
    transformer = build_transformer(TINY).eval()
    for parameter in transformer.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)
    return transformer, text_encoder


def training_twin(transformer):
    twin = build_transformer(TINY).eval()
    twin.load_state_dict(transformer.state_dict())
    use_real_rotations(twin)
    return twin


def test_the_same_seed_draws_the_same_picture_alone_and_in_a_batch():
    def scenes():
        rng = Random(5)
        return [draw_scene(rng, split="train") for _ in range(4)]

    together = render(scenes(), height=64, width=96)
    assert torch.equal(together, render(scenes(), height=64, width=96))
    alone = torch.cat([render([scene], height=64, width=96) for scene in scenes()])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=0)


def test_pictures_of_one_scene_agree_at_two_sizes():
    scene = [draw_scene(Random(2), split="train")]
    large = torch.nn.functional.avg_pool2d(render(scene, height=128, width=128), 2)
    assert (large - render(scene, height=64, width=64)).abs().mean() < 0.01


def test_training_never_sees_a_held_out_combination_and_evaluation_sees_nothing_else():
    rng = Random(0)
    for split, expected in (("train", False), ("held_out", True)):
        scenes = [draw_scene(rng, split=split) for _ in range(500)]
        found = {
            is_held_out(kind=t.kind, colour=t.colour, table=scene.table)
            for scene in scenes
            for t in scene.things
        }
        assert found == {expected}
    assert all(
        is_held_out(kind=t.kind, colour=t.colour, table=scene.table)
        for scene, _ in prompts(50)
        for t in scene.things
    )


def test_every_pair_of_what_is_held_out_is_seen_in_training():
    seen = [c for c in product(KINDS, COLOURS, TABLES) if c[1] != c[2]]
    seen = [(k, c, t) for k, c, t in seen if not is_held_out(kind=k, colour=c, table=t)]
    assert {(k, c) for k, c, _ in seen} == set(product(KINDS, COLOURS))
    assert {(k, t) for k, _, t in seen} == set(product(KINDS, TABLES))
    assert {(c, t) for _, c, t in seen} == {(c, t) for c, t in product(COLOURS, TABLES) if c != t}


def test_captions_are_made_of_known_words_and_say_what_the_scene_holds():
    rng, known = Random(1), set(known_words())
    for _ in range(500):
        scene = draw_scene(rng, split="train")
        assert set(describe(scene, rng).split()) <= known
        said = full_caption(scene, rng).replace("gray", "grey").split()
        assert set(said) <= known | {"grey"}
        assert all(thing.colour in said for thing in scene.things)
        assert scene.table in said
    assert any(set(with_unknown_words("a red cube", rng).split()) - known for _ in range(20))


def test_each_known_word_is_one_token_and_an_unknown_one_is_not(tokenizer):
    one_word = len(token_lists(tokenizer, ["a"])[0])
    for word in known_words():
        assert len(token_lists(tokenizer, [word])[0]) == one_word, word
    assert len(token_lists(tokenizer, ["dragon"])[0]) > one_word


def test_training_tokens_are_the_tokens_of_the_chat_template(tokenizer):
    rng = Random(3)
    captions = [with_unknown_words(describe(draw_scene(rng, split="train"), rng), rng) for _ in range(50)]
    captions.append("")
    assert token_lists(tokenizer, captions) == tokenizer(prompts_of(tokenizer, captions))["input_ids"]


def test_case_and_punctuation_do_not_make_words_unknown(tokenizer):
    plain, dressed = prompts_of(
        tokenizer, ["a red cube on a light blue table", "A Red cube on a light-blue table."]
    )
    assert plain == dressed


@pytest.mark.parametrize(("height", "width", "length"), [(16, 16, 32), (24, 24, 32), (16, 24, 64)])
def test_the_training_forward_gives_the_numbers_of_the_models_own(tokenizer, networks, height, width, length):
    transformer, text_encoder = networks
    captions = CAPTIONS if length == 32 else ["a red cube " * 14, "a blue ball on the left " * 7]
    ids, is_word = padded(token_lists(tokenizer, captions), length=length)
    latents, times = torch.randn(2, 16, height, width), torch.tensor([0.3, 0.8])
    with torch.no_grad():
        features = caption_features(text_encoder, ids)
        ours = velocity(training_twin(transformer), latents, times, features, is_word)
        lists = list(latents.unsqueeze(2)), times, [f[m] for f, m in zip(features, is_word, strict=True)]
        theirs = torch.stack(transformer(*lists, return_dict=False)[0]).squeeze(2)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_the_plain_pipeline_samples_what_training_learned(tokenizer, networks):
    from diffusers import ZImagePipeline

    transformer, text_encoder = networks
    pipeline = ZImagePipeline(
        scheduler=build_scheduler(),
        vae=build_vae(TINY).eval(),
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        transformer=transformer,
    )
    pipeline.set_progress_bar_config(disable=True)
    start = torch.randn(1, 16, 16, 16, generator=torch.Generator().manual_seed(0))
    common = {"height": 128, "width": 128, "output_type": "latent", "latents": start.clone()}
    theirs = pipeline(CAPTIONS[0], num_inference_steps=3, guidance_scale=2.0, **common).images
    ids, is_word = padded(token_lists(tokenizer, CAPTIONS), length=32)
    twin, ours = training_twin(transformer), start
    plain = torch.tensor([1.0, 2 / 3, 1 / 3, 0.0])
    sigmas = SHIFT * plain / (1 + (SHIFT - 1) * plain)
    with torch.no_grad():
        features = caption_features(text_encoder, ids)
        for now, after in pairwise(sigmas):
            out = velocity(twin, ours.expand(2, -1, -1, -1), (1 - now).expand(2), features, is_word)
            data_minus_noise = out[:1] + 2.0 * (out[:1] - out[1:])
            ours = ours - (after - now) * data_minus_noise
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_the_oracle_reads_perfect_renders():
    oracle = calibrate(num_scenes=110, side=96, num_epochs=40)
    own = own_accuracy(oracle, num=40, side=96)
    assert own.number >= 0.97
    assert own.place >= 0.97
    assert own.colour >= 0.95
    assert own.kind >= 0.85


def test_the_oracle_finds_nothing_in_an_empty_room_and_everything_wrong_in_a_wrong_picture():
    assert find_things(torch.full((3, 96, 96), 0.7)) == []
    oracle = calibrate(num_scenes=40, side=96, num_epochs=1)
    scene = draw_scene(Random(4), split="held_out", num_things=2)
    assert score(oracle, [scene], [[]]).two_things_all_right == 0.0


@pytest.mark.skipif(not SHIPPED.exists(), reason="the trained model is not in this tree")
def test_the_shipped_model_fits_its_limit_and_has_the_words_and_tokens_of_its_training(tokenizer):
    from transformers import AutoTokenizer

    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) <= 48_000_000
    assert json.loads((SHIPPED / "words.json").read_text())["known_words"] == list(known_words())
    shipped = AutoTokenizer.from_pretrained(SHIPPED / "tokenizer")
    assert shipped.get_vocab() == tokenizer.get_vocab()
    assert shipped(prompts_of(shipped, CAPTIONS))["input_ids"] == token_lists(tokenizer, CAPTIONS)
