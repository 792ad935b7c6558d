"""Flags of `slipstream serve`: each is passed on, accepted with a remark, or refused by name."""

from __future__ import annotations

import json
import re
import socket
from typing import Any, get_args

import pytest
from pydantic_settings import BaseSettings
from typer.testing import CliRunner

from draft_service.settings import DraftSettings
from gateway.settings import GatewaySettings
from orchestrator.processes.settings import OrchestratorSettings
from slipstream.cli import flags, stock_engine
from slipstream.cli.__main__ import app
from slipstream.cli.chosen_pair import ChosenPair, chosen_pair, rank_count
from slipstream.cli.flags import Fate, Flag
from slipstream.cli.listen_addresses import metrics_addresses
from slipstream.cli.local import free_address
from slipstream.cli.serve_flags import FLAGS, OURS
from slipstream.cli.service_process import START_SECONDS
from slipstream.cli.vllm_flags import ACCEPTED, REFUSED
from slipstream.hosting.settings import STOCK_ENGINES
from verifier_service.settings import VerifierSettings

SETTINGS: dict[str, type[BaseSettings]] = {
    "orchestrator": OrchestratorSettings,
    "verifier": VerifierSettings,
    "draft": DraftSettings,
    "gateway": GatewaySettings,
}

VLLM = ["--engine", "vllm", "--engine-address", "http://127.0.0.1:1"]


def given(**values: Any) -> dict[str, Any]:
    """Return the settings of a command line that has these flags alone."""
    return {flag.keyword: flag.default if flag.takes else False for flag in FLAGS} | values


def a_value(flag: Flag) -> Any:
    return "some" if flag.takes else True


def test_each_flag_is_there_once_and_says_something() -> None:
    names = [flag.name for flag in FLAGS]
    assert len(names) == len(set(names))
    assert all(flag.says for flag in FLAGS)


@pytest.mark.parametrize("flag", [flag for flag in OURS if flag.settings], ids=lambda flag: flag.name)
def test_a_flag_goes_to_the_services_that_have_its_setting(flag: Flag) -> None:
    for service, kind in SETTINGS.items():
        passed = flags.flags_of(service, FLAGS, given(**{flag.keyword: a_value(flag)}))
        if service in flag.settings:
            assert passed == [f"--{flag.settings[service]}", *(["some"] if flag.takes else [])]
            assert flag.settings[service].replace("-", "_") in kind.model_fields
        else:
            assert not passed


def test_defaults_that_the_help_names_are_the_services_own() -> None:
    for flag in OURS:
        for service, setting in flag.settings.items():
            if named := re.search(r"default: (\w+)$", flag.says):
                assert str(SETTINGS[service].model_fields[setting.replace("-", "_")].default) == named[1]


@pytest.mark.parametrize("flag", ACCEPTED, ids=lambda flag: flag.name)
def test_a_flag_without_effect_is_remarked_on(flag: Flag) -> None:
    values = given(**{flag.keyword: a_value(flag)})
    (remark,) = flags.remarks(FLAGS, values)
    assert remark.startswith(flag.name) and flag.says in remark
    assert flags.refusal(FLAGS, values) == ""
    assert not any(flags.flags_of(service, FLAGS, values) for service in SETTINGS)


@pytest.mark.parametrize("flag", REFUSED, ids=lambda flag: flag.name)
def test_a_refused_flag_is_named_with_what_would_be_right(flag: Flag) -> None:
    ended = CliRunner().invoke(app, ["serve", flag.name, *(["some"] if flag.takes else [])])
    assert ended.exit_code == 1
    shown = f"{flag.name} some" if flag.takes else flag.name
    assert " ".join(ended.stderr.split()) == f"slipstream: {shown}: {flag.says}"
    for value in flag.harmless:
        assert flags.refusal(FLAGS, given(**{flag.keyword: value})) == ""


def test_flags_of_the_table_are_those_of_the_commands_and_help_lists_ours() -> None:
    for command in ("serve", "up"):
        shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).stdout
        for flag in FLAGS:
            assert (f" {flag.name} " in shown) == (flag.fate is Fate.OURS), flag.name


def test_a_flag_that_nothing_knows_is_refused() -> None:
    ended = CliRunner().invoke(app, ["serve", "--no-such-flag"])
    assert ended.exit_code == 2 and "--no-such-flag" in ended.stderr


def test_a_flag_may_have_underscores_as_in_vllm() -> None:
    ended = CliRunner().invoke(app, ["serve", "--pipeline_parallel_size", "2"])
    assert "--pipeline-parallel-size 2: layers are not shared out" in ended.stderr
    assert "--pipeline-parallel-size 2: " in CliRunner().invoke(app, ["serve", "-pp", "2"]).stderr


