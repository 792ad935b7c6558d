"""Fields of requests: those that are supported, with what they become, and those that are refused
by name.

A field that is in neither list of a request is refused too. So nothing that a caller writes is
ignored. A null is the same as a field that is left out.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    JsonValue,
    TypeAdapter,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from gateway.errors import ApiError, encodable
from gateway.usage import StreamUsage
from slipstream.client import Result, Settings, Structure


def _encodable(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("not_unicode", "must be Unicode text, but has half of a surrogate pair") from None
    return value


Text = Annotated[str, AfterValidator(_encodable)]
"""Text that a message can hold. JSON may hold halves of surrogate pairs, which are no text."""

DO_NOT_COLLECT = "`true` keeps the text out of what the operator collects to train drafts; `false` changes nothing"
TASK = "a tag by which acceptance is counted: at most 64 characters of A-Z, a-z, 0-9 and _.:/-"
KNOWN_METADATA = f"`do_not_collect`: {DO_NOT_COLLECT}. `task`: {TASK}"
"""Descriptions of keys that mean something."""
_KnownMetadata = TypeAdapter(dict[Literal["do_not_collect"], Literal["true", "false"]])


def _check_known(given: Any) -> Any:
    """Refuse a wrong value of a key that means something, by its name."""
    if isinstance(given, dict) and "do_not_collect" in given:
        _KnownMetadata.validate_python({"do_not_collect": given["do_not_collect"]})
    return given


Metadata = Annotated[
    dict[Annotated[Text, Field(min_length=1, max_length=64)], Annotated[Text, Field(max_length=512)]],
    BeforeValidator(_check_known),
    Field(
        max_length=16,
        json_schema_extra={
            "properties": {
                "do_not_collect": {"enum": ["true", "false"], "description": DO_NOT_COLLECT},
                "task": {"type": "string", "description": TASK},
            }
        },
    ),
]
"""Up to 16 texts by key."""


def is_kept_out(metadata: Mapping[str, Any] | None) -> bool:
    """Return whether a request's metadata keep its text out of what the operator collects."""
    return metadata is not None and metadata.get("do_not_collect") in ("true", True)


Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
"""A number that a message can hold."""


class Refusal(NamedTuple):
    """The reason why a field is refused, and the values that are accepted because they ask for
    nothing."""

    why: str
    harmless: tuple[Any, ...] = ()

    def accepts(self, value: object) -> bool:
        """Return whether a value asks for nothing."""
        return value is None or any(type(value) is type(one) and value == one for one in self.harmless)


class Fields(BaseModel):
    """An object of a request. Values are not converted: a number in quotes is no number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    REFUSED: ClassVar[Mapping[str, Refusal]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        known = {field.alias or name for name, field in cls.model_fields.items()}
        for name, value in given.items():
            refusal = cls.REFUSED.get(name)
            if refusal is None and name not in known:
                context = {"field": encodable(str(name))}
                raise PydanticCustomError("refused_field", "{field} is not a field of this request", context)
            if refusal is not None and not refusal.accepts(value):
                context = {"field": name, "why": refusal.why}
                raise PydanticCustomError("refused_field", "{field} is not supported: {why}", context)
        return {name: value for name, value in given.items() if value is not None and name not in cls.REFUSED}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Describe that null leaves a field out, and which values of refused fields are taken."""
        found = handler(schema)
        made = handler.resolve_ref_schema(found)
        required, properties = made.get("required", ()), made.setdefault("properties", {})
        for name, described in properties.items():
            if name not in required:
                properties[name] = _nullable(described)
        for name, refusal in cls.REFUSED.items():
            properties[name] = {"enum": [*refusal.harmless, None], "description": f"not supported: {refusal.why}"}
        return found


def _nullable(described: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a field that may also be null."""
    about = {name: described[name] for name in ("title", "description", "default") if name in described}
    allowed = {name: value for name, value in described.items() if name not in about}
    kinds = allowed.pop("anyOf", None)
    if kinds is None:
        return about | {"anyOf": [allowed, {"type": "null"}]}
    return about | allowed | {"anyOf": kinds if {"type": "null"} in kinds else [*kinds, {"type": "null"}]}


class StreamOptions(Fields):
    """Options of a stream."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {
        "include_obfuscation": Refusal("streams are not padded", (False,)),
    }

    include_usage: bool = Field(False, description="send one more event with the usage")
    continuous_usage_stats: bool = Field(
        False, description="vLLM's, with `include_usage`; each event has the usage of its answer so far"
    )


