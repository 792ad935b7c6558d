"""Nonsense that a model service may report about its model, as data: a name, and a change of a
correct answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from google.protobuf import duration_pb2

from slipstream.wire.v1 import model_pb2

Mutation = Callable[[model_pb2.ModelInfo], object]
"""A function that changes a correct answer in place."""

_MOST = 2**31 - 1


def _set(name: str, value: object) -> Mutation:
    return lambda info: setattr(info, name, value)


def _sampling(name: str, value: object) -> Mutation:
    return lambda info: setattr(info.sampling_defaults, name, value)


def _steps(*points: tuple[int, duration_pb2.Duration]) -> Mutation:
    def mutate(info: model_pb2.ModelInfo) -> None:
        del info.step_times[:]
        info.step_times.extend(model_pb2.StepTime(token_count=count, time=time) for count, time in points)

    return mutate


_SECOND = duration_pb2.Duration(seconds=1)

INFOS: Mapping[str, Mutation] = {
    "no model": lambda info: info.Clear(),
    "wire_version 0": _set("wire_version", 0),
    "wire_version 99": _set("wire_version", 99),
    "wire_version negative": _set("wire_version", -1),
    "name empty": _set("name", ""),
    "name of 100,000 letters": _set("name", "x" * 100_000),
    "name with a new line": _set("name", "good\nERROR the disk is full"),
    "architecture of 100,000 letters": _set("architecture", "x" * 100_000),
    "dtype with control characters": _set("dtype", "\x1b[2Jfloat32"),
    "device of 100,000 letters": _set("device", "x" * 100_000),
    "heads of 100,000 letters": _set("heads", "x" * 100_000),
    "tokenizer_fingerprint empty": _set("tokenizer_fingerprint", ""),
    "tokenizer_fingerprint with a new line": _set("tokenizer_fingerprint", "a\nb"),
    "weights_fingerprint empty": _set("weights_fingerprint", ""),
    "weights_fingerprint of 100,000 letters": _set("weights_fingerprint", "a" * 100_000),
    "vocabulary_size 0": _set("vocabulary_size", 0),
    "vocabulary_size negative": _set("vocabulary_size", -1),
    "vocabulary_size 2^31-1": _set("vocabulary_size", _MOST),
    "context_length 0": _set("context_length", 0),
    "context_length negative": _set("context_length", -1),
    "context_length 2^31-1": _set("context_length", _MOST),
    "end token negative": lambda info: info.end_token_ids.append(-1),
    "end token past the vocabulary": lambda info: info.end_token_ids.append(_MOST),
    "100,000 end tokens": lambda info: info.end_token_ids.extend([2] * 100_000),
    "temperature NaN": _sampling("temperature", float("nan")),
    "temperature negative": _sampling("temperature", -1.0),
    "top_k negative": _sampling("top_k", -1),
    "top_p infinite": _sampling("top_p", float("inf")),
    "repetition_penalty 0": _sampling("repetition_penalty", 0.0),
    "min_token_count negative": lambda info: setattr(info.length_defaults, "min_token_count", -1),
    "max_draft_length -5": _set("max_draft_length", -5),
    "max_draft_length 0": _set("max_draft_length", 0),
    "max_draft_length 2^31-1": _set("max_draft_length", _MOST),
    "sampling_version negative": _set("sampling_version", -1),
    "step time of 2^62 seconds": _steps((8, duration_pb2.Duration(seconds=2**62))),
    "step time negative": _steps((8, duration_pb2.Duration(seconds=-1))),
    "step time of negative nanoseconds": _steps((8, duration_pb2.Duration(nanos=-_MOST))),
    "step times whose token counts fall": _steps((64, _SECOND), (8, _SECOND)),
    "step time of no token": _steps((0, _SECOND)),
    "step time of 2^31-1 tokens": _steps((_MOST, _SECOND)),
    "100,000 step times": _steps(*((1 + count, _SECOND) for count in range(100_000))),
    "row_multiple negative": _set("row_multiple", -1),
    "row_multiple 2^31-1": _set("row_multiple", _MOST),
    "kv_token_count negative": _set("kv_token_count", -1),
    "kv_token_count 2^62": _set("kv_token_count", 2**62),
    "kv_page_size negative": _set("kv_page_size", -1),
    "kv_page_size 2^31-1": _set("kv_page_size", _MOST),
    "collect_share NaN": _set("collect_share", float("nan")),
    "collect_share 2": _set("collect_share", 2),
    "processor negative": lambda info: info.processors.numbers.append(-1),
    "1,000,000 processors": lambda info: info.processors.numbers.extend(range(1_000_000)),
    "thread_count negative": lambda info: setattr(info.processors, "thread_count", -1),
    "machine of 100,000 letters": lambda info: setattr(info.processors, "machine", "x" * 100_000),
}
