from __future__ import annotations

from epe.cli.generate import build_options
from epe.config.demo import demo_stage, model_folder, unknown_words, unknown_words_warning
from epe.config.load import build_stage


def test_the_demo_model_comes_with_the_package():
    folder = model_folder("demo")
    assert (folder / "model_index.json").is_file()
    assert sum(file.stat().st_size for file in folder.rglob("*.safetensors")) <= 48_000_000


def test_a_prompt_alone_is_enough_to_draw():
    options = build_options(["--prompt", "A red cube, on a white table!"], env={})
    assert options.model_path == "demo"
    assert (options.request.height, options.request.width) == (256, 256)
    assert options.output == "outputs/a-red-cube-on-a-white-table.png"


def test_words_that_the_demo_model_does_not_know_are_named():
    assert unknown_words("demo", "A red zebra, on a white table. zebra") == ("zebra",)
    assert "'zebra'" in unknown_words_warning("demo", "a zebra")
    assert unknown_words_warning("demo", "a red cube on a white table") is None
    assert unknown_words_warning("demo", "") is None


def test_a_checkpoint_without_a_list_of_words_knows_all(tmp_path):
    assert unknown_words(str(tmp_path), "anything") == ()


def test_without_a_stage_file_two_ranks_of_the_cpu_serve_the_demo_model():
    stage = build_stage(demo_stage(0, num_ranks=2))
    assert stage.world_size == 2
    assert stage.device == "cpu"
    assert stage.request_defaults.height == 256
    assert stage.service.port == 18200
    assert stage.service.host == "127.0.0.1"


def test_with_gpus_each_is_a_rank():
    assert build_stage(demo_stage(4, num_ranks=2)).gpu == (0, 1, 2, 3)
