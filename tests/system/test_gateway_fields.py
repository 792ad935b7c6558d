"""Each row of the table of the gateway's fields holds, in each object of each request: a supported
field takes a right value and refuses a wrong one, a refused field is named.

docs/reference/http.md is made from the same models.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.fields import Fields
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.hosting.tokenizer_files import embedded_directory
from tests.chat_templates import read_tools
from tests.gateway_examples import EXAMPLES, PLACES, Example, names_of, request_models
from tests.gateway_process import Answer, GatewayProcess, gateway_process

SUPPORTED = [(model, name) for model, examples in EXAMPLES.items() for name in examples]
REFUSED = [(model, name) for model in PLACES for name in model.REFUSED]

pytestmark = pytest.mark.essential


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway before the embedded target, with a chat template that reads tools."""
    target = tmp_path_factory.mktemp("model") / "embedded-target"
    shutil.copytree(embedded_directory("target"), target)
    read_tools(target)
    pair = PairSettings(target=str(target), draft="")
    with LocalServices(pair) as local, gateway_process(local.orchestrator_address) as running:
        yield running


def name_of(value: Any) -> str | None:
    return value.__name__ if isinstance(value, type) else None


def sent(gateway: GatewayProcess, model: type[Fields], fields: dict[str, Any]) -> Answer:
    place = PLACES[model]
    path = place.path(gateway) if callable(place.path) else place.path
    return gateway.send(path, place.body(fields))


def test_each_object_of_each_request_and_each_of_its_fields_has_an_example() -> None:
    models = request_models()
    assert models.keys() == PLACES.keys() == EXAMPLES.keys()
    for model in models:
        assert EXAMPLES[model].keys() == names_of(model), model


@pytest.mark.parametrize(("model", "name"), SUPPORTED, ids=name_of)
def test_a_supported_field_takes_a_right_value(gateway: GatewayProcess, model: type[Fields], name: str) -> None:
    example: Example = EXAMPLES[model][name]
    right = example.right(gateway) if callable(example.right) else example.right
    answer = sent(gateway, model, {**example.beside, name: right})
    assert answer.status == 200, answer.body


@pytest.mark.parametrize(("model", "name"), SUPPORTED, ids=name_of)
def test_a_supported_field_is_named_if_its_value_is_wrong(
    gateway: GatewayProcess, model: type[Fields], name: str
) -> None:
    example: Example = EXAMPLES[model][name]
    answer = sent(gateway, model, {**example.beside, name: example.wrong})
    assert answer.status == (404 if name == "model" else 400), answer.body
    assert answer.error["param"].startswith(PLACES[model].prefix + name), answer.body


@pytest.mark.parametrize(("model", "name"), REFUSED, ids=name_of)
def test_a_refused_field_is_named_and_its_harmless_values_are_taken(
    gateway: GatewayProcess, model: type[Fields], name: str
) -> None:
    refused = sent(gateway, model, {name: ["a value that asks for something"]})
    assert (refused.status, refused.error["code"]) == (400, "unsupported_parameter")
    assert refused.error["param"] == PLACES[model].prefix + name
    right = {} if PLACES[model].prefix != "structured_outputs." else {"regex": "a"}
    for value in (None, *model.REFUSED[name].harmless):
        assert sent(gateway, model, {**right, name: value}).status == 200


@pytest.mark.parametrize("model", PLACES, ids=name_of)
def test_a_field_that_no_request_has_is_named(gateway: GatewayProcess, model: type[Fields]) -> None:
    refused = sent(gateway, model, {"no_such_field": 1})
    assert (refused.status, refused.error["code"]) == (400, "unsupported_parameter")
    assert refused.error["param"] == PLACES[model].prefix + "no_such_field"