class StructuredOutputs(Fields):
    """A structure of the text, in vLLM's names."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {
        "structural_tag": Refusal("use json, regex, choice or grammar"),
        "json_object": Refusal("use response_format", (False,)),
        "disable_any_whitespace": Refusal("the schema decides", (False,)),
        "disable_additional_properties": Refusal("the schema decides", (False,)),
        "whitespace_pattern": Refusal("the schema decides"),
    }

    json_: Text | dict[str, Any] | None = Field(None, alias="json", description="a JSON Schema")
    regex: Text | None = Field(None, description="a regular expression that the whole text matches")
    choice: list[Text] | None = Field(None, description="the text is one of these")
    grammar: Text | None = Field(None, description="a grammar in Lark's notation")

    def structure(self) -> Structure:
        """Return the structure. ApiError unless exactly one kind is set."""
        if sum(value is not None for value in (self.json_, self.regex, self.choice, self.grammar)) != 1:
            message = "structured_outputs must have exactly one of json, regex, choice and grammar"
            raise ApiError(400, message, param="structured_outputs")
        schema = self.json_ if self.json_ is None or isinstance(self.json_, str) else json.dumps(self.json_)
        return Structure(json_schema=schema, regex=self.regex, choices=self.choice, grammar=self.grammar)


NOT_STORED = Refusal("nothing is stored. With metadata.do_not_collect the operator does not collect the text")

COMMON_REFUSALS: Mapping[str, Refusal] = {
    "service_tier": Refusal("all requests of a caller have the same priority", ("auto", "default")),
    "best_of": Refusal("choices are not ranked", (1,)),
    "use_beam_search": Refusal("tokens are sampled", (False,)),
    "length_penalty": Refusal("there is no beam search", (1, 1.0)),
    "truncate_prompt_tokens": Refusal("prompts are never cut: shorten it"),
    "skip_special_tokens": Refusal("the text never has special tokens", (True,)),
    "spaces_between_special_tokens": Refusal("the text never has special tokens", (True,)),
    "priority": Refusal("all requests of a caller have the same priority", (0,)),
    "bad_words": Refusal("use logit_bias"),
}
"""Fields of OpenAI's and vLLM's requests that no endpoint supports."""


def _between(least: float, most: float) -> dict[str, JsonValue]:
    """Return bounds for the OpenAPI document. The orchestrator knows and checks them."""
    return {"minimum": least, "maximum": most}


class AnswerFields(Fields):
    """Fields that all requests for an answer share."""

    model: Text = Field(description="the model's name, as `/v1/models` lists it")
    stream: bool = Field(False, description="send the answer as server-sent events while it is generated")
    temperature: float | None = Field(
        None, description="0 is greedy; by default the model's own, not 1", json_schema_extra=_between(0, 100)
    )
    top_p: float | None = Field(
        None,
        description="keep the likeliest tokens up to this probability",
        json_schema_extra={"exclusiveMinimum": 0, "maximum": 1},
    )
    top_k: Int32 | None = Field(None, ge=-1, description="keep so many of the likeliest tokens; 0 or -1: all")
    min_p: float | None = Field(
        None,
        description="keep tokens at least this fraction as likely as the likeliest",
        json_schema_extra=_between(0, 1),
    )
    presence_penalty: float | None = Field(None, description="from -2 to 2", json_schema_extra=_between(-2, 2))
    frequency_penalty: float | None = Field(None, description="from -2 to 2", json_schema_extra=_between(-2, 2))
    repetition_penalty: float | None = Field(
        None, description="vLLM's; 1 is off", json_schema_extra=_between(0.01, 100)
    )
    logit_bias: dict[str, float] | None = Field(None, description="token ids, each with a number from -100 to 100")
    seed: int | None = Field(
        None,
        ge=0,
        le=2**63 - 1,
        description="0 to 2^63 - 1. The same seed gives the same text. JavaScript loses digits above 2^53",
    )
    stop: Text | list[Text] | None = Field(None, description="up to 16 texts; the answer ends before the first of them")
    stop_token_ids: list[Int32] | None = Field(None, description="vLLM's; token ids that end the answer")
    include_stop_str_in_output: bool = Field(False, description="vLLM's; show the stop text too")
    min_tokens: Int32 | None = Field(None, ge=0, description="vLLM's; fewest tokens before an end token may be chosen")
    ignore_eos: bool = Field(False, description="vLLM's; go on after an end token")
    structured_outputs: StructuredOutputs | None = Field(
        None, description="vLLM's; exactly one of `json`, `regex`, `choice` and `grammar`"
    )
    guided_json: Text | dict[str, Any] | None = Field(
        None, description="vLLM's older name of `structured_outputs` with `json`"
    )
    guided_regex: Text | None = Field(None, description="vLLM's older name of `structured_outputs` with `regex`")
    guided_choice: list[Text] | None = Field(
        None, description="vLLM's older name of `structured_outputs` with `choice`"
    )
    guided_grammar: Text | None = Field(None, description="vLLM's older name of `structured_outputs` with `grammar`")
    allowed_token_ids: list[Int32] | None = Field(None, description="vLLM's; only these tokens may be chosen")
    metadata: Metadata | None = Field(
        None,
        description=f"up to 16 texts by key. {KNOWN_METADATA}. The others change nothing: OpenAI keeps them with stored "
        "answers, and here nothing is stored",
    )
    user: Text | None = Field(None, description="accepted; limits count by access token, so it changes nothing")
    speculation: Literal["off", "on"] | Annotated[Int32, Field(ge=1)] | None = Field(
        None, description='ours: "off", "on", or a number of draft tokens. It changes the speed, never the text'
    )

    def check(self) -> None:
        """Refuse fields that do not go together: ApiError."""

    @property
    def is_private(self) -> bool:
        """True if the operator may not collect the text."""
        return is_kept_out(self.metadata)

    @property
    def error_names(self) -> dict[str, str]:
        """Return the field that an error about the structure is about, by the name that it has in
        most requests."""
        given = self._structures()
        return {"response_format": given[0]} if given else {}

    def _structures(self) -> list[str]:
        return [name for name in _STRUCTURES if getattr(self, name) is not None]

    def structured(self) -> StructuredOutputs | None:
        """Return the structure that one of vLLM's fields asks for. ApiError if several do."""
        given = self._structures()
        if len(given) > 1:
            raise ApiError(400, f"give {given[0]} or {given[1]}, not both", param=given[1])
        if not given or given == ["structured_outputs"]:
            return self.structured_outputs
        return StructuredOutputs(**{given[0].removeprefix("guided_"): getattr(self, given[0])})

    def settings(self, *, top_logprob_count: int | None = None, **more: Any) -> Settings:
        """Return the settings of the turn, with what an endpoint adds. ApiError."""
        self.check()
        named = {name: getattr(self, name) for name in _SAME_NAMES}
        return Settings(
            **named,
            top_k=None if self.top_k is None else max(0, self.top_k),
            logit_bias=_token_numbers(self.logit_bias or {}),
            allowed_token_ids=self.allowed_token_ids or (),
            top_logprob_count=top_logprob_count,
            token_bytes=top_logprob_count is not None,
            stop_strings=[self.stop] if isinstance(self.stop, str) else self.stop or (),
            stop_token_ids=self.stop_token_ids or (),
            min_token_count=self.min_tokens,
            ignore_end_tokens=self.ignore_eos or None,
            include_stop_in_text=self.include_stop_str_in_output or None,
            draft_length=draft_length(self.speculation),
            task=(self.metadata or {}).get("task"),
            do_not_collect=self.is_private or None,
            **more,
        )


