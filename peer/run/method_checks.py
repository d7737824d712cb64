"""Which methods cannot be, or would not do what they say, and why: (field, reason) for each finding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from peer.run.codec_specs import FORMS, KINDS, WHY
from peer.run.method import Method

Refusal = tuple[str, str]


def refusals(method: Method) -> Iterator[Refusal]:
    """Return everything that speaks against a method."""
    for check in (_rule, _spread, _full, _streaming, _codecs, _group):
        yield from check(method)


def control_refusals(control: Method, given: Mapping[str, Any]) -> Iterator[Refusal]:
    """Refuse choices that would change the control. Nothing crosses its wire, so a codec changes nothing."""
    for name, value in given.items():
        fixed = getattr(control, name)
        if name != "codec" and value != fixed:
            yield name, f"preset none is the control and takes no {name} ({value}) but its own ({fixed or 'none'})"


def _rule(method: Method) -> Iterator[Refusal]:
    if method.rule == "noloco" and method.topology == "group":
        yield (
            "rule",
            "noloco draws two partners together, but the members of a group share one state. "
            'Use "nesterov" or "sgd", or topology = "pair"',
        )
    if method.rule != "noloco" and method.topology == "pair":
        yield (
            "rule",
            f"{method.rule} has no consensus: with random partners the replicas drift apart for ever. "
            'Use "noloco" (with outer_momentum = 0 and outer_lr = 1 it averages), or topology = "group"',
        )
    if method.rule != "noloco" and method.consensus:
        yield "consensus", f"rule {method.rule} has no consensus, so it cannot be {method.consensus:g}"
    if method.rule == "sgd" and method.outer_momentum:
        yield "outer_momentum", f"rule sgd has no momentum, so it cannot be {method.outer_momentum:g}"


def _spread(method: Method) -> Iterator[Refusal]:
    if method.topology != "pair" or method.rule != "noloco":
        return
    if method.consensus == 0:
        yield "consensus", "without a consensus the replicas drift apart for ever"
        return
    if method.codec.startswith("modulo") and method.consensus != method.outer_lr:
        yield (
            "codec",
            f"{method.codec} sends params alone. With a consensus other than outer_lr outer_params must travel too",
        )
    growth = spread_growth(method.outer_momentum, method.consensus)
    if growth >= 1:
        yield (
            "outer_momentum",
            f"outer_momentum {method.outer_momentum:g} with consensus {method.consensus:g} diverges: the replicas' "
            f"variance would change by a factor of {growth:.3f} a round. It has to be below 1",
        )


def spread_growth(momentum: float, consensus: float) -> float:
    """Return the factor by which the variance of the replicas changes in a round of random pairs without gradients:
    below 1 it shrinks. It is the spectral radius of the map of second moments (E phi^2, E phi m, E m^2), two at a
    time."""
    a, g, k = momentum, consensus, 0.5
    to_w = np.array([g * g * k, -2 * a * g * k, a * a])
    to_p = np.array([-g * k, a, 0.0])
    step = np.array([np.array([1.0, 0.0, 0.0]) + 2 * to_p + to_w, to_p + to_w, to_w])
    return float(np.abs(np.linalg.eigvals(step)).max())


def _full(method: Method) -> Iterator[Refusal]:
    """Schedule full is one fragment, exchanged and merged while the trainer waits."""
    if method.schedule != "full":
        return
    use = 'use schedule = "streaming"'
    if method.fragments != 1:
        yield "fragments", f"schedule full has one fragment, not {method.fragments}: {use}"
    if method.fragment_layout != "whole":
        yield "fragment_layout", f"schedule full cuts nothing, so nothing can be {method.fragment_layout}: {use}"
    if method.fragments_apart:
        yield "fragments_apart", f"schedule full has one fragment, so nothing is set apart: {use}"
    if method.fragment_sync_delay:
        yield "fragment_sync_delay", f"in schedule full the trainer waits for the result and merges it at once: {use}"
    if method.fragment_update_alpha:
        yield "fragment_update_alpha", f"in schedule full nothing is learned meanwhile that could be kept: {use}"


def _streaming(method: Method) -> Iterator[Refusal]:
    if method.schedule != "streaming":
        return
    unit = "inner steps" if method.clock == "steps" else "seconds"
    delay, every = method.fragment_sync_delay, method.sync_every
    if delay >= every:
        yield (
            "fragment_sync_delay",
            f"{delay:g} {unit} are not below sync_every ({every:g}): a fragment has to be merged before it is due",
        )
    if method.fragment_layout == "whole" and method.fragments > 1:
        yield "fragment_layout", f"the layout whole makes one fragment, not {method.fragments}"
    if method.clock == "steps" and delay != int(delay):
        yield "fragment_sync_delay", f"{delay:g} is no whole number of inner steps"
    if method.clock == "steps" and every % method.fragments:
        yield (
            "sync_every",
            f"{every:g} inner steps cannot be divided by {method.fragments} fragments: each round is a whole "
            "number of steps",
        )
    if method.fragment_update_alpha == 1 and method.topology != "solo":
        yield "fragment_update_alpha", "at 1 the trainer keeps its own values, so that no exchange ever reaches it"


def _codecs(method: Method) -> Iterator[Refusal]:
    if method.topology != "solo" and method.codec not in KINDS[method.payload]:
        yield "codec", _misfit(method.codec, method.payload)
    if method.topology != "group":
        if method.result_codec:
            yield "result_codec", f"only in groups a result is sent back, not with topology {method.topology}"
        return
    if method.result_codec not in KINDS["result"]:
        yield "result_codec", _misfit(method.result_codec, "result")
    elif FORMS[method.result_codec].bits < FORMS[method.codec].bits:
        yield (
            "result_codec",
            f"{method.result_codec} is narrower than the contributions' {method.codec}: what they bring would be lost "
            "on the way back",
        )


def _misfit(codec: str, kind: str) -> str:
    return f"{codec} does not fit: {WHY[kind]}. Use one of {', '.join(KINDS[kind])}"


def _group(method: Method) -> Iterator[Refusal]:
    if method.topology == "group" and method.max_group < 2:
        yield "max_group", f"a group of {method.max_group} has nobody to exchange with: at least 2"
    if method.topology != "group":
        for name in ("max_group", "founders"):
            if getattr(method, name):
                yield name, f"there are no groups with topology {method.topology}"
    elif method.founders > method.max_group:
        yield "founders", f"{method.founders} peers cannot begin a group of at most {method.max_group}"
