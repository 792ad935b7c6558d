"""Nonsense that a draft or a verifier may answer to an item, as data: a name, and a change of a
correct result.

A mutation gets a correct result and the item that it answers. It returns what is sent instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from slipstream.rpc.status import DOMAIN
from slipstream.v1 import sampling_pb2
from slipstream.wire.v1 import draft_pb2, hint_pb2, rule_pb2, verifier_pb2

Mutation = Callable[[Any, Any], list[Any]]
"""A function from a correct result and its item to the results that are sent."""

NAN, INFINITY = float("nan"), float("inf")
MOST = 2**31 - 1
LONGEST = 2**62


def _set(path: str, value: object) -> Mutation:
    """Set one field. ``path`` names it with dots; ``*`` takes each entry of a repeated field."""

    def mutate(result: Any, item: Any) -> list[Any]:
        *parents, name = path.split(".")
        targets = [result]
        for parent in parents:
            found = [getattr(target, parent.removesuffix("*")) for target in targets]
            targets = [entry for each in found for entry in each] if parent.endswith("*") else found
        for target in targets:
            if isinstance(value, duration_pb2.Duration):
                getattr(target, name).CopyFrom(value)
            elif isinstance(value, (list, tuple)):
                del getattr(target, name)[:]
                getattr(target, name).extend(value)
            else:
                setattr(target, name, value)
        return [result]

    return mutate


def _fill(path: str, value: object) -> Mutation:
    """Set every entry of a repeated number field to ``value``, under each entry of another field or
    of the result itself."""

    def mutate(result: Any, item: Any) -> list[Any]:
        parent, _, name = path.rpartition(".")
        for each in getattr(result, parent) if parent else [result]:
            entries = getattr(each, name)
            count = len(entries)
            del entries[:]
            entries.extend([value] * count)
        return [result]

    return mutate


def _longer(path: str, values: Callable[[Any], list[Any]]) -> Mutation:
    """Append to a repeated field under each entry of another, or of the result itself."""

    def mutate(result: Any, item: Any) -> list[Any]:
        parent, _, name = path.rpartition(".")
        for each in getattr(result, parent) if parent else [result]:
            getattr(each, name).extend(values(item))
        return [result]

    return mutate


def _status(code: int, message: str, *details: Any) -> Mutation:
    def mutate(result: Any, item: Any) -> list[Any]:
        status = status_pb2.Status(code=code, message=message)
        for detail in details:
            if isinstance(detail, any_pb2.Any):
                status.details.append(detail)
            else:
                status.details.add().Pack(detail)
        failed = type(result)(handle=result.handle, round=result.round, error=status)
        if isinstance(failed, draft_pb2.DraftResult):
            failed.final = True
        return [failed]

    return mutate


def _info(reason: str, **metadata: str) -> error_details_pb2.ErrorInfo:
    return error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata)


def _retry(seconds: int) -> error_details_pb2.RetryInfo:
    return error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=seconds))


def _elsewhere(**fields: object) -> Mutation:
    """Send the correct result under another handle or round first, which was never asked for."""

    def mutate(result: Any, item: Any) -> list[Any]:
        stray = type(result)()
        stray.CopyFrom(result)
        for name, value in fields.items():
            setattr(stray, name, value)
        return [stray]

    return mutate


def _repeated(count: int) -> Mutation:
    return lambda result, item: [result] * count


def _strays(count: int) -> Mutation:
    return lambda result, item: [type(result)(handle="f" * 32, round=1)] * count


_TIMINGS: Mapping[str, Mutation] = {
    "total of a billion seconds": _set("timing.total", duration_pb2.Duration(seconds=10**9)),
    "forward of minus one second": _set("timing.forward", duration_pb2.Duration(seconds=-1)),
    "queue of 2^62 seconds": _set("timing.queue", duration_pb2.Duration(seconds=LONGEST)),
    "forward of 2^62 seconds": _set("timing.forward", duration_pb2.Duration(seconds=LONGEST)),
    "prefill of 2^62 seconds": _set("timing.prefill", duration_pb2.Duration(seconds=LONGEST)),
    "total of minus 2^62 seconds": _set("timing.total", duration_pb2.Duration(seconds=-LONGEST)),
    "forward of negative nanoseconds": _set("timing.forward", duration_pb2.Duration(nanos=-MOST)),
    "forward_count negative": _set("timing.forward_count", -1),
    "forward_count 2^31-1": _set("timing.forward_count", MOST),
    "step_token_count negative": _set("timing.step_token_count", -1),
    "step_token_count 2^31-1": _set("timing.step_token_count", MOST),
}

_ERRORS: Mapping[str, Mutation] = {
    "error with code 0": _status(0, "fine", _info("INTERNAL")),
    "error with code 99": _status(99, "no such code", _info("INTERNAL")),
    "error with code -1": _status(-1, "no such code", _info("INTERNAL")),
    "error without details": _status(13, "no details"),
    "error of a reason that is none": _status(9, "no such reason", _info("MADE_UP")),
    "error of a known reason under another code": _status(3, "not found", _info("UNKNOWN_HANDLE")),
    "error whose reason has 100,000 letters": _status(13, "long", _info("A" * 100_000)),
    "error with a message of 1 MiB": _status(13, "x" * 2**20, _info("INTERNAL")),
    "error with 10,000 entries of metadata": _status(
        13, "many", _info("INTERNAL", **{f"k{i}": "v" for i in range(10_000)})
    ),
    "error whose details are no message": _status(
        13, "bad", any_pb2.Any(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"\xff\xff\xff")
    ),
    "error with a retry in the past": _status(8, "full", _info("QUEUE_FULL"), _retry(-5)),
    "error with a retry in 2^38 seconds": _status(8, "full", _info("QUEUE_FULL"), _retry(2**38)),
    "too short by a length that is no number": _status(9, "short", _info("SEQUENCE_TOO_SHORT", cached_length="abc")),
    "too short by a negative length": _status(9, "short", _info("SEQUENCE_TOO_SHORT", cached_length="-7")),
    "too short by 10^400": _status(9, "short", _info("SEQUENCE_TOO_SHORT", cached_length="1" + "0" * 400)),
    "too short and does not say by how much": _status(9, "short", _info("SEQUENCE_TOO_SHORT")),
    "handle unknown for ever": _status(5, "unknown", _info("UNKNOWN_HANDLE")),
    "rule unknown for ever": _status(5, "unknown", _info("UNKNOWN_RULE")),
    "newest round stale": _status(10, "stale", _info("STALE_ROUND")),
    "caller blamed for its fields": _status(
        3,
        "temperature must be 3",
        _info("INVALID_FIELDS"),
        error_details_pb2.BadRequest(
            field_violations=[error_details_pb2.BadRequest.FieldViolation(field="temperature", description="must be 3")]
        ),
    ),
}

_KEYS: Mapping[str, Mutation] = {
    "handle unknown": _elsewhere(handle="0" * 32),
    "handle empty": _elsewhere(handle=""),
    "handle of 1 MiB": _elsewhere(handle="a" * 2**20),
    "round 0": _elsewhere(round=0),
    "round negative": _elsewhere(round=-1),
    "round 2^63-1": _elsewhere(round=2**63 - 1),
    "same result 1,000 times": _repeated(1_000),
    "100,000 results of nothing": _strays(100_000),
}

_ONE_TOKEN = rule_pb2.TokenDistribution(token_ids=[5], probabilities=[1.0])

DRAFT_RESULTS: Mapping[str, Mutation] = {
    "proposal of 100,000 tokens": _longer("tokens", lambda item: [7] * 100_000),
    "one token more than asked": _longer("tokens", lambda item: [7] * item.draft_length),
    "token negative": _fill("tokens", -1),
    "token at the vocabulary's end": _fill("tokens", 259),
    "token 2^31-1": _fill("tokens", MOST),
    "three distributions too many": _longer("distributions", lambda item: [_ONE_TOKEN] * 3),
    "no distributions": _set("distributions", []),
    "distribution without tokens": _set("distributions*.token_ids", []),
    "distribution without probabilities": _set("distributions*.probabilities", []),
    "distribution of 100,000 tokens": _longer("distributions.token_ids", lambda item: [7] * 100_000),
    "100,000 probabilities": _longer("distributions.probabilities", lambda item: [0.5] * 100_000),
    "one token more than probabilities": _longer("distributions.token_ids", lambda item: [258]),
    "one probability more than tokens": _longer("distributions.probabilities", lambda item: [0.5]),
    "distribution of a token negative": _fill("distributions.token_ids", -1),
    "distribution of a token at the vocabulary's end": _fill("distributions.token_ids", 259),
    "distribution of a token 2^31-1": _fill("distributions.token_ids", MOST),
    "distribution without the proposed token": _set("distributions*.token_ids", [258]),
    "probability NaN": _fill("distributions.probabilities", NAN),
    "probability infinite": _fill("distributions.probabilities", INFINITY),
    "probability negative": _fill("distributions.probabilities", -0.5),
    "probability 0": _fill("distributions.probabilities", 0.0),
    "probability 1e30": _fill("distributions.probabilities", 1e30),
    **_TIMINGS,
    **_ERRORS,
    **_KEYS,
}

_LOGPROB = sampling_pb2.TokenLogprobs(token_id=5, logprob=-1.0)

_LOGPROBS: Mapping[str, Mutation] = {
    "logprob NaN": _set("logprobs*.logprob", NAN),
    "logprob infinite": _set("logprobs*.logprob", INFINITY),
    "logprob 1e30": _set("logprobs*.logprob", 1e30),
    "logprob of another token": _set("logprobs*.token_id", 258),
    "logprob of a token that is none": _set("logprobs*.token_id", MOST),
    "no logprobs": _set("logprobs", []),
    "10,000 logprobs": _longer("logprobs", lambda item: [_LOGPROB] * 10_000),
    "1,000 likeliest tokens": _longer("logprobs.top", lambda item: [sampling_pb2.TokenLogprob()] * 1_000),
    "likeliest tokens that are none": _set("logprobs*.top*.token_id", -1),
    "likeliest tokens of NaN": _set("logprobs*.top*.logprob", NAN),
    "10,000 logprobs of the tail": _longer("tail_logprobs", lambda item: [_LOGPROB] * 10_000),
}

VERIFIER_RESULTS: Mapping[str, Mutation] = {
    "accepted_count negative": _set("accepted_count", -1),
    "accepted_count past the proposal": lambda result, item: _set("accepted_count", len(item.proposal) + 1)(
        result, item
    ),
    "accepted_count 2^31-1": _set("accepted_count", MOST),
    "next_token negative": _set("next_token", -1),
    "next_token at the vocabulary's end": _set("next_token", 259),
    "next_token 2^31-1": _set("next_token", MOST),
    "prefilled_count negative": _set("prefilled_count", -1),
    "prefilled_count 2^31-1": _set("prefilled_count", MOST),
    "margin NaN": _set("margin", NAN),
    "margin minus infinity": _set("margin", -INFINITY),
    **_LOGPROBS,
    **_TIMINGS,
    **_ERRORS,
    **_KEYS,
}

HINT_RESULTS: Mapping[str, Mutation] = {
    "hint of 100,000 tokens": _longer("hints.tokens", lambda item: [7] * 100_000),
    "hint of no tokens": _set("hints*.tokens", []),
    "hint with a token negative": _fill("hints.tokens", -1),
    "hint with a token 2^31-1": _fill("hints.tokens", MOST),
    "hint without survivals": _set("hints*.survivals", []),
    "hint with 1,000 survivals too many": _longer("hints.survivals", lambda item: [0.5] * 1_000),
    "survival NaN": _fill("hints.survivals", NAN),
    "survival 1.5": _fill("hints.survivals", 1.5),
    "survival minus infinity": _fill("hints.survivals", -INFINITY),
    "hint that starts at -1": _set("hints*.start", -1),
    "hint that starts at 2^31-1": _set("hints*.start", MOST),
    "hint of a source that is none": _set("hints*.source", 99),
    "hint of the caller's prediction": _set("hints*.source", hint_pb2.HINT_SOURCE_PREDICTION),
    "hint that has seen the future": _set("hints*.length_seen", MOST),
    "hint due in 2^62 seconds": _set("hints*.next_due", duration_pb2.Duration(seconds=LONGEST)),
    "hint due in the past": _set("hints*.next_due", duration_pb2.Duration(seconds=-1)),
    "10,000 hints": _longer("hints", lambda item: [hint_pb2.Hint(tokens=[7], survivals=[0.5])] * 10_000),
    **_TIMINGS,
    **_ERRORS,
    **_KEYS,
}


def _then(end: int, *, goes_on: bool) -> Mutation:
    """Send a part as the run's last, and one more part."""

    def mutate(result: Any, item: Any) -> list[Any]:
        result.end = end
        more = type(result)()
        more.CopyFrom(result)
        more.position += len(result.tokens)
        if goes_on:
            more.end = verifier_pb2.RUN_END_UNSPECIFIED
        return [result, more]

    return mutate


