"""What generated code in other languages and its readers find in the public protos."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.reasons import Audience, Reason
from slipstream.v1 import errors_pb2
from tests.documented_reasons import OF_EVERY_METHOD, documented_reasons, turn_reasons
from tools.reference import api
from tools.reference.descriptors import Commented, public_protos

WITHOUT_ERRORS = {"GetStatus"}
OF_OTHER_SERVICES = {"DRAFT_NOT_FOUND", "DRAFT_ON_TRIAL", "DRAFT_LIMIT"}


@pytest.mark.parametrize("proto", public_protos(), ids=lambda proto: proto.file.name.rpartition("/")[2])
def test_every_public_proto_says_where_its_code_goes_in_go_java_and_csharp(proto: Commented) -> None:
    options = proto.file.options
    assert options.go_package == "slipstream/v1;slipstreamv1"
    assert (options.java_package, options.java_multiple_files) == ("ai.slipstream.v1", True)
    assert options.csharp_namespace == "Slipstream.V1"
    stem = proto.file.name.rpartition("/")[2].removesuffix(".proto")
    assert options.java_outer_classname == f"{stem.title()}Proto"


def test_the_node_package_exports_every_public_proto() -> None:
    exported = Path("clients/node/src/contract.ts").read_text()
    for proto in public_protos():
        assert f'export * from "./contract/{proto.file.name.removesuffix(".proto")}_pb.js";' in exported


def test_every_method_names_reasons_that_exist() -> None:
    known = {name.removeprefix("ERROR_REASON_") for name in errors_pb2.ErrorReason.DESCRIPTOR.values_by_name}
    for method, reasons in documented_reasons().items():
        assert reasons <= known, method
        assert bool(reasons - OF_EVERY_METHOD) == (method not in WITHOUT_ERRORS), method


def test_every_reason_of_callers_is_named_by_a_method_or_a_failed_turn() -> None:
    named = frozenset().union(*documented_reasons().values())
    assert {str(reason) for reason in Reason if Audience.CALLERS in reason.audience} - named == OF_OTHER_SERVICES
    both = Audience.CALLERS | Audience.ITEMS
    assert turn_reasons() >= {str(reason) for reason in Reason if both in reason.audience}


def test_the_api_page_leads_from_a_methods_reasons_to_their_page() -> None:
    rows = [row for row in api.page().splitlines() if row.startswith("| `Detokenize` |")]
    assert rows[0].endswith(" [Errors](errors.md#for-callers): INVALID_FIELDS, OVERLOADED, NOT_READY. |")
