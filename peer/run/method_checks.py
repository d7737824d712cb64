"""Which methods cannot be, or would not do what they say, and why: (field, reason) for each finding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer.protocol.group.radial_mean import FEWEST
from peer.run.codec_specs import FORMS, KINDS, SPARSE, WHY
from peer.run.method import Method

Refusal = tuple[str, str]
Matrix = NDArray[np.float64]
PAIRED = ("noloco", "gasloc")
"""The rules that draw two partners together."""
ROUNDING = 1e-9
"""Error of a computed eigenvalue: an exact 1 comes out just above 1 on one processor, and just below on another."""


def refusals(method: Method) -> Iterator[Refusal]:
    """Return everything that speaks against a method."""
    for check in (_rule, _spread, _pull, _full, _streaming, _codecs, _group, _radial, _acceptance):
        yield from check(method)


def control_refusals(control: Method, given: Mapping[str, Any]) -> Iterator[Refusal]:
    """Refuse choices that would change the control. Nothing crosses its wire, so a codec changes nothing."""
    for name, value in given.items():
        fixed = getattr(control, name)
        if name != "codec" and value != fixed:
            yield name, f"preset none is the control and takes no {name} ({value}) but its own ({fixed or 'none'})"


def _rule(method: Method) -> Iterator[Refusal]:
    if method.rule in PAIRED and method.topology == "group":
        yield (
            "rule",
            f"{method.rule} draws two partners together, but the members of a group share one state. "
            'Use "nesterov" or "sgd", or topology = "pair"',
        )
    if method.rule not in PAIRED and method.topology == "pair":
        yield (
            "rule",
            f"{method.rule} has no consensus: with random partners the replicas drift apart for ever. "
            'Use "noloco" (with outer_momentum = 0 and outer_lr = 1 it averages) or "gasloc", or topology = "group"',
        )
    if method.rule not in PAIRED and method.consensus:
        yield "consensus", f"rule {method.rule} has no consensus, so it cannot be {method.consensus:g}"
    if method.rule == "sgd" and method.outer_momentum:
        yield "outer_momentum", f"rule sgd has no momentum, so it cannot be {method.outer_momentum:g}"


def _spread(method: Method) -> Iterator[Refusal]:
    if method.topology != "pair" or method.rule not in PAIRED:
        return
    if method.consensus == 0:
        yield "consensus", "without a consensus the replicas drift apart for ever"
        return
    if method.codec.startswith("modulo") and method.sends_outer:
        yield (
            "codec",
            f"{method.codec} sends params alone. With a consensus other than outer_lr outer_params must travel too",
        )
    growth = spread_growth(method)
    if growth >= 1 - ROUNDING and method.fragment_update_alpha < 1:
        kept = f", fragment_update_alpha {method.fragment_update_alpha:g}" if method.fragment_update_alpha else ""
        yield (
            "outer_momentum",
            f"outer_momentum {method.outer_momentum:g} with outer_lr {method.outer_lr:g}, consensus "
            f"{method.consensus:g}{kept} diverges: the replicas' variance would change by a factor of {growth:.3f} a "
            "round. It has to be below 1",
        )


def _pull(method: Method) -> Iterator[Refusal]:
    growth = pull_growth(method)
    if growth >= 1 - ROUNDING:
        yield (
            "outer_lr",
            f"outer_lr {method.outer_lr:g} with outer_momentum {method.outer_momentum:g} and fragment_update_alpha "
            f"{method.fragment_update_alpha:g} diverges: params and outer_params would move apart by a factor of "
            f"{growth:.3f} a round. It has to be below 1",
        )


def spread_growth(method: Method) -> float:
    """Return the factor by which the variance of the replicas changes in a round of random pairs without gradients:
    below 1 it shrinks.

    Let x be (outer_params, outer_momentum, params) of a replica, less the mean over all. A round makes A x + B y of it,
    y being its partner's. Among many replicas these two are independent, so the second moments S of x become
    A S A' + B S B'. The factor is the spectral radius of this map. `fragment_update_alpha` is in it: the params that a
    merge keeps are part of the next exchange."""
    own, partner = _round_of(method)
    return float(np.abs(np.linalg.eigvals(np.kron(own, own) + np.kron(partner, partner))).max())


def pull_growth(method: Method) -> float:
    """Return the factor by which the means of params and outer_params over all replicas move apart in a round without
    gradients. A merge that keeps nothing makes them equal."""
    own, partner = _round_of(method)
    outer, momentum, params = own + partner
    apart = np.stack([momentum, params - outer])[:, 1:]  # moving both by the same leaves them as they are
    return float(np.abs(np.linalg.eigvals(apart)).max())


def _round_of(method: Method) -> tuple[Matrix, Matrix]:
    """Return A and B: rule and merge, written as sums of a replica's values and its partner's. The members of a group,
    and replicas alone, have no partner."""
    outer, momentum, params, their_outer, _, their_params = np.eye(6)
    lr, decay, pull = method.outer_lr, method.outer_momentum, 0.5 * method.consensus
    if method.rule == "gasloc":
        sent, theirs = outer + lr * (params - outer), their_outer + lr * (their_params - their_outer)
        new_momentum = pull * (theirs - sent) + decay * (sent - outer + momentum)
        new_outer = sent + new_momentum
    elif method.rule == "noloco":
        work = 0.5 * (params - outer + their_params - their_outer)
        new_momentum = decay * momentum + lr * work - pull * (outer - their_outer)
        new_outer = outer + new_momentum
    else:
        new_momentum = decay * momentum + outer - params
        new_outer = outer - lr * (outer - params + decay * new_momentum)
    new_params = method.fragment_update_alpha * params + (1 - method.fragment_update_alpha) * new_outer
    rows = np.stack([new_outer, new_momentum, new_params])
    return rows[:, :3], rows[:, 3:]


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
    if method.clock == "steps" and every < method.fragments:
        yield (
            "sync_every",
            f"{every:g} inner steps are fewer than the {method.fragments} fragments: each round has at least one step",
        )
    if method.eager:
        for name in ("fragment_sync_delay", "fragment_update_alpha"):
            if value := getattr(method, name):
                yield (
                    name,
                    f"an eager member takes its own part at once and loses nothing by it, so it has no {value:g}",
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
    elif method.result_codec == SPARSE:
        if method.codec != "topk":
            yield "result_codec", f"sparse is the result of contributions in topk. Those in {method.codec} are dense"
    elif FORMS[method.result_codec].bits < FORMS[method.codec].bits:
        yield (
            "result_codec",
            f"{method.result_codec} is narrower than the contributions' {method.codec}: what they bring would be lost "
            "on the way back",
        )


def _misfit(codec: str, kind: str) -> str:
    return f"{codec} does not fit: {WHY[kind]}. Use one of {', '.join(KINDS[kind])}"


def _group(method: Method) -> Iterator[Refusal]:
    if method.eager and (method.topology != "group" or method.fragments < 2):
        yield (
            "eager",
            'eager updates are for topology = "group" and at least two fragments: while one is exchanged, the others '
            "are due",
        )
    if method.topology == "group" and method.max_group < 2:
        yield "max_group", f"a group of {method.max_group} has nobody to exchange with: at least 2"
    if method.topology != "group":
        for name in ("max_group", "founders", "weights", "mean"):
            if getattr(method, name):
                yield name, f"there are no groups with topology {method.topology}"
    elif method.founders > method.max_group:
        yield "founders", f"{method.founders} peers cannot begin a group of at most {method.max_group}"


def _radial(method: Method) -> Iterator[Refusal]:
    if method.mean != "rda" or method.topology != "group":
        return
    if method.codec == "topk":
        yield (
            "mean",
            "rda averages directions, and each contribution in topk has a 64th of its own: two of them hardly share an "
            "element",
        )
    if method.eager:
        yield "mean", "an eager member takes its own part of a sum at once, and rda is no sum of its members' parts"
    if method.max_group < FEWEST:
        yield "mean", f"rda takes {FEWEST} members, and max_group is {method.max_group}"


def _acceptance(method: Method) -> Iterator[Refusal]:
    if method.acceptance and method.topology != "pair":
        yield "acceptance", f"only a pair has a partner whose params are judged, not topology {method.topology}"
