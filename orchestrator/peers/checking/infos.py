"""Check what a model service reports of itself: its model, its load, its tokenizer's files."""

from __future__ import annotations

import hashlib
import re

from orchestrator.peers.checking.bounds import check_count, check_seconds, check_text, check_tokens, check_within
from orchestrator.peers.checking.faults import PeerFaultError
from slipstream.agreed import MAX_DRAFT_LENGTH, WIRE_VERSION
from slipstream.rpc.sampling_wire import defaults_of
from slipstream.sampling.rule import MAX_LISTED_TOKENS, SamplingRule, sampling_violations
from slipstream.wire.v1 import model_pb2

_LONGEST_NAME, _LONGEST_WORD = 4096, 256
_MOST_TOKENS = 2**22
"""Most tokens of a vocabulary; the largest today have 2^18. The orchestrator keeps a table of
them."""
_LONGEST_CONTEXT = 2**27
_MOST_STEP_TIMES = 256
_MOST_STEP_TOKENS = 2**20
_LONGEST_STEP_SECONDS = 3600.0
_MOST_KV_TOKENS = 2**40
_MOST_PROCESSORS = 2**16
_MOST_COUNT = 2**62
_MOST_CAVEATS, _LONGEST_CAVEAT = 16, 1024

_MOST_FILES = 32
_MOST_FILE_BYTES = 256 * 2**20
"""Most bytes of all files of a tokenizer; the largest today have 40 MiB."""
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?")


def check_info(info: model_pb2.ModelInfo) -> None:
    """PeerFaultError if a service cannot host such a model, or speaks another wire version."""
    if info.wire_version != WIRE_VERSION:
        spoken = f"{info.wire_version}" if info.wire_version else "0, of a release before wire versions"
        raise PeerFaultError(
            "wire_version",
            f"must be {WIRE_VERSION}, which this orchestrator speaks, but is {spoken}: upgrade the older one",
        )
    check_text("name", info.name, _LONGEST_NAME, 1)
    for field in ("architecture", "dtype", "device", "heads"):
        check_text(field, getattr(info, field), _LONGEST_WORD)
    for field in ("tokenizer_fingerprint", "weights_fingerprint"):
        check_text(field, getattr(info, field), _LONGEST_WORD, 1)
    check_within("vocabulary_size", info.vocabulary_size, 1, _MOST_TOKENS)
    check_within("context_length", info.context_length, 2, _LONGEST_CONTEXT)
    check_within("max_draft_length", info.max_draft_length, 1, MAX_DRAFT_LENGTH)
    check_within("sampling_version", info.sampling_version, 0, 2**16)
    check_count("end_token_ids", info.end_token_ids, MAX_LISTED_TOKENS)
    check_tokens("end_token_ids", info.end_token_ids, info.vocabulary_size)
    defaults = defaults_of(info.sampling_defaults)
    rule = SamplingRule(**{name: getattr(defaults, name) for name in defaults.__dataclass_fields__})
    for violation in sampling_violations(rule):
        raise PeerFaultError(f"sampling_defaults.{violation.field}", violation.description)
    for length in info.length_defaults.DESCRIPTOR.fields:
        check_within(f"length_defaults.{length.name}", getattr(info.length_defaults, length.name), 0, 2**31 - 1)
    _check_speed(info)
    check_count("caveats", info.caveats, _MOST_CAVEATS)
    for caveat in info.caveats:
        check_text("caveats", caveat, _LONGEST_CAVEAT)
    check_within("collect_share", info.collect_share, 0, 1)
    check_within("kv_token_count", info.kv_token_count, 0, _MOST_KV_TOKENS)
    check_within("kv_page_size", info.kv_page_size, 0, _LONGEST_CONTEXT)
    check_text("processors.machine", info.processors.machine, _LONGEST_WORD)
    check_count("processors.numbers", info.processors.numbers, _MOST_PROCESSORS)
    check_tokens("processors.numbers", info.processors.numbers, _MOST_PROCESSORS)
    check_within("processors.thread_count", info.processors.thread_count, 0, _MOST_PROCESSORS)


def _check_speed(info: model_pb2.ModelInfo) -> None:
    check_within("row_multiple", info.row_multiple, 0, _MOST_STEP_TOKENS)
    check_count("step_times", info.step_times, _MOST_STEP_TIMES)
    before = 0
    for point in info.step_times:
        check_within("step_times.token_count", point.token_count, before + 1, _MOST_STEP_TOKENS)
        check_seconds("step_times.time", point.time, _LONGEST_STEP_SECONDS)
        before = point.token_count


def check_load(load: model_pb2.Load) -> None:
    """PeerFaultError if a service cannot be so busy."""
    for field in load.DESCRIPTOR.fields:
        check_within(field.name, getattr(load, field.name), 0, _MOST_COUNT)


class TokenizerFiles:
    """A tokenizer's files as their chunks arrive."""

    def __init__(self) -> None:
        self._files: dict[str, bytearray] = {}
        self._ended: set[str] = set()
        self._byte_count = 0

    def take(self, chunk: model_pb2.GetTokenizerResponse) -> bool:
        """The next chunk. False if its file did not arrive whole; PeerFaultError if no file is like
        that."""
        name = chunk.file_name
        if not _FILE_NAME.fullmatch(name):
            raise PeerFaultError("file_name", "must be the name of a tokenizer's file")
        if name in self._ended:
            raise PeerFaultError("file_name", "must not come again after its last chunk")
        self._byte_count += len(chunk.data)
        check_within("data", self._byte_count, 0, _MOST_FILE_BYTES)
        data = self._files.setdefault(name, bytearray())
        check_count("file_name", self._files, _MOST_FILES)
        data += chunk.data
        if not chunk.HasField("sha256"):
            return True
        self._ended.add(name)
        return hashlib.sha256(data).hexdigest() == chunk.sha256

    @property
    def whole(self) -> dict[str, bytes]:
        """All of them, by name. PeerFaultError if one has no last chunk."""
        if len(self._ended) != len(self._files):
            raise PeerFaultError("sha256", "must be set on each file's last chunk")
        return {name: bytes(data) for name, data in self._files.items()}
