"""Sentences that say what a plan assumes. Pure."""

from __future__ import annotations

from slipstream.hub.pairs import known_pairs
from slipstream.planning.devices import Device
from slipstream.planning.models import hub_id
from slipstream.planning.plan import Plan
from slipstream.planning.speed import simulated_sessions
from slipstream.simulation.scenario import Scenario


def assumptions_of(plan: Plan) -> list[str]:
    """Return what a reader must know to judge the figures, one sentence each."""
    question = plan.question
    assumed, usual = question.pair.assumed, Scenario()
    return [
        "tokens/s are a simulation, not a measurement. It runs the decisions of the services with made-up texts and the "
        "step times above.",
        f"A forward takes the longer of its bytes at {assumed.bandwidth_share:.0%} of the memory's bandwidth and its "
        f"operations at {assumed.flops_share:.0%} of the dense bfloat16 peak. A target's step takes "
        f"{assumed.host_seconds * 1e3:g} ms more, a draft's {assumed.draft_host_seconds * 1e3:g} ms.",
        f"Every session has {question.pair.context} tokens, and all of them generate. Prompts take no time.",
        "Ranks divide matrices, embedding, head and KV heads. Two sums a layer wait 15 us over "
        "NVLink or Infinity Fabric, and 30 us over PCIe.",
        f"{assumed.memory_share:.0%} of a device's memory is used. {assumed.workspace_bytes / 1e9:g} GB of each process "
        "are for its context, graphs and activations. KV stays in 16 bits beside quantised weights, and past a sliding "
        "window.",
        f"Acceptance is the same at every token. Where the draft's first choice is wrong, its second is right in "
        f"{usual.second_share:.0%}. Temperature does not matter here.",
        *_grouped(question.session_count),
        *_latent(plan),
        *_published(plan),
        "A round trip is that from the draft to the target. A draft on the target's device has none, takes turns with "
        "it, and works only while trials show that it pays.",
        *(f"{group.device.says}: {_figures(group.device)}; {group.device.source}" for group in question.groups),
    ]


def _grouped(session_count: int) -> list[str]:
    simulated = simulated_sessions(session_count)
    if simulated == session_count:
        return []
    return [f"{simulated} sessions are simulated. Each stands for {session_count / simulated:.1f}, which guess alike."]


def _latent(plan: Plan) -> list[str]:
    """Return what ranks of a stock engine keep of each token, where it differs from the table."""
    target = plan.question.pair.target
    if not target.shape.latent_values:
        return []
    kept = target.shape.latent_values * target.format.kv_bytes / 1024
    return [
        f"Slipstream's own engine keeps expanded keys and values of {target.shape.name}, as the table says. Ranks are a "
        f"stock engine's: each keeps the latent vectors, {kept:.0f} KiB of a token."
    ]


def _published(plan: Plan) -> list[str]:
    """Return what others have measured of this pair."""
    names = tuple(hub_id(model.shape.name) for model in (plan.question.pair.target, plan.question.pair.draft))
    return [
        f"For this pair an acceptance of {pair.acceptance:g} was published: {pair.conditions}; {pair.source}"
        for pair in known_pairs()
        if (pair.target, pair.draft) == names and pair.acceptance is not None
    ]


def _figures(device: Device) -> str:
    return f"{device.memory / 1e9:g} GB, {device.bandwidth / 1e9:g} GB/s, {device.flops / 1e12:g} TFLOP/s"
