"""The reasons of errors that the public protos name for each method."""

from __future__ import annotations

from tools.reference.api import errors_of
from tools.reference.descriptors import public_protos

OF_EVERY_METHOD = frozenset({"UNAUTHENTICATED", "METADATA_TOO_LARGE", "INVALID_FIELDS", "INTERNAL"})


def documented_reasons() -> dict[str, frozenset[str]]:
    """Return the reasons that each method's calls and turns may end with."""
    proto = next(one for one in public_protos() if one.file.name.endswith("orchestrator.proto"))
    (service,) = proto.file.service
    return {
        method.name: errors_of(proto.comment(6, 0, 2, at)) | OF_EVERY_METHOD | turn_reasons(method.output_type)
        for at, method in enumerate(service.method)
    }


def call_reasons() -> frozenset[str]:
    """Return the reasons that the methods' own comments name: those of calls, not of turns."""
    proto = next(one for one in public_protos() if one.file.name.endswith("orchestrator.proto"))
    (service,) = proto.file.service
    return frozenset().union(*(errors_of(proto.comment(6, 0, 2, at)) for at in range(len(service.method))))


def turn_reasons(response: str = "") -> frozenset[str]:
    """Return the reasons for which a turn fails, if the response has a turn's events; by default
    all."""
    watching = ("", "GenerateResponse", "SendMessageResponse", "WatchTurnResponse", "ChatResponse")
    if response.rpartition(".")[2] not in watching:
        return frozenset()
    proto = next(one for one in public_protos() if one.file.name.endswith("turn.proto"))
    names = [message.name for message in proto.file.message_type]
    return errors_of(proto.comment(4, names.index("TurnFailed")))
