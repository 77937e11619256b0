"""`--help` fits a screen, names everything that there is, and its examples work."""

import contextlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from scope_torch.cli import COMMANDS, MODULE_OF, main

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES, MOST_LETTERS = 42, 88
NEEDS = {"check", "recheck", "serve", "import", "record_table"}  # a key, a file, an endpoint


@pytest.mark.parametrize("command", ["", *COMMANDS, *MODULE_OF])
def test_help_fits_a_screen(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["scope-torch", *command.split(), "--help"])
    monkeypatch.setenv("COLUMNS", "80")
    with contextlib.suppress(SystemExit):
        main()
    told = capsys.readouterr()
    lines = (told.out or told.err).splitlines()
    assert 4 <= len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= MOST_LETTERS
    assert not command or "example: scope-torch" in "\n".join(lines)


@pytest.mark.slow
def test_help_names_every_command_and_every_choice(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["scope-torch", "--help"])
    with contextlib.suppress(SystemExit):
        main()
    words = set(re.findall(r"[\w-]+", capsys.readouterr().out))
    assert {"run", *COMMANDS} <= words
    for path in (ROOT / "conf").glob("*/*.yaml"):
        assert path.stem in words, f"{path.parent.name}={path.stem}"


def examples():
    text = (ROOT / "conf" / "config.yaml").read_text()
    return re.findall(r"^        (scope-torch .*)$", text, re.MULTILINE)


@pytest.mark.slow
def test_the_examples_work(cli, tmp_path, monkeypatch, capsys):
    """As printed, in their order; a search with a smaller budget."""
    assert len(examples()) == 3
    for example in examples():
        arguments = shlex.split(example)[1:]
        small = [] if arguments[0] == "report" else ["budget_usd=0.0005"]
        status, _, err = cli(*arguments, *small)
        assert (status, err) == (0, "")
    assert list(tmp_path.rglob("methods.csv"))


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - NEEDS))
@pytest.mark.slow
def test_the_examples_of_commands_work(command, cli, monkeypatch, capsys):
    status, out, err = cli(command, "--help")
    assert status == 0
    (example,) = re.findall(r"example: scope-torch (.*)", " ".join((out + err).split()))
    arguments = shlex.split(example)
    task = "data_imputation" if command == "evaluate" else "synthetic"
    status, _, err = cli(f"task={task}", "budget_usd=0.002", "seed=0")
    assert (status, err) == (0, "")
    if command == "replay":
        monkeypatch.setenv("WANDB_MODE", "offline")
    status, out, err = cli(*arguments)
    assert status == 0, err


@pytest.mark.slow
def test_the_shell_completes_keys_and_choices(tmp_path):
    """As docs/reference/command-line.md says, for the installed command."""
    folder = Path(sys.executable).parent
    if not (folder / "scope-torch").exists():
        pytest.skip("scope-torch is not installed beside this Python")
    script = (
        'eval "$(scope-torch -sc install=bash)"; complete -p scope-torch;'
        'COMP_LINE="scope-torch method=scope_j" scope-torch -sc query=bash'
    )
    env = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    command = ["bash", "-c", script]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=True
    )
    assert "hydra_bash_completion" in done.stdout
    assert "method=scope_joint" in done.stdout


def test_a_mistyped_command_is_guessed(cli):
    status, _, err = cli("wacth", "outputs")
    assert status == 2
    assert "did you mean 'watch'?" in err
