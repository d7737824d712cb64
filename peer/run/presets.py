"""Presets of synchronization methods. A method is five independent choices. A preset names a set of them, and the
manifest may override any. docs/explanation/methods.md tells where each number comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from peer.errors import ManifestError
from peer.run.codec_specs import result_codec_for
from peer.run.manifest_errors import ManifestFinding, listed
from peer.run.method import Method
from peer.run.method_checks import control_refusals, refusals, spread_growth
from peer.run.sections import SyncSection

__all__ = [
    "CONTROL",
    "PRESETS",
    "Method",
    "method_findings",
    "method_of",
    "overrides",
    "resolve",
    "sources",
    "spread_growth",
]

CONTROL = "none"
MAX_GROUP = 16
STREAMED: dict[str, Any] = {"fragments": 2, "fragment_layout": "strided", "fragment_update_alpha": 0.5}
WHOLE: dict[str, Any] = {"fragments": 1, "fragment_layout": "whole", "fragment_update_alpha": 0.0}

_NOLOCO: dict[str, Any] = {
    "topology": "pair",
    "rule": "noloco",
    "outer_lr": 0.7,
    "outer_momentum": 0.5,
    "consensus": 0.7,
}
_DILOCO: dict[str, Any] = {"topology": "group", "rule": "nesterov", "outer_lr": 0.7, "outer_momentum": 0.5}
_DILOCO |= {"consensus": 0.0, "max_group": MAX_GROUP}
_NONE: dict[str, Any] = {"topology": "solo", "rule": "sgd", "outer_lr": 1.0, "outer_momentum": 0.0, "consensus": 0.0}

PRESETS = {
    "noloco": Method(codec="bf16", **_NOLOCO),
    "streaming-noloco": Method(schedule="streaming", codec="bf16", **_NOLOCO, **STREAMED),
    "diloco": Method(codec="fp32", result_codec="fp32", **_DILOCO),
    "streaming-diloco": Method(schedule="streaming", codec="int4", result_codec="fp16", **_DILOCO, **STREAMED),
    CONTROL: Method(codec="fp32", **_NONE),
}
CHOICES = tuple(name for name in asdict(PRESETS[CONTROL]) if name not in ("clock", "sync_every"))
"""The choices of a preset, in the order of Method. A manifest may override them. Clock and sync_every are not among
them."""


def resolve(sync: SyncSection) -> Method:
    """Return the preset with the manifest's overrides. Raises ManifestError with every reason why it cannot be."""
    if findings := method_findings(sync):
        raise ManifestError(
            f"the method cannot be:\n{listed(findings)}", "Leave these keys out to get the preset's values."
        )
    return method_of(sync)


def method_findings(sync: SyncSection) -> list[ManifestFinding]:
    """Return every reason why this method cannot be. Empty: it can."""
    method, given = method_of(sync), overrides(sync)
    wrong = control_refusals(PRESETS[CONTROL], given) if sync.preset == CONTROL else refusals(method)
    return [ManifestFinding(("sync", field), reason) for field, reason in wrong]


def overrides(sync: SyncSection) -> dict[str, Any]:
    """Return the choices that the manifest itself makes."""
    return {name: value for name in CHOICES if (value := getattr(sync, name)) is not None}


def method_of(sync: SyncSection) -> Method:
    """Return the method of a sync section, not checked."""
    given = overrides(sync)
    chosen = replace(PRESETS[sync.preset], clock=sync.clock, sync_every=sync.sync_every, **given)
    for follow in (_schedule, _cut, _rule, _group):
        chosen = replace(chosen, **{name: value for name, value in follow(chosen).items() if name not in given})
    return chosen


def sources(sync: SyncSection) -> Iterator[tuple[str, Any, str]]:
    """(choice, value, where it comes from) for each: `manifest`, `preset`, or `default`: what follows where neither
    says anything else."""
    said = overrides(sync).keys() | (sync.model_fields_set & {"clock", "sync_every"})
    preset = asdict(PRESETS[sync.preset])
    for name, value in asdict(method_of(sync)).items():
        by_preset = name in CHOICES and name != "fragment_sync_delay" and preset[name] == value
        yield name, value, "manifest" if name in said else "preset" if by_preset else "default"


def _schedule(chosen: Method) -> dict[str, Any]:
    """Return the choices of the schedule, which a manifest may change."""
    if chosen.schedule == "full":
        return {**WHOLE, "fragment_sync_delay": 0.0}
    return {**STREAMED, "fragment_sync_delay": _delay(chosen)}


def _delay(chosen: Method) -> float:
    """Long enough for a partner at the same pace, short against the work that a merge halves: see
    docs/decisions/0007-method-defaults.md."""
    if chosen.clock == "steps":
        return 5.0 if chosen.sync_every >= 20 else float(chosen.sync_every > 1)
    return max(0.1, round(chosen.sync_every / 60, 1))


def _cut(chosen: Method) -> dict[str, Any]:
    apart = chosen.fragments >= 3 and chosen.fragment_layout in ("sequential", "strided")
    return {"fragments_apart": apart}


def _rule(chosen: Method) -> dict[str, Any]:
    """Return the choices of the rule. A consensus is noloco's alone, and equal to outer_lr by default: then params
    alone need to travel."""
    momentum = 0.0 if chosen.rule == "sgd" else chosen.outer_momentum
    return {"outer_momentum": momentum, "consensus": chosen.outer_lr if chosen.rule == "noloco" else 0.0}


def _group(chosen: Method) -> dict[str, Any]:
    if chosen.topology != "group":
        return {"result_codec": "", "max_group": 0}
    return {"result_codec": result_codec_for(chosen.codec), "max_group": chosen.max_group or MAX_GROUP}
