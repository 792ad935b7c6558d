"""Plans from configurations: bytes, places, step times, advice, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slipstream.cli.__main__ import app
from slipstream.planning.advice import summary_of, warnings_of, what_fits
from slipstream.planning.assumptions import assumptions_of
from slipstream.planning.devices import CpuFigures, groups_of, known_devices
from slipstream.planning.errors import PlanError
from slipstream.planning.formats import FORMATS, format_of
from slipstream.planning.models import hub_id, known_models, model_shape
from slipstream.planning.placing import Pair, Placement, fastest, placements, rank_counts
from slipstream.planning.plan import Chosen, Plan, Question, make_plan
from slipstream.planning.speed import Speed, simulated_sessions, speeds
from slipstream.planning.steps import Assumptions, PlannedModel, Site

NO_CPU = CpuFigures()


def model(name: str, dtype: str | None = "bfloat16") -> PlannedModel:
    shape = model_shape(name)
    return PlannedModel(shape, format_of(shape, dtype, "--target-dtype"))


def question(target: str, draft: str, gpus: str, sessions: int = 1, **changes: Any) -> Question:
    pair = Pair(model(target), model(draft), changes.pop("context", 4096), Assumptions())
    usual = {"acceptances": [0.8], "round_trips": [0.0005]}
    return Question(pair, groups_of(gpus, NO_CPU), sessions, **usual | changes)


def place(found: list[Placement], name: str) -> Placement:
    return next(each for each in found if str(each) == name)


@pytest.mark.parametrize("name", sorted(known_models()))
def test_a_known_shape_has_as_many_parameters_as_the_hub_says(name: str) -> None:
    assert model_shape(name).weights.total == known_models()[name]["parameters"]
    assert model_shape(known_models()[name]["hub"]).weights == model_shape(name).weights


def test_a_pair_of_70b_and_8b_takes_141_and_16_gb() -> None:
    sizes = [model(name).weight_bytes for name in ("llama-3.1-70b", "llama-3.1-8b")]
    assert [round(size / 1e9) for size in sizes] == [141, 16]


@pytest.mark.parametrize(
    ("name", "dtype", "gigabytes"),
    [
        ("llama-3.1-8b", "q4_k_m", 4.92),  # sizes of the files that people download
        ("llama-3.1-8b", "q8_0", 8.54),
        ("llama-3.1-70b", "q4_k_m", 42.52),
        ("qwen2.5-7b", "q4_k_m", 4.68),
        ("gpt-oss-20b", "mxfp4", 13.76),
        ("llama-3.1-70b", "fp8", 72.7),
        ("llama-3.1-70b", "int4", 39.8),
    ],
)
def test_quantised_weights_are_as_large_as_known_files(name: str, dtype: str, gigabytes: float) -> None:
    assert model(name, dtype).weight_bytes / 1e9 == pytest.approx(gigabytes, rel=0.02)


def test_a_checkpoint_is_planned_in_the_format_that_it_is_stored_in(tmp_path: Path) -> None:
    config = known_models()["llama-3.1-8b"]["config"]
    formats = {
        "bfloat16": None,
        "fp8": {"quant_method": "fp8"},
        "int4": {"quant_method": "awq", "bits": 4},
        "mxfp4": {"quant_method": "mxfp4"},
    }
    for name, said in formats.items():
        (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": said}))
        assert model_shape(str(tmp_path)).format == name
    packed = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}}
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": packed}))
    assert model_shape(str(tmp_path / "config.json")).format == "int4"


def test_a_window_shortens_what_a_step_reads_and_not_what_is_kept() -> None:
    shape = model_shape("gemma-2-9b")
    assert [layers.window for layers in shape.layers] == [4096, None]
    assert shape.kv_values_read(8192) == 0.75 * 8192 * shape.kv_values_per_token
    assert shape.kv_values_read(4096) == 4096 * shape.kv_values_per_token


def test_a_multimodal_configuration_is_read_by_its_decoder(tmp_path: Path) -> None:
    text = dict(known_models()["gemma-3-1b"]["config"])
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    assert model_shape(str(tmp_path)).weights == model_shape("gemma-3-1b").weights


def test_a_multimodal_configuration_may_leave_out_what_transformers_has_by_default(tmp_path: Path) -> None:
    """The entries of google/gemma-3-4b-it, whose decoder has 3.88 billion parameters."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    shape = model_shape(str(tmp_path))
    assert shape.weights.total == 3_880_263_168
    assert [(layers.layer_count, layers.window) for layers in shape.layers] == [(29, 1024), (5, None)]
    assert shape.kv_values_per_token == 34 * 2 * 4 * 256
    (tmp_path / "config.json").write_text(json.dumps({**text, "model_type": "gemma3_text"}))
    with pytest.raises(PlanError, match="num_attention_heads is None"):  # a configuration of its own is whole
        model_shape(str(tmp_path))


