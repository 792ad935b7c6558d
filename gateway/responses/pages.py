"""Pages of items, as OpenAI lists them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request

from gateway.errors import ApiError

Page = dict[str, Any]

PAGE_QUERY = "limit", "order", "after", "include"
"""Names in the query of a list."""


class _Options:
    """The part of a list that is asked for."""

    def __init__(
        self,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
        include: Annotated[list[str] | None, Query()] = None,
    ) -> None:
        if include:
            raise ApiError(400, "include is not supported: items are whole", param="include")
        self.limit = limit
        self.order = order
        self.after = after


def known_query(*names: str) -> Any:
    """Return a dependency that refuses all other names in a request's query: ApiError."""

    def check(request: Request) -> None:
        for name in request.query_params:
            if name not in names:
                known = ", ".join(names) or "no parameter"
                message = f"{name[:64]} is not a parameter of this request, which has {known}"
                raise ApiError(400, message, param=name, code="unsupported_parameter")

    return Depends(check)


PageOptions = Annotated[_Options, Depends()]
"""A route's parameter: the part of a list that is asked for."""


def page_of(items: Sequence[dict[str, Any]], options: _Options) -> Page:
    """Return a part of items, which are in the order of the conversation. ApiError if it begins
    after an unknown one."""
    ordered = list(items) if options.order == "asc" else list(reversed(items))
    if options.after is not None:
        ids = [item["id"] for item in ordered]
        if options.after not in ids:
            raise ApiError(400, f"after: there is no item {options.after!r}", param="after")
        ordered = ordered[ids.index(options.after) + 1 :]
    shown = ordered[: options.limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(shown) < len(ordered),
    }
