"""Flags that `slipstream up` passes on: the services that get one have it."""

from __future__ import annotations

import typer.main
from pydantic_settings import BaseSettings

from draft_service.settings import DraftSettings
from orchestrator.processes.settings import OrchestratorSettings
from slipstream.cli.__main__ import app
from slipstream.cli.service_flags import TAKEN_BY, ServiceFlags, metrics_addresses
from verifier_service.settings import VerifierSettings

SETTINGS: dict[str, type[BaseSettings]] = {
    "orchestrator": OrchestratorSettings,
    "verifier": VerifierSettings,
    "draft": DraftSettings,
}


def test_each_setting_belongs_to_the_services_that_get_it_and_to_no_other() -> None:
    for name, services in TAKEN_BY.items():
        assert {service for service, kind in SETTINGS.items() if name in kind.model_fields} == set(services)
    assert all("metrics_address" in kind.model_fields for kind in SETTINGS.values())


def test_defaults_that_the_help_names_are_the_services_own() -> None:
    up = typer.main.get_command(app).commands["up"]  # type: ignore[attr-defined]
    (kv_memory,) = (option for option in up.params if option.name == "kv_memory_mib")
    for kind in (VerifierSettings, DraftSettings):
        assert f"default: {kind.model_fields['kv_memory_mib'].default}" in kv_memory.help


def test_a_service_gets_its_flags_and_an_unset_one_is_not_passed_on() -> None:
    metrics = metrics_addresses("127.0.0.1:9464", SETTINGS)
    flags = ServiceFlags(True, {"store": "memory", "access": "", "kv_memory_mib": "64"}, metrics)
    assert flags.of("orchestrator") == ["--insecure", "--store", "memory", "--metrics-address", "127.0.0.1:9464"]
    assert flags.of("verifier") == ["--insecure", "--kv-memory-mib", "64", "--metrics-address", "127.0.0.1:9465"]
    assert flags.of("draft")[-1] == "127.0.0.1:9466"
    assert ServiceFlags(False, {"store": "", "access": "", "kv_memory_mib": ""}, {}).of("draft") == []