def test_a_decoder_may_say_itself_how_it_is_quantised(tmp_path: Path) -> None:
    text = {**known_models()["gemma-3-1b"]["config"], "quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    assert model_shape(str(tmp_path)).format == "fp8"


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "Llama-3.1-8B-Instruct", "LLAMA-3.1-8b"])
def test_a_known_model_is_found_under_its_names(name: str) -> None:
    assert hub_id(name) == "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ("{}", "names no model_type; give a model's config.json"),
        ('{"dim": 4096, "n_layers": 32}', "names no model_type"),
        ('{"model_type": "mamba"}', "model type 'mamba' cannot be planned with; known are .*llama"),
        ('{"model_type": "llama", "hidden_size": 4.5}', "hidden_size is 4.5"),
        ('{"model_type": "llama", "hidden_size": 64}', "num_hidden_layers is None"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_a_wrong_configuration_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(PlanError, match=message):
        model_shape(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quantization_config": {"quant_method": "eetq"}}, "eetq of None bits"),
        ({"quantization_config": "fp8"}, "an entry of a wrong kind"),
        ({"num_key_value_heads": "eight"}, "num_key_value_heads is 'eight'"),
        ({"layer_types": 5}, "an entry of a wrong kind"),
        ({"head_dim": -1}, "head_dim is -1 in its configuration, not a whole number from 1 to 1000000000"),
        ({"hidden_size": 10**400}, "hidden_size is 1000"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000 in .*, not a whole number from 1 to 10000"),
    ],
)
def test_an_entry_of_a_wrong_kind_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = {**known_models()["llama-3.1-8b"]["config"], **change}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(PlanError, match=message):
        model_shape(str(tmp_path))


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"has no config\.json"):
        model_shape(str(tmp_path))
    with pytest.raises(PlanError, match="there is no file or folder"):
        model_shape(str(tmp_path / "model.gguf"))
    with pytest.raises(PlanError, match=r"is not a known name: .*llama-3\.1-8b"):
        model_shape("org/nothing")
    with pytest.raises(PlanError, match="empty"):
        model_shape("")


