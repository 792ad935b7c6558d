"""What processes import as they start, and when they collect garbage."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "numpy", "pydantic", "opentelemetry")

_RUN = """
import gc, os, runpy, sys
import {module} as module

def say(*_):
    print(imported, gc.isenabled(), gc.get_freeze_count() > 10_000, flush=True)
    os._exit(0)

module.{patched} = say
imported = None
enable = gc.enable

def noticed():
    global imported
    imported = gc.isenabled()
    enable()

gc.enable = noticed
sys.argv = {argv}
runpy.run_module(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("module", "patched", "argv"),
    [
        ("orchestrator.processes.process", "run_process", ["orchestrator"]),
        (
            "slipstream.hosting.process",
            "_load",
            ["verifier_service", "--model", "arithmetic:", "--address", "127.0.0.1:0"],
        ),
        (
            "slipstream.hosting.process",
            "_load",
            ["draft_service", "--model", "arithmetic:", "--address", "127.0.0.1:0"],
        ),
    ],
    ids=["orchestrator", "verifier", "draft"],
)
def test_the_collector_rests_until_all_is_imported(module: str, patched: str, argv: list[str]) -> None:
    script = _RUN.format(module=module, patched=patched, argv=argv)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert ran.stdout.split() == ["False", "True", "True"], ran.stderr


def test_importing_the_client_imports_nothing_heavy() -> None:
    code = f"import sys, slipstream.client; print([name for name in {HEAVY} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout.strip() == "[]"
