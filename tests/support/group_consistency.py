"""Checks that a group has one truth, from the results that its members received and the states that they held
afterwards:

* A (round, fragment) has one roster that produces results, and all its participants build on one state.
* For each shard, all members that received a result received the same bits: the mean of what was sent by the members
  that appear in it, each with its allowed weight, and of no other member.
* Members that received the same shards hold the same state after the step. A member that lacks a shard journals why,
  and holds another state. It averages with the others again only after it has their state (the first rule)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch

from peer.codec.joined import decode_joined, encode_joined
from peer.codec.plain import TILE
from peer.codec.registry import EVERY
from peer.exchange.build import mean_terms_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.methods.codec_specs import SPARSE, is_relayed
from peer.methods.method import Method
from peer.observe import events
from peer.outer.robust_mean import WEIGHTS, factors, weighted_mean
from peer.protocol.group.radial_mean import CANCELLED, FEWEST
from peer.protocol.group.shards import Shard
from peer.protocol.messages import PeerId
from peer.protocol.model.fragments import Span
from tests.support.step_replay import Place, Shared, Values, covers


def one_truth(swarm: SimulatedSwarm, values: Values) -> Iterator[str]:
    """Yield a sentence for each violation of the rules above."""
    for place, members in values.shared.items():
        got = {peer: shared for peer, shared in members.items() if shared.got.spans}
        if not got:
            continue
        for broken in (*_one_roster(got), *_same_shards(got, swarm, place[1])):
            yield f"3 one truth: round {place[0]} fragment {place[1]} {broken}"
    yield from _same_states(swarm, values)


def _one_roster(got: dict[PeerId, Shared]) -> Iterator[str]:
    rosters = {shared.got.members for shared in got.values()}
    if len(rosters) > 1:
        yield f"has results of {len(rosters)} rosters: {sorted(rosters)}"
    if len({shared.base for shared in got.values()}) > 1:
        yield f"was built on several states by {sorted(got)}"


def _same_shards(got: dict[PeerId, Shared], swarm: SimulatedSwarm, fragment: int) -> Iterator[str]:
    first, terms = next(iter(got.values())), mean_terms_of(swarm.method, swarm.layout)
    edges = [0, *(end for _, end in first.got.shards)]
    if [(start, end) for start, end in pairwise(edges)] != first.got.shards or edges[-1] != first.gradient.numel():
        yield f"has shards that are not the whole: {first.got.shards}"
    for start, end in first.got.shards:
        given = {peer: shared for peer, shared in got.items() if covers(shared.got.spans, start, end)}
        if len({shared.mean[start:end].numpy().tobytes() for shared in given.values()}) > 1:
            yield f"came out differently at {start}: {sorted(given)}"
        elif given and given.keys() == set(first.got.members):
            named = {peer: shared for peer, shared in given.items() if covers(shared.got.named, start, end)}
            mean = next(iter(given.values())).mean[start:end]
            tensors = terms.tensors_of(fragment, Shard(0, start, end, PeerId("")))
            if not named or not _is_mean(mean, named, start, end, swarm.method, tensors):
                yield f"is at {start} not the mean of {sorted(named)}, who say that they are in it"


def _is_mean(
    mean: torch.Tensor, named: dict[PeerId, Shared], start: int, end: int, method: Method, tensors: list[Span]
) -> bool:
    """Return whether `mean` is the mean of the named members. Compared bit by bit, except the radial mean, which is
    computed in float64 here."""
    if not tensors or len(named) < FEWEST:
        return torch.equal(_mean(named, start, end, method), mean)
    exact = _radial_mean(named, start, end, method, tensors)
    near = (1e-5 if method.result_codec == "fp32" else 1e-2) * float(exact.abs().max())
    return torch.allclose(mean.double(), exact, rtol=0.0, atol=near)


def _radial_mean(
    named: dict[PeerId, Shared], start: int, end: int, method: Method, tensors: list[Span]
) -> torch.Tensor:
    """Return the radial mean by the equation of `peer.protocol.group.radial_mean`, inside the weighted mean."""
    codec, ordered = EVERY[method.codec], [shared for _, shared in sorted(named.items())]
    tokens = [shared.tokens for shared in ordered]
    coded = [codec.encode(shared.gradient[start:end].clone()) for shared in ordered]
    parts = torch.stack([codec.decode(payload, end - start).double() for payload in coded])
    weights = torch.tensor(WEIGHTS[method.weights](tokens), dtype=torch.float64)[:, None]
    parts *= torch.tensor(factors([float(part.norm()) for part in parts], tokens), dtype=torch.float64)[:, None]
    mean = (weights * parts).sum(0)
    for first, last in tensors:
        within = parts[:, first:last]
        lengths = within.norm(dim=1, keepdim=True)
        units = (weights * within / lengths.clamp(min=1e-300)).sum(0)
        if units.norm() >= CANCELLED / len(parts) ** 0.5:
            mean[first:last] = (weights * lengths).sum() * units / units.norm()
    return mean


def _mean(named: dict[PeerId, Shared], start: int, end: int, method: Method) -> torch.Tensor:
    """Return the mean as the owner should have computed it. For shards of at most one tile."""
    codec, ordered = EVERY[method.codec], sorted(named.items())
    assert end - start <= TILE
    parts = [codec.decode(codec.encode(shared.gradient[start:end].clone()), end - start) for _, shared in ordered]
    mean = weighted_mean(parts, [shared.tokens for _, shared in ordered], WEIGHTS[method.weights])
    if method.result_codec != SPARSE:
        result = EVERY[method.result_codec]
        return result.decode(result.encode(mean), end - start)
    if not is_relayed(end - start, len(ordered)):
        decode_joined(encode_joined(mean), mean)
    return mean


def _same_states(swarm: SimulatedSwarm, values: Values) -> Iterator[str]:
    held: dict[tuple[Place, tuple[tuple[int, int], ...]], set[str]] = {}
    for peer in swarm.peers:
        for event in peer.events:
            if not isinstance(event, events.RoundEnded) or event.outcome != "exchanged":
                continue
            place = event.round, event.fragment
            shared = values.shared[place][peer.peer_id]
            if shared.got.spans != [(0, shared.gradient.numel())] and not event.reason:
                yield f"10 reasons: {peer.peer_id} does not say what it lacks of round {event.round}"
            if event.dropped and shared.got.named != shared.got.spans and not event.reason:
                yield f"10 reasons: {peer.peer_id} does not say why part of its work was dropped in round {event.round}"
            held.setdefault((place, tuple(shared.got.spans)), set()).add(event.digest)
    for (place, _), digests in held.items():
        if len(digests) > 1:
            yield f"3 one truth: round {place[0]} fragment {place[1]} left {len(digests)} states: {sorted(digests)}"