def test_formats_that_do_not_fit_a_model_are_refused() -> None:
    with pytest.raises(PlanError, match="--target-dtype int3 is not known; known are bfloat16"):
        model("llama-3.1-8b", "int3")
    with pytest.raises(PlanError, match="mxfp4 is for models with experts"):
        model("llama-3.1-8b", "mxfp4")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a number and a name"),
        ("4", "'4' is not a number and a name"),
        ("2xh100:2", "is not a number and a name"),
        ("0xh100", "1 to 1024 devices, not 0"),
        ("2xb300", "'b300' is not known; known are h200"),
        ("cpu", "needs the machine's --cpu-memory"),
        ("9999xl4", "1 to 1024 devices"),
    ],
)
def test_devices_that_cannot_be_read_are_refused(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        groups_of(text, NO_CPU)


def test_devices_are_read() -> None:
    groups = groups_of("4xH100, l4:2,l4", NO_CPU)
    assert [str(group) for group in groups] == ["4 x h100", "3 x l4"]
    (cpu,) = groups_of("cpu", CpuFigures(64, 80))
    assert (cpu.device.memory, cpu.device.bandwidth, cpu.device.is_cpu) == (64e9, 80e9, True)
    assert rank_counts(model("llama-3.1-8b"), cpu) == [1]
    assert all(device.source.startswith("https://") for device in known_devices().values())


def test_ranks_divide_the_heads_of_keys_and_values() -> None:
    (group,) = groups_of("16xh100", NO_CPU)
    assert rank_counts(model("llama-3.1-70b"), group) == [1, 2, 4, 8]
    assert rank_counts(model("smollm2-135m"), group) == [1, 3]


def test_sessions_fill_what_weights_leave() -> None:
    asked = question("llama-3.1-70b", "llama-3.1-8b", "4xh200")
    found = placements(asked.pair, asked.groups)
    assert place(found, "1 x h200, shared").session_count == 0
    apart = place(found, "2 x h200 + 1 x h200")
    target = asked.pair.target
    small = target.shape.weights.small * 2
    room = 0.9 * 141e9 - 1.5e9 - (small + (target.weight_bytes - small) / 2)
    assert apart.target_room == pytest.approx(room)
    assert apart.session_count == int(room / (4096 * 320 * 1024 / 2))
    shared = place(found, "2 x h200, shared")
    assert shared.target_room == pytest.approx(room - asked.pair.draft.weight_bytes - 1.5e9)
    assert 0 < shared.session_count < apart.session_count


def test_kv_is_reserved_in_whole_pages() -> None:
    pair = question("llama-3.1-8b", "llama-3.2-1b", "h200", context=17).pair
    assert pair.session_bytes(pair.target) == 32 * 128 * 1024


def test_a_step_on_an_h200_takes_what_was_measured_there() -> None:
    """docs/benchmarks/accelerator.json: a forward 6.19 ms, 128 tokens/s; a draft's step 1.3 ms."""
    device, assumed = known_devices()["h200"], Assumptions()
    forward = Site(model("llama-3.1-8b"), device).step_seconds(1, 1, 200, assumed)
    assert forward == pytest.approx(6.2e-3, rel=0.1)
    assert 1 / (forward + assumed.host_seconds) == pytest.approx(128, rel=0.1)
    draft = Site(model("qwen2.5-1.5b"), device).step_seconds(1, 1, 200, assumed) + assumed.draft_host_seconds
    assert draft == pytest.approx(1.3e-3, rel=0.1)


def test_many_rows_are_bound_by_the_processor_and_experts_by_their_number() -> None:
    device, assumed = known_devices()["h100"], Assumptions()
    dense = Site(model("llama-3.1-8b"), device)
    assert not dense.is_compute_bound(8, 8, 1024, assumed)
    assert dense.is_compute_bound(512, 8, 1024, assumed)
    sparse = Site(model("qwen3-30b-a3b"), device)
    one, five = [sparse.step_seconds(rows, 1, 1024, assumed) for rows in (1, 5)]
    assert five > 2 * one
    assert sparse.step_seconds(512, 1, 1024, assumed) < 20 * one


def test_more_ranks_take_less_time_for_a_forward_and_wait_for_one_another() -> None:
    device, assumed = known_devices()["h100"], Assumptions()
    sites = [Site(model("llama-3.1-70b"), device, ranks) for ranks in (1, 2, 4)]
    times = [site.step_seconds(1, 1, 1024, assumed) for site in sites]
    assert times[0] > times[1] > times[2] > times[0] / 4
    slow = replace(device, link=32e9)
    assert Site(sites[2].model, slow, 4).step_seconds(1, 1, 1024, assumed) > times[2]


def test_a_draft_on_its_own_device_pays_and_a_long_round_trip_takes_from_it() -> None:
    asked = question("llama-3.1-70b", "llama-3.2-1b", "5xh100", round_trips=[0.0005, 0.2])
    plan = make_plan(asked)
    assert plan.apart is not None and str(plan.apart.placement) == "4 x h100 + 1 x h100"
    near, far = plan.apart.speeds
    assert near.gain > 2.3 and far.gain < 0.6 * near.gain
    assert plan.shared is not None and 1.0 < plan.shared.speeds[0].gain < near.gain
    assert "At acceptance 0.8 the fastest is 4 x h100 + 1 x h100" in summary_of(plan)


def test_speculation_that_cannot_pay_is_named() -> None:
    far = make_plan(question("llama-3.1-8b", "llama-3.2-1b", "2xh200", round_trips=[2.0]))
    assert warned(far, "hints do not pay up to acceptance 0.8 at 2000 ms")
    slow = make_plan(question("llama-3.1-8b", "llama-3.1-8b", "l40s"))
    assert warned(slow, "speculation cannot pay here")
    assert warned(slow, "a step of the draft takes 1.00 of the target's; take a smaller draft")


def supposed(asked: Question, gain: float = 2.0) -> Plan:
    """A plan whose rates nothing has simulated."""
    found = placements(asked.pair, asked.groups)
    way = fastest(asked.pair, found, asked.session_count, is_shared=True)
    assert way is not None
    return Plan(asked, found, shared=Chosen(way, [Speed(0.8, 0.0, 100, 100 * gain)]))


def test_steps_whose_rows_are_dear_are_named() -> None:
    many = supposed(question("llama-3.1-8b", "llama-3.2-1b", "h100", sessions=128, context=256))
    assert warned(many, "5 rows a session cost 1.9 plain steps, because its processor bounds the target")
    sparse = supposed(question("qwen3-30b-a3b", "qwen3-0.6b", "h200"))
    assert warned(sparse, "because each row reads further experts")
    few = supposed(question("llama-3.1-8b", "llama-3.2-1b", "h100"))
    assert not warned(few, "rows a session")
    assert not warned(few, "cannot pay") and warned(supposed(few.question, 1.04), "cannot pay")


def warned(plan: Plan, text: str) -> bool:
    return any(text in line for line in warnings_of(plan))


def test_a_model_that_only_a_stock_engine_divides_is_named() -> None:
    line = "only a stock engine divides a mixtral among ranks"
    assert warned(supposed(question("mixtral-8x7b", "mistral-7b", "2xh100")), line)
    assert not warned(supposed(question("mixtral-8x7b", "mistral-7b", "h200")), line)


def test_bits_that_our_engines_do_not_compute_are_named() -> None:
    def of(dtype: str, gpus: str, draft_dtype: str = "bfloat16") -> Plan:
        asked = question("qwen2.5-7b", "qwen2.5-0.5b", gpus)
        pair = replace(asked.pair, target=model("qwen2.5-7b", dtype), draft=model("qwen2.5-0.5b", draft_dtype))
        return supposed(replace(asked, pair=pair))

    for dtype in ("fp8", "int4"):
        assert warned(of(dtype, "h100"), f"only a stock engine computes a target in {dtype}; for Slipstream's own")
    assert warned(of("q4_k_m", "h100"), "1 x h100, shared: Slipstream serves GGUF files on CPUs only, and the target")
    assert warned(of("bfloat16", "h100", "q8_0"), "GGUF files on CPUs only, and the draft is one (q8_0)")
    assert not warned(of("bfloat16", "h100", "fp8"), "stock engine")
    (cpu,) = groups_of("cpu", CpuFigures(64, 80))
    asked = of("q4_k_m", "h100", "q8_0").question
    assert not warned(supposed(replace(asked, groups=[cpu])), "GGUF")


def test_ranks_of_a_stock_engine_keep_latent_vectors() -> None:
    """A token of DeepSeek-V3: 61 layers of 128 heads of 192 + 128 entries, or of 512 + 64."""
    asked = question("deepseek-v3", "qwen3-0.6b", "8xh200", sessions=32)
    asked = replace(asked, pair=replace(asked.pair, target=model("deepseek-v3", "fp8")))
    assert asked.pair.target.kv_bytes_per_token == 61 * 128 * (192 + 128) * 2
    assert asked.pair.session_bytes(asked.pair.target, 8) == 4096 * 61 * (512 + 64) * 2
    shared = place(placements(asked.pair, asked.groups), "8 x h200, shared")
    assert shared.session_count == 50  # their expanded keys and values would leave room for 12
    step = shared.target.step_seconds(1, 1, 4096, asked.pair.assumed)
    longer = shared.target.step_seconds(1, 1, 8192, asked.pair.assumed)
    read = 4096 * 61 * (512 + 64) * 2 / (4.8e12 * asked.pair.assumed.bandwidth_share)
    assert longer - step == pytest.approx(read, rel=0.01)
    assert any("each keeps the latent vectors, 69 KiB of a token" in line for line in assumptions_of(supposed(asked)))
    assert not any(
        "latent" in line for line in assumptions_of(supposed(question("llama-3.1-8b", "llama-3.2-1b", "h100")))
    )


def test_many_sessions_are_simulated_as_fewer_that_stand_for_them() -> None:
    assert [simulated_sessions(count) for count in (1, 32, 33, 64, 100, 512)] == [1, 32, 17, 32, 25, 32]
    asked = question("llama-3.1-70b", "llama-3.2-1b", "5xh200", sessions=64, context=256)
    assert any("32 sessions are simulated. Each stands for 2.0" in line for line in assumptions_of(supposed(asked)))
    found = fastest(asked.pair, placements(asked.pair, asked.groups), 64, is_shared=False)
    assert found is not None
    (speed,) = speeds(asked.pair, found, 64, [0.8], [0.0005], lambda: None)
    step = found.target.step_seconds(64, 64, 256, asked.pair.assumed) + asked.pair.assumed.host_seconds
    assert speed.plain == pytest.approx(64 / step, rel=0.03)
    assert speed.gain > 1.5


def test_a_pair_that_cannot_be_one_is_named() -> None:
    asked = question("llama-3.1-8b", "qwen3-8b", "h100")
    plan = Plan(asked, placements(asked.pair, asked.groups))
    assert warned(plan, "the vocabularies differ (128256 and 151936)")
    assert warned(plan, "the draft has no fewer bytes than the target")


def test_what_would_fit_is_said_where_nothing_does() -> None:
    asked = question("llama-3.1-70b", "llama-3.1-8b", "2xh100", sessions=4)
    assert make_plan(asked).ways == []
    changes = what_fits(asked)
    assert changes == ["--target-dtype fp8", "--gpus 4xh100"]
    more = question("llama-3.1-70b", "llama-3.1-8b", "4xh100", sessions=4)
    assert any(each.session_count >= 4 for each in placements(more.pair, more.groups))
    close = question("llama-3.1-70b", "llama-3.1-8b", "3xh200", sessions=100)
    fewer, shorter, *_ = what_fits(close)
    assert (fewer, shorter) == ("--sessions 81", "--context 3344")
    longest = replace(close, pair=replace(close.pair, context=3344))
    assert max(each.session_count for each in placements(longest.pair, longest.groups)) >= 100
    longer = replace(close, pair=replace(close.pair, context=3360))
    assert max(each.session_count for each in placements(longer.pair, longer.groups)) < 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sessions": 0}, "--sessions is 1 to 512, not 0"),
        ({"sessions": 513}, "--sessions is 1 to 512, not 513"),
        ({"context": 0}, "--context is at least 1"),
        ({"context": 131073}, "--context 131073 is more than the 131072 tokens of the target llama-3.1-8b"),
    ],
)
def test_numbers_that_cannot_be_planned_with_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        question("llama-3.1-8b", "llama-3.2-1b", "h100", **changes)


