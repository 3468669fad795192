from __future__ import annotations

import subprocess
import sys

import pytest

from epe import __version__
from epe.cli.main import COMMANDS, main, run

HEAVY = ("torch", "diffusers", "transformers", "aiohttp", "structlog", "numpy", "PIL")

LOADED_BY = """
import sys
from epe.cli.main import main
try:
    main({argv!r})
except SystemExit:
    pass
print("loaded:", *(name for name in {names!r} if name in sys.modules), file=sys.stderr)
"""


def loaded_by(argv: list[str], names: tuple[str, ...]) -> list[str]:
    """Which of these modules a command imports, in a process of its own."""
    code = LOADED_BY.format(argv=argv, names=names)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stderr.strip().splitlines()[-1].split()[1:]


@pytest.mark.parametrize("argv", [["--help"], ["--version"], [], ["nonsense"]])
def test_help_loads_argparse_alone(argv):
    assert loaded_by(argv, (*HEAVY, "msgspec", "yaml", "asyncio")) == []


@pytest.mark.parametrize(
    "argv",
    [
        ["generate", "--model", "zimage", "--help"],
        ["serve", "--help"],
        ["models", "list"],
        ["config", "show", "--stage-config", "nowhere.yaml"],
        ["generate", "--model", "zimage", "--prompt", "a", "--output", "x.png", "--height", "1000"],
    ],
)
def test_flags_are_checked_before_anything_heavy_loads(argv):
    assert loaded_by(argv, HEAVY) == []


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "epe", "--version"], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, f"epe {__version__}")


def test_bad_input_is_one_sentence_and_exit_code_2():
    done = subprocess.run(
        [sys.executable, "-m", "epe", "config", "show", "--stage-config", "nowhere.yaml"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "epe: there is no file nowhere.yaml\n"


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)


def test_without_a_command_help_is_shown(capsys):
    assert run([]) == 0
    assert "commands:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["frobnicate"], "invalid choice: 'frobnicate'"),
        (["--frobnicate"], "--frobnicate is not known"),
        (["serve", "--stage-confg", "x"], "--stage-confg is not known; did you mean --stage-config?"),
        (["serve", "--stage-config", "x", "--prot", "1"], "--prot is not known; did you mean --port?"),
        (["serve", "--stage-config", "x", "--port", "http"], "--port: 'http' is not a whole number"),
        (["config", "hide", "--stage-config", "x"], "invalid choice: 'hide'"),
        (["models"], "ACTION must be given"),
        (
            ["models", "make-tiny", "llada-image", "x"],
            "'llada-image' is not yet available; available are zimage",
        ),
        (["models", "make-tiny", "wam", "x"], "did you mean wan?"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(argv, words, capsys):
    assert run(argv) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("epe: ")
    assert said.err.count("\n") == 1
    assert words in said.err
