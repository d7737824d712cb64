"""Describes a method and its cost for people, as rows of (name, value, remark)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from peer.methods.codec_specs import SPARSE, is_relayed
from peer.methods.method import Method
from peer.methods.rule import pull_growth, spread_growth
from peer.protocol.model.layout import TensorSpec
from peer.protocol.policy.upload_quota import size
from peer.run.costs import Cost, muon_matrices, muon_share
from peer.run.manifest import Manifest
from peer.run.memory import MemoryNeed
from peer.run.resolve import resolve, sources
from peer.run.sections import CustomSection, SyncSection

Row = tuple[str, str, str]
NOT_EVALUATED = "the model's code is known to its users' own training loops alone"
"""Why no program of ours can evaluate a custom model, for a person."""
NO_CODE = "A run of a custom model names its tensors and first weights. No code of others is run, so none is in it."
"""Explanation added to refusals of a custom model."""
OPEN_CUSTOM = (
    'anybody may join, and nobody can evaluate the states that they give: admission.kind = "invited" admits only those '
    "whom you know"
)
"""Caution for a run that is open although its states cannot be evaluated."""
OPTIONAL = ("result_codec", "max_group", "founders", "weights", "mean", "growth_lr", "growth")
"""Choices that may be empty in a method."""
CHANGES_SHOWN = 6
"""Number of changes in round length that are listed."""


def method_rows(sync: SyncSection) -> Iterator[Row]:
    """Yield every choice with its source: the preset, the manifest, or `default` for what follows from other
    choices."""
    yield "preset", sync.preset, ""
    for name, value, source in sources(sync):
        yield name, "none" if name in OPTIONAL and not value else _value(value), source


def growths(method: Method) -> dict[str, float | None]:
    """Return the growth factors of `peer.methods.checks` for pairs. None in other topologies: a group holds one state,
    and solo peers do not converge."""
    paired = method.paired
    return {
        "spread_growth": spread_growth(method) if paired else None,
        "pull_growth": pull_growth(method) if paired else None,
    }


def growth_rows(method: Method) -> Iterator[Row]:
    """Yield how fast the replicas of a pair method converge. The pull is shown only if a merge keeps part of the local
    values."""
    spread, pull = growths(method).values()
    if spread is not None:
        what = "times the variance of the replicas after an exchange in which nobody learned. Below 1 it shrinks"
        yield "spread growth", f"{spread:.3f}", what
    if pull is not None and method.fragment_update_alpha:
        what = "times the way between the means of params and outer_params, likewise"
        yield "pull growth", f"{pull:.3f}", what


def round_rows(method: Method, rounds: int, total_rounds: int) -> Iterator[Row]:
    """Yield the number of rounds and their lengths. `total_rounds`: the manifest's value, which exceeds `rounds` if
    rounds grow."""
    unit = "inner steps" if method.clock == "steps" else "s"
    shortest, longest = method.round_length, math.ceil(method.round_length)
    length = f"{shortest:g} {unit} each"
    if method.clock == "steps" and longest > shortest:
        length = f"{longest - 1} or {longest} {unit} each, so that all {method.fragments} take {method.sync_every:g}"
    if rounds < total_rounds:
        length = f"as long as {total_rounds:,} of {length}"
    yield "rounds", f"{rounds:,}", length


def optimizer_rows(manifest: Manifest, tensors: Sequence[TensorSpec] | None) -> Iterator[Row]:
    """Yield the inner optimizer, and for Muon which parameters it updates and what it costs."""
    chosen, train, parameters = manifest.optimizer, manifest.train, manifest.model.parameters
    yield "inner optimizer", chosen.kind, f"lr {chosen.lr:g}, {chosen.schedule}"
    if chosen.kind == "muon":
        matrices = muon_matrices(manifest.model, chosen, tensors)
        held = sum(tensor.elements for tensor in matrices)
        share = muon_share(matrices, parameters, train.batch * train.context)
        what = f"{len(matrices)} matrices of the blocks, momentum {chosen.muon_momentum:g}, AdamW for the rest"
        yield "muon moves", f"{held / parameters:.0%}", f"of the parameters: {what}"
        yield "muon costs", f"{share:.0%}", "more arithmetic a step, the less the larger the batch"


def described_model(manifest: Manifest) -> str:
    """Return the kind of a run's model, and its title if it has one."""
    model = manifest.model
    if not isinstance(model, CustomSection):
        return model.kind
    return f"a model of its users' own ({model.title})" if model.title else "a model of its users' own"


