"""The commands as a newcomer types them."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slipstream.cli.local import LocalServices, PairSettings, free_address
from slipstream.client import Client, Settings
from slipstream.version import VERSION
from tests.commands import SLIPSTREAM, run, started, wait_until_none_left


@pytest.mark.essential
def test_a_piped_chat_answers_each_line_and_leaves_no_process(tmp_path: Path) -> None:
    expected = tmp_path / "expected.txt"
    expected.write_text("Join two or more pathname components as before")
    ended = subprocess.run(
        [*SLIPSTREAM, "chat", "--local", "--prediction", str(expected)],
        input="What does os.path.join do?\n\nAnd json.dumps?\n",
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"^the same in a browser: http://127\.0\.0\.1:\d+/$", ended.stderr, flags=re.M)
    lines = ended.stdout.splitlines()
    assert len(lines) == 4
    assert "Join two or more pathname components" in lines[0]
    assert "Serialize ``obj`` to a JSON formatted ``str``" in lines[2]
    for line in (lines[1], lines[3]):
        for part in ("tokens/s", "first token", "acceptance", "mean acceptance length"):
            assert part in line
    wait_until_none_left()


PAPER = ["--target", "arithmetic:ends=0", "--draft", "arithmetic:ends=0"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_however_a_chat_ends_no_process_is_left(number: signal.Signals) -> None:
    command = [*SLIPSTREAM, "chat", "--local", *PAPER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as chat:
        assert chat.stdin is not None
        assert chat.stdout is not None
        chat.stdin.write("hello\n")
        chat.stdin.flush()
        assert chat.stdout.readline()
        chat.send_signal(number)
        assert chat.wait(60) != 0
    wait_until_none_left()


def test_up_serves_on_the_addresses_it_is_told_until_a_signal() -> None:
    addresses = [free_address() for _ in range(3)]
    flags = [
        "--orchestrator-address",
        addresses[0],
        "--verifier-address",
        addresses[1],
        "--draft-address",
        addresses[2],
        "--no-http",
    ]
    with subprocess.Popen([*SLIPSTREAM, "up", *PAPER, *flags], stderr=subprocess.PIPE, text=True) as up:
        assert up.stderr is not None
        for line in up.stderr:
            assert "gateway" not in line
            if line.startswith("ready"):
                break
        info = subprocess.run(
            [*SLIPSTREAM, "info", "--address", addresses[0]], capture_output=True, text=True, timeout=240
        )
        assert 'name: "arithmetic:ends=0"' in info.stdout
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 130
    wait_until_none_left()


def three_ports_in_a_row() -> str:
    """Return an address whose port and the next two are free."""
    taken = [free_address() for _ in range(3)]
    while [address_after(taken[0], place) for place in range(3)] != taken:
        taken = [*taken[1:], free_address()]
    return taken[0]


def address_after(address: str, count: int) -> str:
    host, _, port = address.partition(":")
    return f"{host}:{int(port) + count}"


def test_up_accepts_what_its_services_accept(tmp_path: Path) -> None:
    made = run("token", "shop")
    token = made.stderr.rpartition(" ")[2].strip()
    (tmp_path / "access.toml").write_text(made.stdout)
    names = ("orchestrator", "verifier", "draft")
    addresses = {name: free_address() for name in names}
    metrics = three_ports_in_a_row()
    flags = [f"--{name}-address={address}" for name, address in addresses.items()]
    flags += ["--store", str(tmp_path / "kept.db"), "--access", str(tmp_path / "access.toml")]
    flags += ["--kv-memory-mib", "3", "--metrics-address", metrics, "--port", free_address().rpartition(":")[2]]
    with started(["up", *PAPER, *flags]) as (up, shown):
        for place, name in enumerate(names):
            page = f"http://{address_after(metrics, place)}/metrics"
            assert f"{name}  {page}" in shown
            with urllib.request.urlopen(page, timeout=30) as answer:
                assert b"slipstream_" in answer.read()
        assert (tmp_path / "kept.db").exists()
        log = re.search(r"verifier  \S+  log (\S+)", shown)
        assert log and "3 MiB of KV" in Path(log[1]).read_text()
        address = ["--address", addresses["orchestrator"]]
        assert "; put the token into SLIPSTREAM_TOKEN" in run("info", *address).stderr
        assert run("info", *address, SLIPSTREAM_TOKEN=token).returncode == 0
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 130


def test_services_that_start_answer_and_are_left_warn_of_nothing() -> None:
    pair = PairSettings(target="arithmetic:ends=0&forward_ms=5", draft="arithmetic:ends=0")
    with LocalServices(pair) as local:
        with Client(local.orchestrator_address) as client:
            assert client.generate([5, 6, 7], Settings(max_token_count=5)).wait().token_ids
            chat = client.chat()
            next(iter(chat.send("hello", Settings(max_token_count=500, draft_length=0))))
            client.delete_session(chat.session_id)  # while its turn runs
        give_up = time.monotonic() + 30
        while " cancelled, " not in local.services["orchestrator"].log.read_text():
            assert time.monotonic() < give_up
            time.sleep(0.1)
        for service in local.services.values():
            assert not re.findall(r"WARNING|ERROR", service.log.read_text()), service.log.read_text()


def test_up_on_a_busy_port_says_which(paper: LocalServices) -> None:
    flags = ["--verifier-address", paper.verifier_address, "--orchestrator-address", free_address()]
    ended = subprocess.run([*SLIPSTREAM, "up", *PAPER, *flags], capture_output=True, text=True, timeout=240)
    assert ended.returncode == 1
    assert f"cannot listen on {paper.verifier_address}" in ended.stderr.replace("\n", " ")
    wait_until_none_left()


RIGHT = "give a model's directory, a .gguf file, a hub id such as org/name, or 'embedded'"


@pytest.mark.parametrize("option", ["--target", "--draft"])
@pytest.mark.parametrize(
    ("model", "fault"),
    [
        ("/nowhere", f"no such file or directory; {RIGHT}"),
        ("models/nowhere.gguf", f"no such file or directory; {RIGHT}"),
        ("{folder}", f"the directory has no config.json, so it is not a model's; {RIGHT}"),
        (
            "{folder}/ggufs",
            "the directory has no config.json, but .gguf files: give one of them, such as {folder}/ggufs/m.gguf",
        ),
        ("{folder}/model/model.safetensors", "a file of a model: give its directory, {folder}/model"),
        ("{folder}/notes.txt", f"neither a directory nor a .gguf file; {RIGHT}"),
    ],
)
def test_a_wrong_model_is_refused_by_its_option_before_a_service_starts(
    option: str, model: str, fault: str, tmp_path: Path
) -> None:
    for file in ("ggufs/m.gguf", "model/config.json", "model/model.safetensors", "notes.txt"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    model, fault = (text.replace("{folder}", str(tmp_path)) for text in (model, fault))
    other = "--draft" if option == "--target" else "--target"
    ended = run("up", other, "arithmetic:", option, model)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"slipstream: {option} {model}: {fault}\n"
    chat = run("chat", "--local", other, "arithmetic:", option, model)
    assert chat.stderr == ended.stderr


def test_an_address_that_cannot_be_listened_on_is_refused_by_its_option(paper: LocalServices) -> None:
    busy, free = paper.draft_address, [free_address() for _ in range(2)]
    others = ["--orchestrator-address", free[0], "--verifier-address", free[1]]
    for address, fault in (
        (busy, f"cannot listen on {busy}: address already in use; does slipstream serve run already?"),
        (free[0], f"--orchestrator-address and --draft-address are both {free[0]}: give each a port of its own"),
        ("localhost", "--draft-address localhost is not an address: give host:port, such as 127.0.0.1:50051"),
        ("127.0.0.1:x", "--draft-address 127.0.0.1:x is not an address: give host:port, such as 127.0.0.1:50051"),
    ):
        ended = run("up", *PAPER, *others, "--draft-address", address)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert ended.stderr.startswith(f"slipstream: {fault}") and len(ended.stderr.splitlines()) == 1


def test_without_a_server_the_chat_says_where_it_looked() -> None:
    address = free_address()
    ended = subprocess.run(
        [*SLIPSTREAM, "chat", "--address", address], input="x\n", capture_output=True, text=True, timeout=240
    )
    assert ended.returncode == 1
    assert address in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_prediction_that_is_no_text_is_named_before_the_server_is_asked(tmp_path: Path) -> None:
    not_text = tmp_path / "binary"
    not_text.write_bytes(b"ab\xff")
    for path, fault in ((not_text, "is not UTF-8: byte 0xff at position 3"), (tmp_path / "away", "cannot be read")):
        ended = run("chat", "--address", "127.0.0.1:1", "--prediction", str(path))
        assert ended.returncode == 1
        assert ended.stderr.startswith("slipstream: --prediction") and fault in ended.stderr


@pytest.mark.parametrize(
    ("command", "example"),
    [
        ([], "Commands"),
        (["chat"], "slipstream chat --local --show-rounds"),
        (["serve"], "--kv-memory-mib 4096"),
        (["info"], "slipstream info --json"),
        (["top"], "slipstream top --once --interval 10 --json"),
        (["session"], "delete"),
        (["session", "list"], "slipstream session list --json"),
        (["session", "delete"], "slipstream session delete 218bec703ea10c96"),
        (["trace"], "slipstream trace 6a1f0c2e9b7d4835 --every-round"),
    ],
)
def test_help_teaches(command: list[str], example: str) -> None:
    shown = run(*command, "--help")
    assert shown.returncode == 0
    assert run(*command, "-h").stdout == shown.stdout
    assert "Usage" in shown.stdout
    assert example in shown.stdout


@pytest.mark.parametrize("command", [["top"], ["top", "--json"], ["trace", "6a1f0c2e9b7d4835"], ["session", "list"]])
def test_where_no_orchestrator_is_a_command_says_so_and_what_to_do(command: list[str]) -> None:
    address = free_address()
    ended = run(*command, "--address", address)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"slipstream: {address}: ") and "slipstream serve" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@contextmanager
def kept_busy(address: str) -> Iterator[None]:
    """Inside, a turn runs, and after it another."""
    over = threading.Event()

    def generate() -> None:
        with Client(address) as client:
            while not over.is_set():
                client.generate("hello", Settings(max_token_count=4000, draft_length=4)).wait()

    busy = threading.Thread(target=generate)
    busy.start()
    try:
        yield
    finally:
        over.set()
        busy.join()


def test_top_tells_what_happens_meanwhile(paper: LocalServices) -> None:
    with kept_busy(paper.orchestrator_address):
        ended = run("top", "--json", "--interval", "0.5", "--address", paper.orchestrator_address)
        printed = run("top", "--interval", "0.2", "--address", paper.orchestrator_address, COLUMNS="80")
    told = json.loads(ended.stdout)
    assert told["tokens_per_second"] > 0 and told["rounds_per_second"]["by_proposer"]["draft"] > 0
    assert 0.5 < told["acceptance"]["now"] < 1, "the paper draft agrees with four of five"
    assert 1 < told["mean_acceptance_length"]["now"] < 5
    assert len(told["acceptance_per_position"]["now"]) >= 4
    parts = told["milliseconds_a_round"]["now"]
    assert parts["verify"] > 0 and parts["draft_wait"] > 0 and min(parts.values()) >= 0
    assert [(peer["role"], peer["address"], peer["reachable"]) for peer in told["peers"]] == [
        ("verifier", paper.verifier_address, True),
        ("draft", paper.draft_address, True),
    ]
    assert all(peer["steps_per_second"] > 0 for peer in told["peers"])
    assert told["running_turns"][0]["generated_token_count"] > 0
    assert (printed.returncode, printed.stderr) == (0, "")
    for part in (
        paper.orchestrator_address,
        "1 process",
        "tokens/s",
        "acceptance",
        "verify queue",
        "longest turn first",
    ):
        assert part in printed.stdout
    assert "\x1b" not in printed.stdout and max(map(len, printed.stdout.splitlines())) <= 80


@pytest.fixture
def told_session(paper: LocalServices) -> str:
    """A session of two turns, of 40 and of 50 tokens."""
    with Client(paper.orchestrator_address) as client, client.chat() as chat:
        for count in (40, 50):
            chat.send("hello", Settings(max_token_count=count, draft_length=4)).wait()
        return chat.session_id


def test_sessions_are_listed_and_deleted() -> None:
    with LocalServices(PairSettings(*["arithmetic:ends=0"] * 2)) as own:
        address = ["--address", own.orchestrator_address]
        none = run("session", "list", *address)
        assert (none.returncode, none.stdout) == (0, "")
        assert none.stderr == "no sessions; slipstream chat begins one\n"
        assert json.loads(run("session", "list", "--json", *address).stdout) == []
        with Client(own.orchestrator_address) as client:
            first, second = (client.chat() for _ in range(2))
            first.send("hello", Settings(max_token_count=20)).wait()
            listed = json.loads(run("session", "list", "--json", *address).stdout)
            assert [session["session_id"] for session in listed] == [second.session_id, first.session_id]
            assert [session["turn_count"] for session in listed] == [0, 1]
            shown = run("session", "list", *address, COLUMNS="80")
            heading, *rows = shown.stdout.splitlines()
            assert heading.split() == ["session", "turns", "tokens", "created", "last", "active", "expires"]
            assert [row.split()[:2] for row in rows] == [[second.session_id, "0"], [first.session_id, "1"]]
            assert all(re.search(r" \d+ s ago +in \d+ min", row) and len(row) <= 80 for row in rows)
            deleted = run("session", "delete", first.session_id, "0123456789abcdef", second.session_id, *address)
            assert (deleted.returncode, deleted.stdout) == (1, f"deleted {first.session_id}\n")
            assert "0123456789abcdef" in deleted.stderr and "slipstream session list" in deleted.stderr
            assert [left.session_id for left in client.list_sessions()] == [second.session_id]


def test_a_trace_shows_the_rounds_of_the_last_turns(paper: LocalServices, told_session: str) -> None:
    address = ["--address", paper.orchestrator_address]
    last = run("trace", told_session, "--every-round", *address)
    assert last.returncode == 0, last.stderr
    assert f"session {told_session} turn 2" in last.stdout and "50 tokens, acceptance" in last.stdout
    assert "turn 1," not in last.stdout
    rounds = [line.split() for line in last.stdout.splitlines() if re.match(r" +\d+ +\d+\.\d ", line)]
    assert [int(row[0]) for row in rounds] == list(range(1, len(rounds) + 1))
    drafted = [re.search(r" (\d+)/(\d+)/(\d+) ", " ".join(row)) for row in rounds]
    assert sum(int(found[3]) for found in drafted if found) == 50
    assert all(found and int(found[2]) <= int(found[1]) <= 4 for found in drafted)
    assert re.search(r"round \d+ took [\d.]+ ms.*: [\d.]+ ms of it ", last.stdout)
    folded = run("trace", told_session, *address).stdout
    shares = [line.split()[0] for line in folded.splitlines() if re.match(r" +[\d-]+ +\d+\.\d ", line)]
    assert 2 <= len(shares) < len(rounds) and any("-" in share for share in shares)
    ends = [(int(share.split("-")[0]), int(share.split("-")[-1])) for share in shares]
    assert [n for first, last_one in ends for n in range(first, last_one + 1)] == list(range(1, len(rounds) + 1))
    both = run("trace", told_session, "--turns", "2", *address)
    assert both.stdout.index("turn 1,") < both.stdout.index("40 tokens, ") < both.stdout.index("turn 2,")


def test_a_trace_is_a_file_and_json_too(paper: LocalServices, told_session: str, tmp_path: Path) -> None:
    address = ["--address", paper.orchestrator_address]
    file = tmp_path / "turn.html"
    ended = run("trace", told_session, "--turns", "2", "--html", str(file), "--json", *address)
    assert ended.stderr == f"{file} is written\n"
    page = file.read_text(encoding="utf-8")
    assert told_session in page and page.count("<section>") == 2 and page.endswith("</html>\n")
    turns = json.loads(ended.stdout)["turns"]
    assert [turn["turn"] for turn in turns] == [1, 2]
    assert sum(entry["committed_token_count"] for entry in turns[1]["rounds"]) == 50
    for unwritable, reason in ((tmp_path / "no" / "x.html", "No such file"), (Path("/dev/full"), "No space left")):
        failed = run("trace", told_session, "--html", str(unwritable), *address)
        assert (failed.returncode, failed.stdout) == (1, "")
        assert failed.stderr.startswith(f"slipstream: {unwritable} cannot be written: {reason}")


def test_a_trace_of_what_is_not_there_says_why(paper: LocalServices) -> None:
    address = ["--address", paper.orchestrator_address]
    unknown = run("trace", "0123456789abcdef", *address)
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "0123456789abcdef" in unknown.stderr and "slipstream top" in unknown.stderr
    with Client(paper.orchestrator_address) as client, client.chat() as chat:
        silent = run("trace", chat.session_id, *address)
    assert (silent.returncode, silent.stdout) == (1, "")
    assert "no turn whose rounds are kept" in silent.stderr


def test_shown_rounds_change_no_character_and_are_counted_aside(paper: LocalServices) -> None:
    chat = [
        "chat",
        "--max-tokens",
        "60",
        "--temperature",
        "0",
        "--draft-length",
        "4",
        "--address",
        paper.orchestrator_address,
    ]
    plain = run(*chat, text="hello\nand again\n")
    marked = run(*chat, "--show-rounds", text="hello\nand again\n")

    def text_of(output: str) -> list[str]:
        return re.split(r"\[60 tokens, .*\]\n", output)

    assert text_of(marked.stdout) == text_of(plain.stdout) and len(text_of(plain.stdout)) == 3
    assert plain.stderr == ""
    counts = [list(map(int, re.findall(r"\d+", line))) for line in marked.stderr.splitlines()]
    assert [sum(line) for line in counts] == [60, 60]
    for draft, ngram, heads, recovered, bonus, _ in counts:
        assert draft > 0 and recovered > 0 and bonus > 0 and not ngram and not heads
    pattern = r"\[\d+ draft, 0 n-gram, 0 heads, \d+ recovered, \d+ bonus, \d+ plain\]"
    assert re.fullmatch(pattern, marked.stderr.splitlines()[0])


def sessions_of(services: LocalServices) -> int:
    with Client(services.orchestrator_address) as client:
        return len(list(client.list_sessions()))


def test_the_version_is_in_one_place() -> None:
    assert run("version").stdout == run("--version").stdout == f"{VERSION}\n"


def test_info_is_json_too(paper: LocalServices) -> None:
    told = json.loads(run("info", "--json", "--address", paper.orchestrator_address).stdout)
    assert (told["version"], told["target"]["name"]) == (VERSION, "arithmetic:ends=0")
    assert told["verifier_reachable"] and told["draft_reachable"]


BUF = shutil.which("buf", path=str(Path(sys.executable).parent))


def buf_curl(address: str, *arguments: str) -> str:
    assert BUF is not None
    command = [BUF, "curl", "--protocol", "grpc", "--http2-prior-knowledge", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_buf_curl_lists_and_calls_every_service_without_proto_files(paper: LocalServices) -> None:
    owners = {
        paper.orchestrator_address: {"slipstream.v1.OrchestratorService"},
        paper.verifier_address: {"slipstream.wire.v1.ModelService", "slipstream.wire.v1.VerifierService"},
        paper.draft_address: {"slipstream.wire.v1.ModelService", "slipstream.wire.v1.DraftService"},
    }
    for address, own in owners.items():
        listed = set(buf_curl(address, "--list-services", f"http://{address}").split())
        assert own <= listed
        assert {"grpc.health.v1.Health", "grpc.channelz.v1.Channelz"} <= listed
        health = buf_curl(address, "--data", "{}", f"http://{address}/grpc.health.v1.Health/Check")
        assert json.loads(health) == {"status": "SERVING"}
        channels = buf_curl(address, "--data", "{}", f"http://{address}/grpc.channelz.v1.Channelz/GetServers")
        assert json.loads(channels)["server"]
    url = f"http://{paper.orchestrator_address}/slipstream.v1.OrchestratorService/Generate"
    data = '{"text": "hello", "settings": {"maxTokenCount": 4}}'
    events = buf_curl(paper.orchestrator_address, "--data", data, url)
    assert '"finishReason": "FINISH_REASON_MAX_TOKENS"' in events.replace('":"', '": "')
    model = buf_curl(
        paper.draft_address,
        "--data",
        "{}",
        f"http://{paper.draft_address}/slipstream.wire.v1.ModelService/GetModelInfo",
    )
    assert json.loads(model)["model"]["contextLength"] == 8192
