"""A command that waits names what it waits for, and how far it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

from slipstream.cli.local import free_address
from slipstream.hosting.tokenizer_files import embedded_directory
from tests.fake_hub import FakeHub


def test_serve_tells_how_much_of_a_model_has_come_from_the_hub(tmp_path: Path) -> None:
    hub = FakeHub(embedded_directory("target"), weights_byte_count=60_000_000)
    addresses = [f"--{name}-address={free_address()}" for name in ("orchestrator", "verifier", "draft")]
    command = [
        sys.executable,
        "-m",
        "slipstream.cli",
        "serve",
        "org/name",
        "--no-http",
        "--draft",
        "arithmetic:",
        *addresses,
    ]
    with hub.serving():
        known = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **known}) as up:
            assert up.stderr is not None
            limit = threading.Timer(60, up.kill)
            limit.start()
            shown = []
            for line in up.stderr:
                shown.append(line)
                if found := re.fullmatch(r"verifier: downloading org/name: (\d+\.\d) of 60\.0 MB\n", line):
                    if not hub.let_go.is_set():
                        assert 0 < float(found[1]) <= 30, "half of it is held back"
                    hub.let_go.set()
            limit.cancel()
    assert up.returncode == 1 and hub.let_go.is_set(), shown
    assert shown[-1].startswith("slipstream: verifier: model.safetensors of org/name is truncated"), "it was zeros"
    assert "verifier: loading the model\n" in shown
