"""Settings that cannot be: a service ends with one line that names the flag."""

from __future__ import annotations

import sys

import pytest
from pydantic_settings import BaseSettings

from gateway.settings import GatewaySettings
from orchestrator.processes.settings import OrchestratorSettings
from slipstream.given_settings import read_settings
from verifier_service.settings import VerifierSettings


@pytest.mark.parametrize(
    ("kind", "words", "line"),
    [
        (VerifierSettings, [], "--model is needed; --help explains it"),
        (
            VerifierSettings,
            ["--model", "m", "--kv-memory-mib", "-3"],
            "--kv-memory-mib should be greater than 0, but is '-3'",
        ),
        (
            OrchestratorSettings,
            ["--verifier", ",", "--max-running-turns", "0"],
            "--verifier must name at least one verifier as host:port, but is ','; "
            "--max-running-turns should be greater than or equal to 1, but is '0'",
        ),
        (
            OrchestratorSettings,
            ["--process-count", "2", "--advertise", "x"],
            "--advertise must be host:port, but is 'x'",
        ),
        (
            GatewaySettings,
            ["--log-level", "loud"],
            "--log-level should be 'DEBUG', 'INFO', 'WARNING' or 'ERROR', but is 'loud'",
        ),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_its_flag(
    kind: type[BaseSettings], words: list[str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["service", *words])
    with pytest.raises(SystemExit) as ended:
        read_settings(kind, "service")
    assert ended.value.code == f"service: {line}"
