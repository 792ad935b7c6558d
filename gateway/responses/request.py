"""The request for a response."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from gateway.chat_tools import MAX_TOOLS
from gateway.errors import ApiError
from gateway.fields import COMMON_REFUSALS, KNOWN_METADATA, AnswerFields, Fields, Int32, Metadata, Refusal, Text
from gateway.responses.items import Item
from gateway.responses.note import Note
from gateway.responses.resource import ToldSettings
from gateway.responses.text import TextFormat, TextOptions
from gateway.responses.tools import FunctionTool, ToolChoice, tool_use
from gateway.tool_formats.format import ToolFormat
from gateway.tools import ToolUse, variables_of
from slipstream.client import Settings, TemplateOptions

_NO_MODERATION = "nothing is moderated"
_KEPT_OUT = "metadata.do_not_collect keeps a text out of what the operator collects"


class ConversationName(Fields):
    """A conversation by its id."""

    id: Text


class ResponseStreamOptions(Fields):
    """Options of a stream."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {
        "include_obfuscation": Refusal("streams are not padded", (False,)),
    }


class ResponseRequest(AnswerFields):
    """A request for a response."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {
        **COMMON_REFUSALS,
        "max_tool_calls": Refusal("there are no built-in tools"),
        "reasoning": Refusal("the chat template decides", ({},)),
        "truncation": Refusal("a prompt is never cut: shorten the input", ("disabled",)),
        "context_management": Refusal("a prompt is never cut: shorten the input", ([],)),
        "prompt": Refusal("there are no stored prompts: write it into the input"),
        "prompt_cache_key": Refusal("prefixes are found without a key"),
        "prompt_cache_retention": Refusal("the server decides"),
        "prompt_cache_options": Refusal("the server decides"),
        "safety_identifier": Refusal(_NO_MODERATION),
        "moderation": Refusal(_NO_MODERATION),
        "access_programs": Refusal(_NO_MODERATION),
        "background_options": Refusal("a response in the background begins at once"),
        "image": Refusal("only text is supported"),
        "n": Refusal("a response has one answer: send the request again with another seed", (1,)),
        "max_tokens": Refusal("use max_output_tokens"),
        "messages": Refusal("use input"),
        "prompt_logprobs": Refusal("use /v1/chat/completions"),
        "return_token_ids": Refusal("use /v1/chat/completions", (False,)),
        "request_id": Refusal("the id of a response says where it is kept"),
    }

    input: Text | list[Item] = Field(
        description="a text, or a list of items; text only. The last one is the user's, or a call's output"
    )
    instructions: Text | None = Field(
        None, description="a system message before the input. The next response does not have it"
    )
    previous_response_id: Text | None = Field(
        None, description="a response that this one follows. Others may follow it too"
    )
    conversation: Text | ConversationName | None = Field(
        None, description="a conversation that the input and the response are added to"
    )
    user: Annotated[Text, Field(max_length=512)] | None = Field(
        None, description="accepted; limits count by access token, so it changes nothing"
    )
    store: bool = Field(
        True,
        description="keep the response, as long as sessions are kept. false also keeps it out of what the operator collects",
    )
    background: bool = Field(False, description="answer at once, and generate in the background")
    metadata: Metadata | None = Field(
        None,
        description=f"up to 16 texts by key, which are kept with the response. {KNOWN_METADATA}",
    )
    max_output_tokens: Int32 | None = Field(None, ge=1, description="most tokens of the answer")
    include: list[Literal["message.output_text.logprobs"]] = Field(
        [], description="`message.output_text.logprobs`: the log-probability of each token"
    )
    top_logprobs: int | None = Field(
        None, ge=0, le=20, description="and so many likeliest tokens; above 0 it needs `include`"
    )
    text: TextOptions | None = Field(
        None, description="`format`: `text`, `json_object`, or `json_schema`, which is always followed"
    )
    tools: list[FunctionTool] | None = Field(
        None,
        max_length=MAX_TOOLS,
        description="functions that the model may call. The next response does not have them",
    )
    tool_choice: ToolChoice | None = Field(
        None,
        description="`auto`, by default: the model decides. `none`: it is not told of them. `required`, a function's name, or "
        "`allowed_tools` with the mode `required`: the answer is a call, enforced with its arguments",
    )
    parallel_tool_calls: bool = Field(
        True, description="false: one call at most; more that the model writes are left out"
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None,
        description="vLLM's; variables of the chat template, such as `enable_thinking`; one it does not read is refused",
    )
    stream_options: ResponseStreamOptions | None = Field(None, description="has no option yet")

    def check(self) -> None:
        """Refuse fields that do not go together: ApiError."""
        super().check()
        if self.background and not self.store:
            raise ApiError(400, f"background is only allowed with store: true; {_KEPT_OUT}", param="background")
        if self.top_logprobs and not self.include:
            message = "top_logprobs needs include: message.output_text.logprobs"
            raise ApiError(400, message, param="top_logprobs")
        if self.conversation is not None:
            self._check_conversation()

    def _check_conversation(self) -> None:
        if self.previous_response_id is not None:
            message = "give previous_response_id or conversation, not both"
            raise ApiError(400, message, param="previous_response_id")
        if self.instructions:
            message = "instructions are not allowed with conversation: give them to POST /v1/conversations"
            raise ApiError(400, message, param="instructions")
        for name in ("tools", "chat_template_kwargs"):
            if getattr(self, name):
                message = f"{name} are not allowed with conversation: use previous_response_id"
                raise ApiError(400, message, param=name)
        if not self.store:
            message = f"store: false is not allowed with conversation, which keeps it; {_KEPT_OUT}"
            raise ApiError(400, message, param="store")

    @property
    def is_private(self) -> bool:
        """True if the operator may not collect the text."""
        return not self.store or super().is_private

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation, if there is one."""
        return self.conversation.id if isinstance(self.conversation, ConversationName) else self.conversation

    @property
    def reported_logprobs(self) -> int | None:
        """Number of likeliest tokens to report; None: no log-probabilities."""
        return (self.top_logprobs or 0) if self.include else None

    def tool_use(self) -> ToolUse:
        """Return the tools, and what the answer may do with them. ApiError."""
        return tool_use(self.tools or (), self.tool_choice, parallel=self.parallel_tool_calls)

    def template_options(self) -> TemplateOptions:
        """Return what the chat template reads besides the messages. ApiError."""
        return TemplateOptions(self.tool_use().template_tools(), variables_of(self.chat_template_kwargs))

    def turn_settings(self, tool_format: ToolFormat | None) -> Settings:
        """Return the settings of the turn, whose calls have a format. ApiError."""
        structured, text_format = self.structured(), self._format
        if structured is not None and text_format is not None:
            raise ApiError(400, "give text.format or structured_outputs, not both", param="structured_outputs")
        chosen, called = structured or text_format, self.tool_use().structure(tool_format)
        asked = None if chosen is None else chosen.structure()
        if asked is not None and called is not None:
            raise ApiError(400, "a tool_choice that forces a call is not allowed with a structure", param="tool_choice")
        return self.settings(
            max_token_count=self.max_output_tokens,
            structure=called or asked,
            top_logprob_count=self.reported_logprobs,
            token_origins=True,  # they tell which text is a token's: events are numbered by tokens
        )

    def told_settings(self) -> ToldSettings:
        """Return the settings that the response tells."""
        schema = None if self._format is None else self._format.schema_
        return ToldSettings(
            self.temperature,
            self.top_p,
            self.presence_penalty,
            self.frequency_penalty,
            self.max_output_tokens,
            None if schema is None else json.dumps(schema),
        )

    def note(self) -> Note:
        """Return what the orchestrator keeps with the turn."""
        choice = self.tool_choice
        return Note(
            created=int(time.time()),
            model=self.model,
            store=self.store,
            background=self.background,
            metadata=self.metadata or {},
            user=self.user,
            previous_response_id=self.previous_response_id,
            in_conversation=self.conversation is not None,
            is_instructed=bool(self.instructions),
            text_format={"type": "text"} if self._format is None else self._format.told(),
            top_logprobs=self.reported_logprobs,
            tool_choice=choice if choice is None or isinstance(choice, str) else choice.model_dump(),
            parallel_tool_calls=self.parallel_tool_calls,
            strict_tools=[tool.name for tool in self.tools or () if tool.strict],
        )

    @property
    def _format(self) -> TextFormat | None:
        return None if self.text is None else self.text.format