def test_the_ranks_of_a_target_have_two_names() -> None:
    assert rank_count(given()) is None
    assert rank_count(given(tensor_parallel_size="2")) == "2"
    assert rank_count(given(tensor_parallel_size="2", target_tensor_parallel_size="2")) == "2"
    ended = CliRunner().invoke(app, ["up", "-tp", "4", "--target-tensor-parallel-size", "2"])
    assert "--tensor-parallel-size and --target-tensor-parallel-size differ: give one of them" in ended.stderr


def test_a_share_of_a_gpu_is_remarked_on_where_there_is_none() -> None:
    said = ["serve", "/nowhere", "--gpu-memory-utilization", "0.9"]
    remark = "--gpu-memory-utilization 0.9 has no effect: on the cpu --kv-memory-mib sets"
    assert remark in CliRunner().invoke(app, said).stderr
    assert remark not in CliRunner().invoke(app, [*said, "--device", "cuda"]).stderr


def test_a_services_words_are_told_with_our_flags() -> None:
    told = "gateway: --tls-certificate a and --tls-key b do not belong together; --tls-keys is none"
    assert flags.in_flags_words(told, FLAGS) == told.replace("--tls-certificate", "--ssl-certfile").replace(
        "--tls-key b", "--ssl-keyfile b"
    )
    assert flags.in_flags_words("verifier: --tls-key x", FLAGS) == "verifier: --tls-key x"


def test_metrics_take_ports_in_a_row() -> None:
    assert metrics_addresses("127.0.0.1:9464", ["orchestrator", "verifier"]) == {
        "orchestrator": "127.0.0.1:9464",
        "verifier": "127.0.0.1:9465",
    }
    assert metrics_addresses("", ["orchestrator"]) == {}
    assert all("metrics_address" in SETTINGS[name].model_fields for name in ("orchestrator", "verifier", "draft"))


@pytest.mark.parametrize(
    ("positional", "values", "chosen"),
    [
        (None, {}, ("embedded", "embedded", None)),
        (None, {"draft": ""}, ("embedded", "", None)),
        ("big", {}, ("big", "", None)),
        ("big", {"speculative_model": "small"}, ("big", "small", None)),
        (None, {"model": "big", "draft": "small"}, ("big", "small", None)),
        (None, {"target": "big"}, ("big", "", None)),
        ("big", {"model": "big", "num_speculative_tokens": "4"}, ("big", "", None)),
        ("big", {"num_speculative_tokens": "0"}, ("big", "", "0")),
        ("big", {"speculative_config": '{"model": "small", "num_speculative_tokens": 3}'}, ("big", "small", "3")),
        ("big", {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 3}'}, ("big", "", None)),
        (None, {"speculative_config": '{"method": "ngram"}'}, ("embedded", "", None)),
        ("big", {"speculative_config": '{"method": "draft_model", "model": "small"}'}, ("big", "small", None)),
    ],
)
def test_a_pair_has_many_names(positional: str | None, values: dict[str, str], chosen: tuple[str, str, str]) -> None:
    pair = chosen_pair(positional, given(**values))
    assert (pair.target, pair.draft, pair.draft_length) == chosen


def test_a_length_without_a_draft_has_no_effect_and_says_so() -> None:
    said = "--speculative-config num_speculative_tokens 3 has no effect: the verifier chooses how many hints of n-grams"
    config = '{"method": "ngram", "num_speculative_tokens": 3}'
    assert chosen_pair("big", given(speculative_config=config)).remark.startswith(said)
    assert chosen_pair("big", given(speculative_model="small", num_speculative_tokens="3")).remark == ""
    assert chosen_pair("big", given()).remark == ""


@pytest.mark.parametrize("method", ["medusa", "eagle3"])
def test_heads_have_two_names(method: str) -> None:
    config = json.dumps({"method": method, "model": "heads", "num_speculative_tokens": 3})
    pair = chosen_pair("big", given(speculative_config=config))
    assert (pair.draft, pair.heads, pair.draft_length) == ("", "heads", None)
    assert chosen_pair("big", given(heads="heads")).heads == "heads"
    assert chosen_pair("big", given()).heads is None
    with pytest.raises(ValueError, match="--heads and --speculative-config model differ"):
        chosen_pair("big", given(heads="others", speculative_config=config))


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"model": "other"}, "MODEL and --model differ: give one of them"),
        (
            {"draft": "a", "speculative_config": '{"model": "b"}'},
            "--draft and --speculative-config model differ: give one of them",
        ),
        (
            {"num_speculative_tokens": "3", "speculative_config": '{"num_speculative_tokens": 4}'},
            "--num-speculative-tokens and --speculative-config num_speculative_tokens differ: give one of them",
        ),
        ({"speculative_config": "{"}, "--speculative-config is no JSON: "),
        ({"speculative_config": "[]"}, '--speculative-config must be a JSON object, such as {"model": "DRAFT"}'),
        ({"speculative_config": '{"model": 3}'}, "--speculative-config model must be a model's directory"),
        (
            {"speculative_config": '{"num_speculative_tokens": true}'},
            "--speculative-config num_speculative_tokens must be a whole number from 0",
        ),
        (
            {"speculative_config": '{"method": "mlp_speculator"}'},
            "--speculative-config method must be draft_model, medusa, eagle3, or ngram for no draft, but is 'mlp_speculator'",
        ),
        ({"speculative_config": '{"method": "draft_model"}'}, "--speculative-config needs a model beside method"),
        ({"speculative_config": '{"draft_tensor_parallel_size": 1}'}, "but not draft_tensor_parallel_size"),
    ],
)
def test_a_wrong_pair_is_refused_by_its_flags(values: dict[str, str], fault: str) -> None:
    with pytest.raises(ValueError, match=re.escape(fault)):
        chosen_pair("big", given(**values))