def test_a_published_acceptance_is_shown_with_its_conditions() -> None:
    lines = assumptions_of(supposed(question("llama-3-70b", "llama-3-8b", "4xh100")))
    assert any("an acceptance of 0.59 was published: mean of four prompts, greedy" in line for line in lines)
    lines = assumptions_of(supposed(question("llama-3-70b", "llama-3.2-1b", "4xh100")))
    assert not any("published" in line for line in lines)


def test_each_format_says_what_it_is() -> None:
    assert all(known.says and name == known.name for name, known in FORMATS.items())


PAIR = ["--target", "llama-3.1-70b", "--draft", "llama-3.1-8b", "--gpus", "4xh200"]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (["--target", "nothing"], "--target: nothing is no folder or file here"),
        (["--draft", "./nothing"], "--draft: there is no file or folder ./nothing"),
        (["--target-dtype", "int3"], "--target-dtype int3 is not known"),
        (["--gpus", "4xtpu"], "--gpus 4xtpu: 'tpu' is not known"),
        (["--gpus", "cpu"], "--gpus cpu needs the machine's --cpu-memory"),
        (["--cpu-memory", "-1"], "--cpu-memory is above 0"),
        (["--acceptance", "0.5;0.6"], "--acceptance 0.5;0.6: give up to 20 numbers from 0 to 1"),
        (["--acceptance", "1.5"], "--acceptance 1.5: give up to 20 numbers from 0 to 1"),
        (["--round-trip", "-1"], "--round-trip -1: give up to 20 numbers from 0 to 60000"),
        (["--round-trip", "nan"], "--round-trip nan: give"),
        (["--bandwidth-share", "2"], "--bandwidth-share is above 0 and at most 1, not 2"),
        (["--host-ms", "-1"], "--host-ms is a number of milliseconds of at least 0, not -1"),
        (["--sessions", "0"], "--sessions is 1 to 512, not 0"),
        (["--context", "200000"], "--context 200000 is more than the 131072 tokens"),
        (["--svg", "/nowhere/plan.svg"], "--svg /nowhere/plan.svg cannot be written: /nowhere is no folder"),
    ],
)
def test_a_wrong_flag_is_named_in_one_line(changes: list[str], line: str) -> None:
    ended = CliRunner().invoke(app, ["plan", *PAIR, *changes])
    assert ended.exit_code == 1
    assert ended.stderr.startswith(f"slipstream: {line}"), ended.stderr
    assert len(ended.stderr.splitlines()) == 1
