"""The public protos with their comments, as protoc's descriptor sets hold them."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

PROTOS = Path(__file__).parents[2] / "protos"


@dataclass(frozen=True, slots=True)
class Commented:
    """One proto file, and the comment above each of its elements by the element's path."""

    file: FileDescriptorProto
    comments: dict[tuple[int, ...], str]

    def comment(self, *path: int) -> str:
        """Return the comment of an element, with its paragraphs; empty if it has none."""
        return self.comments.get(path, "")


@functools.cache
def public_protos() -> tuple[Commented, ...]:
    """Parse protos/slipstream/v1. RuntimeError if protoc refuses them."""
    sources = sorted(str(path.relative_to(PROTOS)) for path in (PROTOS / "slipstream" / "v1").glob("*.proto"))
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "set"
        includes = [f"-I{PROTOS}", f"-I{files('grpc_tools') / '_proto'}"]
        if protoc.main(["protoc", *includes, "--include_source_info", f"--descriptor_set_out={out}", *sources]) != 0:
            raise RuntimeError("protoc failed; its message is above")
        found = FileDescriptorSet.FromString(out.read_bytes())
    return tuple(Commented(file, _comments(file)) for file in found.file)


def _comments(file: FileDescriptorProto) -> dict[tuple[int, ...], str]:
    return {
        tuple(place.path): (place.leading_comments or place.trailing_comments).strip()
        for place in file.source_code_info.location
        if place.leading_comments or place.trailing_comments
    }