def unevaluated_lines(manifest: Manifest) -> Iterator[str]:
    """Yield what an operator should know about states that cannot be evaluated, for a run of a custom model. Empty for
    other runs."""
    if not isinstance(manifest.model, CustomSection):
        return
    chosen = (
        "one state, which most networks have"
        if resolve(manifest.sync).one_state
        else ("the mean of those that lie near each other")
    )
    yield f"no state is evaluated here, as {NOT_EVALUATED}: of peers with receipts first, {chosen} is kept"
    if manifest.admission.kind == "open":
        yield OPEN_CUSTOM


def memory_rows(cost: Cost, need: MemoryNeed) -> Iterator[Row]:
    """Yield the memory of one peer: of the daemon, of the arena shared with the trainer, and of the trainer."""
    parts = {"libraries": cost.base_bytes, "outer_momentum": cost.momentum_bytes}
    parts |= {"a partner's values": cost.buffer_bytes, "an exchange": cost.payload_bytes}
    yield (
        "memory of the daemon",
        size(need.daemon),
        "estimated: " + ", ".join(f"{k} {size(v)}" for k, v in parts.items() if v),
    )
    yield "of the arena", size(need.shared), "estimated: outer_params and snapshots, a file that daemon and trainer map"
    if need.trainer:
        what = "estimated: on the CPU in fp32, one window at a time; more where there is room"
        yield "of the trainer", size(need.trainer), what


def cost_rows(method: Method, cost: Cost) -> Iterator[Row]:
    """Yield the costs of one peer on the wire, each way."""
    yield "parameters", f"{cost.parameters:,}", ""
    if not method.exchanges:
        yield "each way a round", "0 MB", "nothing crosses the wire"
    else:
        yield "each way a round", size(max(cost.fragment_bytes)), _what_crosses(method, cost)
        yield (
            "at the socket",
            size(max(cost.socket_bytes)),
            "with frames, encryption and the round's messages, estimated",
        )
        if method.fragments > 1:
            yield "each way a sync", size(cost.bytes_per_sync), f"all {method.fragments} fragments"
        if cost.bytes_per_hour is not None:
            yield (
                "each way an hour",
                size(cost.bytes_per_hour),
                "of payload, by arithmetic: the size of a payload follows from its codec",
            )
        yield from _rate(method, cost)


def _what_crosses(method: Method, cost: Cost) -> str:
    largest = "the largest fragment, " if method.fragments > 1 else ""
    if method.one_state:
        what = f"{largest}{cost.peers} peers: pseudo-gradients {method.codec}, results {method.result_codec}"
        what += ", on average" if method.mean == "rda" else ""  # shards end with whole tensors, so they differ in size
        joined = method.result_codec == SPARSE and not is_relayed(cost.parameters // cost.peers, cost.peers)
        return what + (", of peers that choose independently. Alike choices take less" if joined else "")
    return f"{largest}{'params' if method.vectors == 1 else 'params and outer_params'} in {method.codec}"


def _rate(method: Method, cost: Cost) -> Iterator[Row]:
    """Yield the rate of the line that delivers the result in time."""
    if not cost.peak_within:
        return
    until = "the earliest merge" if method.fragment_sync_delay else "the window in which the trainer waits"
    if cost.peak_bits_per_s is None:
        per_step = max(cost.fragment_bytes) / cost.peak_within
        yield "each way at peak", f"{size(per_step)} an inner step", f"in {cost.peak_within:g} inner steps, {until}"
    else:
        rate = f"{cost.peak_bits_per_s / 1e6:.2f} Mbit/s"
        yield "each way at peak", rate, f"within {cost.peak_within:g} s, {until}"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        told = ", ".join(f"{slots} from {round_} on" for round_, slots in value[:CHANGES_SHOWN])
        return told if len(value) <= CHANGES_SHOWN else f"{told}, … ({len(value)} changes)"
    return f"{value:g}" if isinstance(value, float) else str(value)
