"""Resolves the method of a manifest's [sync] section: a preset, the overrides of the section, and the choices that
follow from both."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from peer.errors import ManifestError
from peer.methods.checks import refusals
from peer.methods.codec_specs import SPARSE, result_codec_for
from peer.methods.method import ACCEPTANCE, MAX_GROUP, MEAN, STREAMED, WEIGHTS, WHOLE, Method
from peer.methods.registry import ENTRIES, PRESETS
from peer.methods.sgd import CONTROL, NONE, control_refusals
from peer.run.manifest_errors import ManifestFinding, listed
from peer.run.sections import SyncSection

PLAIN_PAIR = "bf16"
"""The codec of pairs, except where a rule was measured with the lattice codec."""
NO_CHOICES = ("clock", "sync_every", "growth")
"""Fields of a method that the manifest sets itself and no preset has."""
CHOICES = tuple(name for name in asdict(NONE) if name not in NO_CHOICES)
"""The choices of a preset, in the order of `Method`. A manifest may override each."""


@functools.lru_cache(16)  # a daemon resolves its run's method many times a minute
def resolve(sync: SyncSection) -> Method:
    """Return the method of a sync section. Raises ManifestError with all findings when the choices contradict each
    other."""
    if findings := method_findings(sync):
        raise ManifestError(
            f"the method cannot be:\n{listed(findings)}", "Leave these keys out to get the preset's values."
        )
    return method_of(sync)


def method_findings(sync: SyncSection) -> list[ManifestFinding]:
    """Return the contradictions among the choices of a method. Empty: there are none."""
    method, given = method_of(sync), overrides(sync)
    wrong = control_refusals(given) if sync.preset == CONTROL else refusals(method)
    return [ManifestFinding(("sync", field), reason) for field, reason in wrong]


def overrides(sync: SyncSection) -> dict[str, Any]:
    """Return the choices that the manifest itself makes."""
    return {name: value for name in CHOICES if (value := getattr(sync, name)) is not None}


def method_of(sync: SyncSection) -> Method:
    """Return the method of a sync section without checking it."""
    given = overrides(sync)
    chosen = replace(PRESETS[sync.preset].method, **given)
    chosen = replace(chosen, clock=sync.clock, sync_every=sync.sync_every, growth=sync.growth or ())
    own = (entry.follows for entry in ENTRIES)
    for follow in (_schedule, _cut, _rule, _codec, _group, _acceptance, *own):
        chosen = replace(chosen, **{name: value for name, value in follow(chosen).items() if name not in given})
    return chosen


def sources(sync: SyncSection) -> Iterator[tuple[str, Any, str]]:
    """Yield (choice, value, source) for each choice. The source is `manifest`, `preset`, or `default` for a value that
    follows from other choices."""
    said = overrides(sync).keys() | (sync.model_fields_set & set(NO_CHOICES))
    preset = asdict(PRESETS[sync.preset].method)
    for name, value in asdict(method_of(sync)).items():
        by_preset = name in CHOICES and name != "fragment_sync_delay" and preset[name] == value
        yield name, value, "manifest" if name in said else "preset" if by_preset else "default"


def _schedule(chosen: Method) -> dict[str, Any]:
    """Return the choices that follow from the schedule."""
    if chosen.schedule == "full":
        return {**WHOLE, "fragment_sync_delay": 0.0}
    return {**STREAMED, "fragment_sync_delay": _delay(chosen)}


def _delay(chosen: Method) -> float:
    """Return the default delay of a merge: long enough for a partner of equal speed, short against the work that a
    merge halves. See docs/decisions/0007-method-defaults.md."""
    if chosen.clock == "steps":
        return 5.0 if chosen.sync_every >= 20 else float(chosen.sync_every > 1)
    return max(0.1, round(chosen.sync_every / 60, 1))


def _cut(chosen: Method) -> dict[str, Any]:
    apart = chosen.fragments >= 3 and chosen.fragment_layout in ("sequential", "strided")
    return {"fragments_apart": apart}


def _rule(chosen: Method) -> dict[str, Any]:
    return chosen.outer_rule.follows(chosen)


def _codec(chosen: Method) -> dict[str, Any]:
    """Return the codec for choices that differ from those of the preset noloco. The lattice codec was measured only for
    merges of whole params, without outer_params in the payload."""
    measured = chosen.paired and chosen.outer_rule.lattice and chosen.schedule == "full"
    own = measured and not chosen.sends_outer
    return {} if own or not chosen.codec.startswith("modulo") else {"codec": PLAIN_PAIR}


def _group(chosen: Method) -> dict[str, Any]:
    if not chosen.one_state:
        return {"result_codec": "", "max_group": 0, "weights": "", "mean": ""}
    relays = chosen.result_codec == SPARSE and chosen.codec == "topk"
    result = SPARSE if relays else result_codec_for(chosen.codec)
    weights, mean = chosen.weights or WEIGHTS, chosen.mean or MEAN
    return {"result_codec": result, "max_group": chosen.max_group or MAX_GROUP, "weights": weights, "mean": mean}


def _acceptance(chosen: Method) -> dict[str, Any]:
    return {"acceptance": (chosen.acceptance or ACCEPTANCE) if chosen.paired else ""}
