"""Presets of synchronization methods. A method is five independent choices. A preset names a set of them, and the
manifest may override any. docs/explanation/methods.md tells where each number comes from."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from peer.errors import ManifestError
from peer.run.codec_specs import SPARSE, result_codec_for
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
MAX_GROUP, WEIGHTS, MEAN = 16, "tokens", "weighted"
RADIAL = 0.7
"""Part of a group's `outer_lr` that is the default with the radial-directional mean: that is longer."""
ACCEPTANCE = "check"
"""Of pairs."""
PLAIN_PAIR = "bf16"
"""The codec of pairs, except of noloco and gossip."""
GROWTH_LR = 4.4e-3
"""As the paper's for AdamW, 1.1 times the peak learning rate: here that of the manifest's default."""
STREAMED: dict[str, Any] = {"fragments": 2, "fragment_layout": "strided", "fragment_update_alpha": 0.5}
AT_ONCE: dict[str, Any] = {"fragment_sync_delay": 0.0, "fragment_update_alpha": 0.0}
WHOLE: dict[str, Any] = {"fragments": 1, "fragment_layout": "whole", "fragment_update_alpha": 0.0}

_NOLOCO: dict[str, Any] = {
    "topology": "pair",
    "acceptance": ACCEPTANCE,
    "rule": "noloco",
    "outer_lr": 0.7,
    "outer_momentum": 0.5,
    "consensus": 0.7,
}
_GOSSIP: dict[str, Any] = _NOLOCO | {"outer_lr": 1.0, "outer_momentum": 0.0, "consensus": 1.0}
_DILOCO: dict[str, Any] = {"topology": "group", "rule": "nesterov", "outer_lr": 0.7, "outer_momentum": 0.5}
_DILOCO |= {"consensus": 0.0, "max_group": MAX_GROUP, "weights": WEIGHTS, "mean": MEAN}
_EAGER: dict[str, Any] = _DILOCO | STREAMED | AT_ONCE | {"outer_momentum": 0.0}
_GASLOC: dict[str, Any] = {"outer_lr": 1.0, "outer_momentum": 0.3, "consensus": 1.0}
_PAIRED: dict[str, Any] = {"topology": "pair", "acceptance": ACCEPTANCE, "rule": "gasloc", "codec": "bf16", **_GASLOC}
_SNOO: dict[str, Any] = {"topology": "solo", "rule": "nesterov", "outer_lr": 0.7, "outer_momentum": 0.5}
_SNOO |= {"consensus": 0.0}
_MEAN: dict[str, Any] = {"rule": "sgd", "outer_lr": 1.0, "outer_momentum": 0.0}
_SPARSELOCO: dict[str, Any] = _DILOCO | _MEAN
_NONE: dict[str, Any] = {"topology": "solo", "rule": "sgd", "outer_lr": 1.0, "outer_momentum": 0.0, "consensus": 0.0}

PRESETS = {
    "gossip": Method(codec="modulo7", **_GOSSIP),
    "noloco": Method(codec="modulo7", **_NOLOCO),
    "streaming-noloco": Method(schedule="streaming", codec="bf16", **_NOLOCO, **STREAMED),
    "diloco": Method(codec="fp32", result_codec="fp32", **_DILOCO),
    "streaming-diloco": Method(schedule="streaming", codec="int4", result_codec="int8", **_DILOCO, **STREAMED),
    "gasloc": Method(**_PAIRED),
    "streaming-gasloc": Method(schedule="streaming", **_PAIRED, **(STREAMED | {"fragment_update_alpha": 0.0})),
    "snoo": Method(codec="fp32", **_SNOO),
    "qsr": Method(codec="fp32", result_codec="fp32", growth_lr=GROWTH_LR, **(_DILOCO | _MEAN)),
    "sparseloco": Method(codec="topk", result_codec=SPARSE, **_SPARSELOCO),
    "eager": Method(schedule="streaming", codec="fp32", result_codec="fp32", eager=True, **_EAGER),
    CONTROL: Method(codec="fp32", **_NONE),
}
NO_CHOICES = ("clock", "sync_every", "growth")
CHOICES = tuple(name for name in asdict(PRESETS[CONTROL]) if name not in NO_CHOICES)
"""The choices of a preset, in the order of Method. A manifest may override them."""


