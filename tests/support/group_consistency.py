"""One truth per group, from what its members were given and what they held afterwards. What it means exactly:

* A (round, fragment) has one roster that gives results, and all that take part build on one state.
* Of each shard of the fragment, all members that were given a result were given the same bits: the mean of what the
  members sent that say that they are in it, each as much as it may count, and of nobody else.
* Members that were given the same shards hold the same state after the step. One that lacks a shard says why, in the
  journal, and does not hold theirs: it averages with them again only after it has theirs (the first point)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch

from peer.codec.plain import TILE
from peer.codec.registry import EVERY
from peer.lab.sim.swarm import SimulatedSwarm
from peer.observe import events
from peer.outer.robust_mean import weighted_mean
from peer.protocol.messages import PeerId
from peer.run.method import Method
from tests.support.step_replay import Place, Shared, Values, covers


def one_truth(swarm: SimulatedSwarm, values: Values) -> Iterator[str]:
    """Every way in which it was broken, a sentence each."""
    for place, members in values.shared.items():
        got = {peer: shared for peer, shared in members.items() if shared.got.spans}
        if not got:
            continue
        for broken in (*_one_roster(got), *_same_shards(got, swarm.method)):
            yield f"3 one truth: round {place[0]} fragment {place[1]} {broken}"
    yield from _same_states(swarm, values)


def _one_roster(got: dict[PeerId, Shared]) -> Iterator[str]:
    rosters = {shared.got.members for shared in got.values()}
    if len(rosters) > 1:
        yield f"has results of {len(rosters)} rosters: {sorted(rosters)}"
    if len({shared.base for shared in got.values()}) > 1:
        yield f"was built on several states by {sorted(got)}"


def _same_shards(got: dict[PeerId, Shared], method: Method) -> Iterator[str]:
    first = next(iter(got.values()))
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
            if not named or not torch.equal(_mean(named, start, end, method), mean):
                yield f"is at {start} not the mean of {sorted(named)}, who say that they are in it"


def _mean(named: dict[PeerId, Shared], start: int, end: int, method: Method) -> torch.Tensor:
    """As the owner should have made it, of a shard of a tile at most."""
    codec, result, ordered = EVERY[method.codec], EVERY[method.result_codec], sorted(named.items())
    assert end - start <= TILE
    parts = [codec.decode(codec.encode(shared.gradient[start:end].clone()), end - start) for _, shared in ordered]
    mean = weighted_mean(parts, [shared.tokens for _, shared in ordered])
    return result.decode(result.encode(mean), end - start)


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