def _moved(by: int) -> Mutation:
    return lambda result, item: _set("position", result.position + by)(result, item)


def _empty_parts(result: Any, item: Any) -> list[Any]:
    return [type(result)(handle=result.handle, round=result.round, position=result.position)] * 5_000


def _parts_of_none(result: Any, item: Any) -> list[Any]:
    """Send the correct part, and ten thousand parts of one token that is none."""
    part = type(result)(handle=result.handle, round=result.round, tokens=[-1])
    part.position = result.position + len(result.tokens)
    return [result, *[part] * 10_000]


RUN_RESULTS: Mapping[str, Mutation] = {
    "position one too far": _moved(1),
    "position one too near": _moved(-1),
    "position negative": _set("position", -1),
    "position 2^31-1": _set("position", MOST),
    "token negative": _set("tokens", [-1]),
    "token at the vocabulary's end": _set("tokens", [259]),
    "token 2^31-1": _set("tokens", [MOST]),
    "no tokens": _set("tokens", []),
    "100,000 tokens": _longer("tokens", lambda item: [7] * 100_000),
    "one token past the run's end": lambda result, item: _set(
        "tokens", [7] * (item.start.until_length - result.position + 1)
    )(result, item),
    "end of the run that is none": _set("end", 99),
    "end negative": _set("end", -1),
    "end token that is none": _set("end", verifier_pb2.RUN_END_TOKEN),
    "length reached long before": _set("end", verifier_pb2.RUN_END_UNTIL),
    "stopped without a stop": _set("end", verifier_pb2.RUN_END_STOPPED),
    "end twice": _then(verifier_pb2.RUN_END_STOPPED, goes_on=False),
    "part after the end": _then(verifier_pb2.RUN_END_STOPPED, goes_on=True),
    "no steps": _set("steps", []),
    "step of no token": _longer("steps", lambda item: [verifier_pb2.RunStep()]),
    "step of 2^31-1 tokens": _set("steps*.token_count", MOST),
    "step of a negative number of hint tokens": _set("steps*.hint_count", -1),
    "step that accepts what was not hinted": _set("steps*.accepted_count", 1),
    "step with a hint of no source": _set("steps*.hint_count", 1),
    "step of a billion seconds": _set("steps*.forward", duration_pb2.Duration(seconds=10**9)),
    "step that waited for minus one second": _set("steps*.held", duration_pb2.Duration(seconds=-1)),
    "100,000 steps": _longer("steps", lambda item: [verifier_pb2.RunStep(token_count=1)] * 100_000),
    "5,000 empty parts": _empty_parts,
    "10,000 parts of a token that is none": _parts_of_none,
    "prefilled_count negative": _set("prefilled_count", -1),
    "prefilled_count 2^31-1": _set("prefilled_count", MOST),
    "margin NaN": _set("margin", NAN),
    "margin minus infinity": _set("margin", -INFINITY),
    **_LOGPROBS,
    **_TIMINGS,
    **_ERRORS,
    **_KEYS,
}
