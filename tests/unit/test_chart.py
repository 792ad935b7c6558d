"""The Helm chart's generator: components that change a tree, as conditions in one template."""

from __future__ import annotations

import pytest

from tools.chart.comparing import comparable, compared
from tools.chart.merging import ABSENT, Either, MergingError, When, merge
from tools.chart.settings import with_values
from tools.chart.values_file import schema_of
from tools.chart.writing import write


def test_what_no_component_changes_stays_as_it_is() -> None:
    tree = {"a": [1, {"b": "c"}]}
    assert merge(tree, {"tls": dict(tree)}) == tree


def test_what_components_add_remove_and_change_has_conditions() -> None:
    base = {"kept": 1, "removed": 2, "changed": 3}
    variants = {"tls": {"kept": 1, "changed": 4}, "access": {**base, "added": [5]}}
    assert merge(base, variants) == {
        "kept": 1,
        "removed": When(("tls",), 2, negated=True),
        "changed": Either((("tls", 4),), 3),
        "added": When(("access",), [5]),
    }


def test_an_object_that_a_component_adds_is_there_with_it_alone() -> None:
    assert merge(ABSENT, {"tls": ABSENT, "ingress": {"kind": "Ingress"}}) == When(("ingress",), {"kind": "Ingress"})


def test_items_are_merged_by_name_and_others_appended() -> None:
    assert merge([{"name": "a", "x": 1}], {"tls": [{"name": "new"}, {"name": "a", "x": 2}]}) == [
        {"name": "a", "x": Either((("tls", 2),), 1)},
        When(("tls",), {"name": "new"}),
    ]
    assert merge([1], {"tls": [1, 2]}) == [1, When(("tls",), 2)]
    assert merge([1], {"tls": [2]}) == Either((("tls", [2]),), [1])


@pytest.mark.parametrize("other", [{"a": 2}, {}])
def test_components_that_contradict_each_other_are_refused(other: dict[str, int]) -> None:
    base = {} if other else {"a": 0}
    with pytest.raises(MergingError, match="tls, access"):
        merge(base, {"tls": {"a": 1}, "access": other})


def test_a_template_has_conditions_around_keys_and_items() -> None:
    tree = {
        "metadata": {"name": When(("tls", "access"), "a")},
        "list": [When(("tls",), {"maybe": When(("access",), "x"), "name": "it"}), {"text": "{{ $value }}: y"}],
        "number": Either((("tls", 1),), "1"),
    }
    assert write(tree).splitlines() == [
        "metadata:",
        "  {{- if or .Values.tls.enabled .Values.access.enabled }}",
        "  name: a",
        "  {{- end }}",
        "list:",
        "  {{- if .Values.tls.enabled }}",
        "  - name: it",
        "    {{- if .Values.access.enabled }}",
        "    maybe: x",
        "    {{- end }}",
        "  {{- end }}",
        '  - text: {{ "{{ $value }}: y" | toJson }}',
        "{{- if .Values.tls.enabled }}",
        "number: 1",
        "{{- else }}",
        "number: '1'",
        "{{- end }}",
    ]


def test_a_map_of_settings_ends_with_the_users_own() -> None:
    data = {"A": "1", "B": When(("tls",), "2")}
    tree = with_values(("ConfigMap", "draft-settings"), {"data": data, "metadata": {"name": "draft-settings"}})
    assert write(tree).splitlines() == [
        "data:",
        "  {{- $settings := dict }}",
        '  {{- $_ := set $settings "A" "1" }}',
        "  {{- if .Values.tls.enabled }}",
        '  {{- $_ := set $settings "B" "2" }}',
        "  {{- end }}",
        "  {{- range $name, $value := $.Values.draft.settings }}{{ $_ := set $settings $name (toString $value) }}",
        "  {{- end }}",
        "  {{- toYaml $settings | nindent 2 }}",
        "metadata:",
        "  name: draft-settings",
        "  namespace: {{ .Release.Namespace }}",
    ]


def test_a_difference_from_kustomize_is_found() -> None:
    service = {"spec": {"volumes": [{"name": "a"}, {"name": "b"}]}}
    turned = {"spec": {"volumes": [{"name": "b"}, {"name": "a"}], "annotations": {"checksum/settings": "f00"}}}
    assert comparable(service) == comparable(turned)
    kustomized = {("Service", "a"): service, ("Namespace", "slipstream"): {}}
    assert compared({("Service", "a"): turned}, kustomized) == []
    assert compared({("Service", "a"): {}, ("Pod", "b"): {}}, kustomized) == ["Pod b differs", "Service a differs"]


def test_the_schema_refuses_a_key_that_is_no_value() -> None:
    schema = schema_of({"tls": {"enabled": False}, "draft": {"settings": {}, "replicas": None}})
    assert schema["additionalProperties"] is False
    assert schema["properties"]["tls"]["properties"]["enabled"] == {"type": "boolean"}
    assert schema["properties"]["draft"]["properties"]["settings"] == {"type": "object"}