def test_the_flag_of_a_model_is_kept_for_what_is_wrong_with_it() -> None:
    pair = chosen_pair(None, given(target="big", speculative_config='{"model": "small"}'))
    assert pair == ChosenPair("big", "small", None, "--target", "--speculative-config model")


def test_a_server_has_its_own_time_to_load_a_model_and_turns_wait_for_it() -> None:
    served = given(engine="sglang", engine_address="http://127.0.0.1:1")
    assert stock_engine.start_seconds(served) == START_SECONDS + 1800
    assert stock_engine.start_seconds({**served, "engine_start_seconds": "5"}) == START_SECONDS + 5
    assert stock_engine.start_seconds(given(engine="torch")) == START_SECONDS
    told = stock_engine.orchestrator_flags(served)
    assert OrchestratorSettings(_cli_parse_args=["--verifier", "a:1", *told]).verifier_patience_seconds > 30
    assert stock_engine.orchestrator_flags(given()) == []


def test_engines_are_those_of_the_verifier() -> None:
    assert get_args(VerifierSettings.model_fields["engine"].annotation) == stock_engine.ENGINES
    assert stock_engine.STOCK_ENGINES == STOCK_ENGINES


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["/nowhere"], "MODEL /nowhere: no such file or directory"),
        (["--model", "/nowhere"], "--model /nowhere: no such file or directory"),
        (["--speculative-config", '{"model": "/nowhere"}'], "--speculative-config model /nowhere: no such file"),
        (["--dtype", "half"], "--dtype half: give one of auto, bfloat16, float32, float"),
        (["--engine", "tgi"], "--engine tgi: give one of auto, compiled, torch, llamacpp, vllm, sglang"),
        (["--engine", "vllm"], "--engine vllm needs --engine-address: where vllm serves, such as http://"),
        (["--engine-token-file", "key"], "--engine-token-file is for a server: give --engine vllm or"),
        ([*VLLM, "-tp", "2"], "--tensor-parallel-size divides the verifier's own engines: give it to vllm itself"),
        ([*VLLM, "--engine-start-seconds", "inf"], "--engine-start-seconds inf: give a number of seconds from 0"),
        ([*VLLM, "--engine-start-seconds", "soon"], "--engine-start-seconds soon: give a number of seconds"),
        (["--host", "0.0.0.0"], "--host 0.0.0.0:{port} is not on loopback"),
        (["--host", "::"], "--host [::]:{port} is not on loopback"),
        ([], "cannot listen on 127.0.0.1:{port}: address already in use; does slipstream serve run already?"),
        (["--port", "none"], "--port 127.0.0.1:none is not an address"),
    ],
)
def test_what_is_wrong_is_refused_by_its_flag_before_a_service_starts(words: list[str], fault: str) -> None:
    addresses = [
        word for name in ("orchestrator", "verifier", "draft") for word in (f"--{name}-address", free_address())
    ]
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        ended = CliRunner().invoke(app, ["serve", *addresses, "--port", str(port), *words])
    assert ended.exit_code == 1
    assert " ".join(ended.stderr.split()).startswith(f"slipstream: {fault.format(port=port)}")
