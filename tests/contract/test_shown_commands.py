"""The blocks of README and guides that no test can run: their commands, flags, targets and extras
exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable, Iterator

import pytest
from pydantic_settings import BaseSettings

from draft_service.settings import DraftSettings
from gateway.settings import GatewaySettings
from orchestrator.processes.settings import OrchestratorSettings
from tests.documents import ROOT, Block, shown_blocks
from tools.reference.commands import all_commands
from training import heads
from verifier_service.settings import VerifierSettings

SERVICES: dict[str, type[BaseSettings]] = {
    "orchestrator": OrchestratorSettings,
    "verifier_service": VerifierSettings,
    "draft_service": DraftSettings,
    "gateway": GatewaySettings,
}
COMMANDS = all_commands()


def commands(code: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell block."""
    joined = code.replace("\\\n", " ")
    for line in joined.splitlines():
        for command in re.split(r"&&", line):
            words = shlex.split(command, comments=True)
            if words:
                yield words


def flags(words: list[str]) -> list[str]:
    """Return the long options among some words."""
    return [word.partition("=")[0] for word in words if word.startswith("--")]


def check_python(words: list[str]) -> None:
    """A service with settings that it has, started by itself or by torchrun."""
    assert words[1:3] == ["-P", "-m"], "without -P Python imports files of the current folder"
    if words[3] == "torch.distributed.run":
        words = [*words[:2], *words[words.index("-m", 3) :]]
    if words[3] == "training.heads":
        heads.parser().parse_args(words[4:])
        return
    known = {f"--{name.replace('_', '-')}" for name in SERVICES[words[3]].model_fields}
    assert set(flags(words[4:])) <= known


def check_slipstream(words: list[str]) -> None:
    """A command with options that it has."""
    command = COMMANDS.get(" ".join(words[1:3])) or COMMANDS[words[1]]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert set(flags(words[2:])) <= known


def check_make(words: list[str]) -> None:
    """Targets of the Makefile, and variables that it reads."""
    makefile = (ROOT / "Makefile").read_text()
    for word in words[1:]:
        name, is_variable, _ = word.partition("=")
        assert re.search(rf"\$[({{]{name}\b" if is_variable else rf"^{name}:", makefile, re.M), word


def check_pip(words: list[str]) -> None:
    """Extras of the package, and folders of other packages."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in words[2:]:
        if word.startswith("./"):
            assert (ROOT / word / "pyproject.toml").is_file()
            continue
        found = re.fullmatch(r"(\.|slipstream-llm)(\[(?P<extras>[\w,-]+)\])?", word)
        assert found is not None
        assert set((found["extras"] or "").split(",")) - {""} <= set(project["optional-dependencies"])


def check_cd(words: list[str]) -> None:
    """A folder of the repository."""
    assert (ROOT / words[1]).is_dir()


def check_nothing(words: list[str]) -> None:
    """Tools of other languages, which tests/contract/test_other_languages.py runs."""


CHECKS: dict[str, Callable[[list[str]], None]] = {
    "python": check_python,
    "slipstream": check_slipstream,
    "make": check_make,
    "pip": check_pip,
    "cd": check_cd,
    "npm": check_nothing,
    "node": check_nothing,
}


@pytest.mark.parametrize("block", shown_blocks("console"), ids=lambda block: block.place)
def test_commands_that_are_only_shown_exist_with_their_flags(block: Block) -> None:
    for words in commands(block.code):
        CHECKS[words[0]](words)


@pytest.mark.parametrize("block", shown_blocks("toml"), ids=lambda block: block.place)
def test_a_settings_file_that_is_shown_is_well_formed(block: Block) -> None:
    assert tomllib.loads(block.code)


@pytest.mark.parametrize(
    "wrong",
    [
        "python -P -m orchestrator --verifer a:1",
        "python -m orchestrator --verifier a:1",
        "slipstream chat --adress a:1",
        "slipstream session list --adress a:1",
        "slipstream session destroy 1",
        "make chatt",
        "make chat MODLE=smollm2",
        "pip install '.[modles]'",
        "pip install ./slipstream/nowhere",
        "cd nowhere",
    ],
)
def test_a_command_that_does_not_exist_is_found(wrong: str) -> None:
    (words,) = commands(wrong)
    with pytest.raises((AssertionError, KeyError)):
        CHECKS[words[0]](words)
