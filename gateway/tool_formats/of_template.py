"""The format in which a model's chat template writes calls."""

from __future__ import annotations

from slipstream.client import AsyncClient, Message, PeerError, TemplateOptions, Tool, ToolCall
from slipstream.errors import Code

DEFAULT = "hermes"
"""Format where the template does not tell."""

_CALL = (
    Message("user", "Call it."),
    Message("assistant", "", [ToolCall("probe", "{}", "call00000")]),  # some templates want ids of nine characters
    Message("tool", "done", tool_call_id="call00000"),
)


async def parser_of_template(caller: AsyncClient) -> str:
    """Return the name of the format in which the served model's chat template writes a call.
    PeerError if the orchestrator does not say."""
    options = TemplateOptions([Tool("probe")])
    try:
        tokens = await caller.tokenize(_CALL, template_options=options)
    except PeerError as error:
        if error.code is Code.INVALID_ARGUMENT:  # the template takes no such conversation
            return DEFAULT
        raise
    text = "".join((await caller.detokenize(tokens.token_ids)).split())
    if "<tool_call>" in text:
        return "hermes"
    return "llama3_json" if '"name":"probe","parameters":' in text else DEFAULT
