from __future__ import annotations

import ast
from pathlib import Path

from slipstream import agreed

ROOT = Path(__file__).parents[2]
NAMES = list(agreed.__annotations__)


def test_no_module_defines_what_is_agreed_a_second_time() -> None:
    again = []
    for package in ("slipstream", "draft_service", "verifier_service", "orchestrator"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name == "agreed.py" or "v1" in path.parts:
                continue
            for node in ast.parse(path.read_text()).body:
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                found = {target.id.lstrip("_") for target in targets if isinstance(target, ast.Name)}
                again += [f"{path.relative_to(ROOT)}: {name}" for name in found & set(NAMES)]
    assert not again, f"import it from slipstream.agreed: {again}"


def test_the_protos_state_the_agreed_numbers() -> None:
    protos = {path.name: " ".join(path.read_text().split()) for path in (ROOT / "protos").rglob("*.proto")}
    assert f"among the last {agreed.RULES_PER_HANDLE}" in protos["verifier.proto"]
    assert f"At most {agreed.MAX_ANSWER_BYTES // 2**20} MiB in all" in protos["verifier.proto"]
    assert agreed.PEER_KEY in protos["model.proto"]
