"""GET /v1/models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from gateway.bodies import ModelCard, ModelList, described
from gateway.gateway import Caller, Model, gateway_of

router = APIRouter()


@router.get("/v1/models", responses=described(ModelList))
async def list_models(request: Request, caller: Caller) -> dict[str, Any]:
    """List the model that is served."""
    return {"object": "list", "data": [_description(await gateway_of(request).model(caller))]}


@router.get("/v1/models/{name:path}", responses=described(ModelCard))
async def get_model(name: str, request: Request, caller: Caller) -> dict[str, Any]:
    """Describe the model that is served."""
    model = await gateway_of(request).model(caller)
    model.check_name(name)
    return _description(model)


def _description(model: Model) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "slipstream",
        "max_model_len": model.context_length,
    }
