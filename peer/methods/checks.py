"""Checks of a method that apply to every rule and preset.

They refuse combinations of choices that cannot work or would have no effect. The checks of a single rule or choice are
in its own file."""

from __future__ import annotations

from collections.abc import Iterator

from peer.methods.codec_specs import FORMS, KINDS, SPARSE, WHY
from peer.methods.method import Method, Refusal
from peer.methods.registry import ENTRIES
from peer.methods.rule import pull_growth, spread_growth
from peer.methods.topology import Topology

ROUNDING = 1e-9
"""Tolerance of a computed eigenvalue: an exact 1 becomes slightly larger on one processor and smaller on another."""


def refusals(method: Method) -> Iterator[Refusal]:
    """Yield all reasons for which a method is refused. None: the method is valid."""
    own = (entry.refusals for entry in ENTRIES)
    for check in (_rule, _spread, _pull, _full, _streaming, _codecs, _group, _acceptance, *own):
        yield from check(method)


def quoted(topologies: tuple[Topology, ...]) -> str:
    """Return the quoted names of topologies as a text for a message."""
    return " or ".join(f'"{topology.name}"' for topology in topologies)


def _rule(method: Method) -> Iterator[Refusal]:
    rule = method.outer_rule
    if method.one_state and method.topology_spec not in rule.topologies:
        yield (
            "rule",
            f"{method.rule} draws two partners together, but the members of a group share one state. "
            'Use "nesterov" or "sgd", or topology = "pair"',
        )
    if method.paired and method.topology_spec not in rule.topologies:
        yield (
            "rule",
            f"{method.rule} has no consensus: with random partners the replicas drift apart for ever. "
            'Use "noloco" (with outer_momentum = 0 and outer_lr = 1 it averages) or "gasloc", or topology = "group"',
        )
    if not method.exchanges and method.topology_spec not in rule.topologies:
        yield "rule", f"{method.rule} is for topology = {quoted(rule.topologies)}"
    if not rule.consensus and method.consensus:
        yield "consensus", f"rule {method.rule} has no consensus, so it cannot be {method.consensus:g}"
    yield from rule.refusals(method)


def _spread(method: Method) -> Iterator[Refusal]:
    if not method.paired or not method.outer_rule.consensus:
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


def _full(method: Method) -> Iterator[Refusal]:
    """Refuse choices that the schedule `full` does not have: it exchanges one fragment while the trainer waits."""
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
    if method.fragment_update_alpha == 1 and method.exchanges:
        yield "fragment_update_alpha", "at 1 the trainer keeps its own values, so that no exchange ever reaches it"


def _codecs(method: Method) -> Iterator[Refusal]:
    if method.exchanges and method.codec not in KINDS[method.payload]:
        yield "codec", _misfit(method.codec, method.payload)
    if not method.one_state:
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
    if method.one_state and method.max_group < 2:
        yield "max_group", f"a group of {method.max_group} has nobody to exchange with: at least 2"
    if not method.one_state:
        for name in ("max_group", "founders", "weights", "mean"):
            if getattr(method, name):
                yield name, f"there are no groups with topology {method.topology}"
    elif method.founders > method.max_group:
        yield "founders", f"{method.founders} peers cannot begin a group of at most {method.max_group}"


def _acceptance(method: Method) -> Iterator[Refusal]:
    if method.acceptance and not method.paired:
        yield "acceptance", f"only a pair has a partner whose params are judged, not topology {method.topology}"
