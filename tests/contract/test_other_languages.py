"""The protos folder is all that a client in another language needs: programs made from a copy of it
hold real sessions."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from slipstream.cli.local import LocalServices
from slipstream.reasons import Code, Reason
from tests.documented_reasons import call_reasons, turn_reasons
from tests.system.conftest import PAPER_PAIR

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "other_languages"
DEBIAN_PACKAGES = "g++ cmake pkg-config libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc"

SESSION = """
import grpc, sys
from slipstream.v1 import orchestrator_pb2 as pb, orchestrator_pb2_grpc
assert pb.__file__.startswith(sys.argv[1]), pb.__file__
with grpc.insecure_channel(sys.argv[2]) as channel:
    stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
    session = stub.CreateSession(pb.CreateSessionRequest(settings={"max_token_count": 9})).session.id
    events = [response.event for response in stub.SendMessage(pb.SendMessageRequest(session_id=session, content="x"))]
    print(sum(len(event.delta.token_ids) for event in events), events[-1].finished.usage.generated_token_count)
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    # A forward takes a while: a turn must not end before its client can cancel it.
    pair = dataclasses.replace(PAPER_PAIR, target=f"{PAPER_PAIR.target}&forward_ms=15")
    with LocalServices(pair) as local:
        yield local.orchestrator_address


@pytest.fixture
def protos(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "protos", tmp_path / "protos"))


def run(
    command: Sequence[str | Path], cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=400)


def check(command: Sequence[str | Path], cwd: Path, env: dict[str, str] | None = None) -> str:
    ended = run(command, cwd, env)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def require(*tools: str, because: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed: {because}")


def test_a_python_client_generated_from_a_copy_of_the_folder_alone_holds_a_session(
    protos: Path, tmp_path: Path, address: str
) -> None:
    out = tmp_path / "generated"
    for package in (out / "slipstream", out / "slipstream" / "v1"):
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
    files = [str(path.relative_to(protos)) for path in (protos / "slipstream" / "v1").glob("*.proto")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={out}", f"--grpc_python_out={out}"]
    check([*command, *files], protos)
    shown = check([sys.executable, "-c", SESSION, str(out), address], tmp_path, env={"PYTHONPATH": str(out)})
    assert shown.split() == ["9", "9"]


def test_every_file_of_the_folder_compiles_with_nothing_beside_it(protos: Path, tmp_path: Path) -> None:
    files = sorted(str(path.relative_to(protos)) for path in protos.rglob("*.proto"))
    assert any(name.startswith("google/rpc") for name in files)
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--descriptor_set_out={tmp_path / 'all'}"]
    check([*command, "--include_imports", *files], protos)


@pytest.mark.parametrize("language", ["java", "csharp", "ruby", "php", "cpp"])
def test_protoc_generates_code_for_other_languages(protos: Path, tmp_path: Path, language: str) -> None:
    require("protoc", because="apt-get install protobuf-compiler")
    out = tmp_path / language
    out.mkdir()
    files = sorted(str(path.relative_to(protos)) for path in protos.rglob("*.proto"))
    by_namespace = ["--csharp_opt=base_namespace="] if language == "csharp" else []  # two files are status.proto
    check(["protoc", "-I.", f"--{language}_out={out}", *by_namespace, *files], protos)
    assert len([path for path in out.rglob("*") if path.is_file()]) >= len(files)


def spans(text: str) -> set[str]:
    """Return the reasons in code spans."""
    return set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+|OVERLOADED)`", text))


def test_the_guide_names_each_reason_that_passes() -> None:
    guide = (ROOT / "docs" / "guides" / "other-languages.md").read_text()
    table, _, rest = guide.partition("| status | reasons |")[2].partition("\n\n")
    passing = {str(reason) for reason in Reason if reason.code in (Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED)}
    of_calls = call_reasons() & passing
    assert {"NOT_READY", "OVERLOADED"} <= of_calls
    assert spans(table) == of_calls | {"SESSION_BUSY"}  # it passes too, with the turn
    assert spans(rest.partition("\n\n")[0]) == turn_reasons() & passing | {"TURN_CUT"}


def test_a_node_client_watches_on_after_a_lost_connection_and_has_every_token_once(
    protos: Path, tmp_path: Path, address: str
) -> None:
    require("node", "npm", because="JavaScript's client is not tried")
    program = Path(shutil.copytree(EXAMPLES / "node", tmp_path / "node", ignore=shutil.ignore_patterns("node_modules")))
    installed = run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], program)
    if installed.returncode != 0:
        pytest.skip(f"npm cannot fetch grpc-js here: {installed.stderr.strip().splitlines()[0]}")
    shown = check(["node", "chat.js", address, str(protos)], program)
    assert "ok: 1500 tokens, each once" in shown


@pytest.mark.timeout(420)
def test_a_cpp_client_watches_on_after_a_lost_connection_and_has_every_token_once(
    protos: Path, tmp_path: Path, address: str
) -> None:
    require("cmake", "g++", "pkg-config", "protoc", "grpc_cpp_plugin", because=f"apt-get install {DEBIAN_PACKAGES}")
    if run(["pkg-config", "--exists", "grpc++"], tmp_path).returncode != 0:
        pytest.skip(f"C++'s grpc is not installed: apt-get install {DEBIAN_PACKAGES}")
    build = tmp_path / "build"
    check(["cmake", "-S", EXAMPLES / "cpp", "-B", build, f"-DPROTOS={protos}"], tmp_path)
    check(["cmake", "--build", build, "--parallel", "2"], tmp_path)
    assert "ok: 1500 tokens, each once" in check([build / "chat", address], tmp_path)
