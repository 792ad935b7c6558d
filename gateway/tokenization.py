"""POST /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fastapi import APIRouter, Request
from pydantic import Field

from gateway.bodies import DetokenizeBody, TokenizeBody, described
from gateway.chat_messages import ChatMessage, conversation_of
from gateway.chat_tools import MAX_TOOLS, ChatTool, tool_use
from gateway.errors import ApiError
from gateway.fields import Fields, Int32, Refusal, Text
from gateway.gateway import Caller, Model, gateway_of
from gateway.tools import variables_of
from slipstream.client import AsyncClient, TemplateOptions

router = APIRouter()


class TokenizeRequest(Fields):
    """A request for the tokens of a text or of a conversation."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {
        "chat_template": Refusal("the model's own is used"),
        "continue_final_message": Refusal("a conversation is rendered whole", (False,)),
    }

    model: Text | None = Field(None, description="the model's name, as `/v1/models` lists it")
    prompt: Text | None = Field(None, description="a text; no chat template is applied")
    messages: list[ChatMessage] | None = Field(None, description="a conversation, instead of `prompt`")
    add_special_tokens: bool | None = Field(
        None, description="by default true; only with `prompt`: false leaves out the tokenizer's own special tokens"
    )
    add_generation_prompt: bool | None = Field(
        None, description="by default true; only with `messages`: end with the tokens that open an answer"
    )
    tools: list[ChatTool] | None = Field(
        None, max_length=MAX_TOOLS, description="only with `messages`: functions that the model may call"
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="only with `messages`: variables of the chat template; one it does not read is refused"
    )
    return_token_strs: bool = Field(False, description="report each token as the vocabulary spells it")


class DetokenizeRequest(Fields):
    """A request for the text of token ids."""

    model: Text | None = Field(None, description="the model's name, as `/v1/models` lists it")
    tokens: list[Int32] = Field(description="token ids")


@router.post("/tokenize", responses=described(TokenizeBody))
async def tokenize(asked: TokenizeRequest, request: Request, caller: Caller) -> dict[str, Any]:
    """Return the tokens of a text or of a conversation."""
    if (asked.prompt is None) == (asked.messages is None):
        raise ApiError(400, "give either prompt or messages", param="prompt")
    tools = tool_use(asked.tools or (), None, parallel=True).template_tools()
    variables = variables_of(asked.chat_template_kwargs)
    prompt = asked.prompt if asked.prompt is not None else conversation_of(asked.messages or ())
    model = await _checked_model(request, caller, asked.model)
    found = await caller.tokenize(
        prompt,
        add_special_tokens=asked.add_special_tokens,
        add_generation_prompt=asked.add_generation_prompt,
        template_options=TemplateOptions(tools, variables) if tools or variables else None,
        token_strings=asked.return_token_strs,
    )
    return {
        "count": len(found.token_ids),
        "max_model_len": model.context_length,
        "tokens": found.token_ids,
        "token_strs": found.token_strings if asked.return_token_strs else None,
    }


@router.post("/detokenize", responses=described(DetokenizeBody))
async def detokenize(asked: DetokenizeRequest, request: Request, caller: Caller) -> dict[str, str]:
    """Return the text of token ids."""
    await _checked_model(request, caller, asked.model)
    return {"prompt": await caller.detokenize(asked.tokens)}


async def _checked_model(request: Request, caller: AsyncClient, name: str | None) -> Model:
    model = await gateway_of(request).model(caller)
    if name is not None:
        model.check_name(name)
    return model