class GenerationFields(AnswerFields):
    """Fields that chat completions and completions share."""

    stream_options: StreamOptions | None = Field(None, description="`include_usage`: one more event with the usage")
    n: int = Field(1, ge=1, le=64, description="number of answers; the first one is what `n` 1 gives")
    prompt_logprobs: int | None = Field(
        None,
        ge=0,
        le=20,
        description="vLLM's, not with `stream`; the log-probability of each token of the prompt, and so many likeliest",
    )
    request_id: Annotated[str, Field(pattern="^[!-~]{1,128}$")] | None = Field(
        None, description="vLLM's; the response's `id` ends with it. The same one again is another request"
    )
    return_token_ids: bool = Field(False, description="vLLM's; each choice has its `token_ids`")

    @property
    def includes_usage(self) -> bool:
        """Return whether a stream has an event with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def stream_usage(self, results: Sequence[Result]) -> StreamUsage:
        """Return the usage of a stream's chunks."""
        running = self.stream_options is not None and self.stream_options.continuous_usage_stats
        return StreamUsage(results, included=self.includes_usage, running=self.includes_usage and running)

    def check(self) -> None:
        """Refuse fields that do not go together: ApiError."""
        super().check()
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options is only allowed with stream: true", param="stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise ApiError(400, "prompt_logprobs is not allowed with stream: true", param="prompt_logprobs")

    def response_id(self, kind: str) -> str:
        """Return the id of a response of some kind."""
        return f"{kind}-{self.request_id or secrets.token_hex(12)}"

    def settings(self, *, top_logprob_count: int | None = None, prompt_logprobs: bool = False, **more: Any) -> Settings:
        """Return the settings of the turn, with what an endpoint adds. ApiError."""
        likeliest = [count for count in (top_logprob_count, self.prompt_logprobs) if count is not None]
        return super().settings(
            top_logprob_count=max(likeliest, default=None),
            prompt_logprobs=prompt_logprobs or self.prompt_logprobs is not None,
            **more,
        )


_SAME_NAMES = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)
"""Fields that our settings have under the same name."""
_STRUCTURES = "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"
_DRAFT_LENGTHS: Mapping[Any, Any] = {"off": 0, "on": "adaptive"}


def draft_length(speculation: Literal["off", "on"] | int | None) -> int | Literal["adaptive"] | None:
    """Return the draft length that a request asks for with ``speculation``."""
    found: int | Literal["adaptive"] | None = _DRAFT_LENGTHS.get(speculation, speculation)
    return found


def _token_numbers(biases: Mapping[str, float]) -> dict[int, float]:
    """Return biases by token id. ApiError if a key is no number: JSON has only texts as keys."""
    for key in biases:
        if not (key.isascii() and key.isdecimal()) or len(key) > 9:
            raise ApiError(400, f"logit_bias must have token ids as keys, but has {key[:40]!r}", param="logit_bias")
    return {int(key): value for key, value in biases.items()}
