"""Names that the pages mention in code spans exist: flags, metrics, error reasons and files."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from draft_service.settings import DraftSettings
from gateway.settings import GatewaySettings
from orchestrator.processes.settings import OrchestratorSettings
from slipstream.reasons import Code, Reason
from slipstream.telemetry import instruments
from tests.documents import ROOT
from tools.reference.commands import all_commands
from verifier_service.settings import VerifierSettings

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "docs" / "guides").glob("*.md"),
    ROOT / "docs" / "benchmarks" / "README.md",
]
"""Pages that tell the present. History and decisions keep the names of their dates."""

OF_OTHER_PROGRAMS = {"--strict", "--engine", "--help", "--outtype", "--report", "--write", "--check", "--quick"}
OF_OTHER_PROGRAMS |= {"--enable-deterministic-inference", "--model-path", "--tp"}  # SGLang's

SPAN = re.compile(r"`([^`\n]+)`")


def spans(page: Path) -> Iterator[str]:
    """Yield the code spans of a page's prose."""
    yield from SPAN.findall(re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S))


def known_flags() -> set[str]:
    """Return every flag of the services and of the commands."""
    settings = (OrchestratorSettings, VerifierSettings, DraftSettings, GatewaySettings)
    services = {f"--{name.replace('_', '-')}" for kind in settings for name in kind.model_fields}
    return services | {
        name for command in all_commands().values() for parameter in command.params for name in parameter.opts
    }


def known_metrics() -> set[str]:
    """Return every metric's name, as Prometheus reads it and without its end."""
    listed = (*instruments.OF_THE_ORCHESTRATOR, *instruments.OF_A_MODEL_SERVICE)
    return {name for one in listed for name in (one.exposed_name, f"slipstream_{one.name}")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_flags_in_prose_exist(page: Path) -> None:
    mentioned = {flag for span in spans(page) for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", span)}
    assert mentioned - known_flags() - OF_OTHER_PROGRAMS == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_metrics_in_prose_exist(page: Path) -> None:
    mentioned = {name for span in spans(page) for name in re.findall(r"\bslipstream_[a-z_]+", span)}
    assert mentioned - known_metrics() == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_reasons_in_prose_exist(page: Path) -> None:
    known = {str(reason) for reason in Reason} | set(Code.__members__)
    variables = re.compile(
        r"SLIPSTREAM_|OTEL_|OPENAI_|ANTHROPIC_|HF_|PIP_|GRPC_|OMP_|WORLD_SIZE|SSL_CERT_|^HTTPS?_PROXY$|_VERSION$|^README|^RESULT"
    )
    mentioned = {span for span in spans(page) if re.fullmatch(r"[A-Z]+(_[A-Z]+)+", span) and not variables.search(span)}
    assert mentioned - known == set()


def test_files_in_prose_exist() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    missing = [
        f"{page.relative_to(ROOT)}: {span}"
        for page in PAGES
        for span in spans(page)
        if re.fullmatch(r"[\w./-]+/[\w.-]+\.(py|toml|yaml|proto|binpb|md)", span)
        and not any(name == span or name.endswith(f"/{span}") for name in tracked)
    ]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_prose_exist(page: Path) -> None:
    commands = {command.split()[0] for command in all_commands()} | {"--version"}
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    for span in spans(page):
        program, _, rest = span.partition(" ")
        if program in ("slipstream", "make") and rest:
            assert rest.split()[0] in (targets if program == "make" else commands), span


def test_panels_in_the_runbook_exist() -> None:
    dashboard = (ROOT / "deploy" / "grafana" / "slipstream.json").read_text()
    named = re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", (ROOT / "docs" / "alerts.md").read_text())
    missing = [name for name in named if f'"title": "{" ".join(name.split())}"' not in dashboard]
    assert named
    assert not missing


def test_a_name_that_does_not_exist_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Use `--verifer` and `slipstream_numbers`; see `NO_SUCH_REASON` and `slipstream talk`.\n")
    for check in (
        test_flags_in_prose_exist,
        test_metrics_in_prose_exist,
        test_reasons_in_prose_exist,
        test_commands_in_prose_exist,
    ):
        with pytest.raises(AssertionError):
            check(page)