@functools.lru_cache(16)  # a daemon asks for its run's method many times a minute
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
    chosen = replace(PRESETS[sync.preset], **given)
    chosen = replace(chosen, clock=sync.clock, sync_every=sync.sync_every, growth=sync.growth or ())
    for follow in (_schedule, _cut, _rule, _codec, _group, _mean, _acceptance):
        chosen = replace(chosen, **{name: value for name, value in follow(chosen).items() if name not in given})
    return chosen


def sources(sync: SyncSection) -> Iterator[tuple[str, Any, str]]:
    """(choice, value, where it comes from) for each: `manifest`, `preset`, or `default`: what follows where neither
    says anything else."""
    said = overrides(sync).keys() | (sync.model_fields_set & set(NO_CHOICES))
    preset = asdict(PRESETS[sync.preset])
    for name, value in asdict(method_of(sync)).items():
        by_preset = name in CHOICES and name != "fragment_sync_delay" and preset[name] == value
        yield name, value, "manifest" if name in said else "preset" if by_preset else "default"


def _schedule(chosen: Method) -> dict[str, Any]:
    """Return the choices of the schedule, which a manifest may change. The part that a merge keeps weakens gasloc's
    momentum and its step towards the partner alike, so with it nothing is kept."""
    if chosen.schedule == "full":
        return {**WHOLE, "fragment_sync_delay": 0.0}
    if chosen.eager:
        return {**STREAMED, **AT_ONCE}
    streamed = {**STREAMED, "fragment_sync_delay": _delay(chosen)}
    return streamed | ({"fragment_update_alpha": 0.0} if chosen.rule == "gasloc" else {})


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
    """Return the choices of the rule. A consensus is noloco's and gasloc's alone. By default noloco's is equal to
    outer_lr: then params alone need to travel. Gasloc has defaults of its own, whatever preset it was put into."""
    if chosen.rule == "gasloc":
        return _GASLOC
    momentum = 0.0 if chosen.rule == "sgd" else chosen.outer_momentum
    return {"outer_momentum": momentum, "consensus": chosen.outer_lr if chosen.rule == "noloco" else 0.0}


def _codec(chosen: Method) -> dict[str, Any]:
    """Return the codec where the choices make another method of noloco. Its lattice codec was measured with params that
    are all merged, and that alone cross the wire."""
    noloco = chosen.topology == "pair" and chosen.rule == "noloco" and chosen.schedule == "full"
    own = noloco and not chosen.sends_outer
    return {} if own or not chosen.codec.startswith("modulo") else {"codec": PLAIN_PAIR}


def _group(chosen: Method) -> dict[str, Any]:
    if chosen.topology != "group":
        return {"result_codec": "", "max_group": 0, "weights": "", "mean": ""}
    relays = chosen.result_codec == SPARSE and chosen.codec == "topk"
    result = SPARSE if relays else result_codec_for(chosen.codec)
    weights, mean = chosen.weights or WEIGHTS, chosen.mean or MEAN
    return {"result_codec": result, "max_group": chosen.max_group or MAX_GROUP, "weights": weights, "mean": mean}


def _acceptance(chosen: Method) -> dict[str, Any]:
    return {"acceptance": (chosen.acceptance or ACCEPTANCE) if chosen.topology == "pair" else ""}


def _mean(chosen: Method) -> dict[str, Any]:
    """Return an `outer_lr` that fits the mean: see docs/explanation/methods.md."""
    radial = chosen.topology == "group" and chosen.mean == "rda"
    return {"outer_lr": round(RADIAL * chosen.outer_lr, 3)} if radial else {}
