"""A swarm of sixteen is divided for two minutes: pairs continue on both sides, a group on at most one, and after the
repair there is one swarm again. Also tests what peers believe about each other's liveness meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
import torch

from peer.lab.sim.directory import MemoryDirectory
from peer.lab.sim.links import PROFILES, Link
from peer.lab.sim.machine import SimulatedPeer
from peer.lab.sim.memory_transport import MemoryTransport
from peer.lab.sim.process import RUN, describe
from peer.lab.sim.setting import SwarmSetting, SwarmWorld, layout_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.node.handler import DonatedState, RequestHandler
from peer.node.operator.run_progress import RunProgress
from peer.observe import events
from peer.observe.status.codec import to_json
from peer.outer.state import OuterState
from peer.protocol.messages import PeerId, PeerRecord, RoundKey, Status
from peer.protocol.policy.donors import first_state_refusal
from peer.protocol.schedule import RoundClock
from peer.protocol.wire.payload import Source
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from tests.support.invariants import Witness
from tests.support.seeds import seeds

ROUND_S = 30.0
ROUNDS = 12
COUNT = 16
CUT_AT, CUT_S = 62.0, 120.0
HEAL_AT = CUT_AT + CUT_S
AFTER = int(HEAL_AT / ROUND_S) + 1
"""First round that lies completely after the repair."""
WITHIN = range(int(CUT_AT / ROUND_S) + 1, int(HEAL_AT / ROUND_S))
"""Rounds that were due, closed and transferred during the partition."""


def build(preset: str, seed: int, rounds: int = ROUNDS, count: int = COUNT, link: Link | None = None) -> SimulatedSwarm:
    print(f"seed {seed} preset {preset}")
    fragments = 2 if "streaming" in preset else 1
    method = resolve(SyncSection(preset=preset, clock="seconds", sync_every=ROUND_S * fragments, fragments=fragments))
    return SimulatedSwarm(
        count,
        SwarmSetting(
            method=method,
            rounds=RoundClock("seconds", method.sync_every, method.fragments, EPOCH),
            total_rounds=rounds,
            seed=seed,
            layout=layout_of(method, 16 if method.topology == "pair" else 2 * 128),
            eval_every=100,
        ),
        SwarmWorld(links=link),
        step_seconds=2.0,
    )


async def cut(swarm: SimulatedSwarm, side: list[PeerId], at: float, for_s: float) -> None:
    """Partition the swarm for `for_s` seconds, beginning after `at` seconds: neither calls nor records pass."""
    await asyncio.sleep(at)
    swarm.network.partition(side)
    swarm.hub.partition(side)
    await asyncio.sleep(for_s)
    swarm.network.heal()
    swarm.hub.heal()


def played(preset: str, seed: int, left: int = COUNT // 2) -> tuple[SimulatedSwarm, Witness, list[torch.Tensor]]:
    """Return the swarm at its end, and all outer_params at a few moments, stacked as (peers, elements)."""

    async def main() -> tuple[SimulatedSwarm, Witness, list[torch.Tensor]]:
        swarm, states = build(preset, seed), list[torch.Tensor]()
        witness = Witness(swarm)
        side = [peer.peer_id for peer in swarm.peers[:left]]
        cutter = asyncio.create_task(cut(swarm, side, CUT_AT, CUT_S))

        async def look() -> None:
            await asyncio.sleep(HEAL_AT - 1)
            states.append(torch.stack([peer.outer.params for peer in swarm.peers]))

        looker = asyncio.create_task(look())
        await swarm.run()
        await asyncio.gather(cutter, looker)
        states.append(torch.stack([peer.outer.params for peer in swarm.peers]))
        return swarm, witness, states

    return run_virtual(main())


def exchanges(peers: list[SimulatedPeer]) -> Counter[int]:
    """Return how many of these peers exchanged, by round."""
    ended = [event for peer in peers for event in peer.events if isinstance(event, events.RoundEnded)]
    return Counter(event.round for event in ended if event.outcome == "exchanged")


def apart(state: torch.Tensor, left: int) -> float:
    """Return the distance between the means of both sides."""
    return float((state[:left].mean(0) - state[left:].mean(0)).norm())


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_pairs_go_on_at_both_sides_and_come_together_without_a_loss(seed: int) -> None:
    swarm, witness, (cut_off, together) = played("noloco", seed)
    assert witness.broken() == []
    left, right = swarm.peers[:8], swarm.peers[8:]
    for round_ in WITHIN:
        assert exchanges(left)[round_] >= 4, "this side trains on by pairs"
        assert exchanges(right)[round_] >= 4
    for peer in swarm.peers:
        assert peer.outcomes().total() == ROUNDS
        book = peer.ledger()
        assert (book.imbalance, book.dropped) == (0, 0), "nothing was dropped because of the partition"
    sides = {peer.peer_id: number < 8 for number, peer in enumerate(swarm.peers)}
    crossing = {
        round_
        for peer in swarm.peers
        for round_, partner in peer.partners().items()
        if sides[peer.peer_id] != sides[PeerId(partner)]
    }
    assert crossing.isdisjoint(WITHIN)
    assert len(crossing.intersection(range(AFTER, ROUNDS))) >= ROUNDS - AFTER - 1, "they meet again at once"
    assert apart(together, 8) < 0.75 * apart(cut_off, 8), "and grow together"


@pytest.mark.parametrize("seed", seeds([4], 20))  # 6, 8 and 10 members on the left
def test_a_group_has_one_truth_whatever_the_cut(seed: int) -> None:
    left = 8 if seed % 2 else 6 + seed % 5
    swarm, witness, _ = played("streaming-diloco", seed, left)
    assert witness.broken() == []
    one, other = exchanges(swarm.peers[:left]), exchanges(swarm.peers[left:])
    for round_ in WITHIN:
        assert one[round_] == 0 or other[round_] == 0, "never two truths"
        larger = max(left, COUNT - left)
        assert max(one[round_], other[round_]) == (larger if 2 * larger > COUNT else 0)
    for round_ in range(AFTER + 1, ROUNDS):
        assert one[round_] + other[round_] == COUNT, "one group again"
    for fragment in range(2):
        assert len({peer.outer.digest(fragment) for peer in swarm.peers}) == 1
    assert all(peer.ledger().imbalance == 0 for peer in swarm.peers)
    small = swarm.peers[0] if left <= COUNT - left else swarm.peers[-1]
    reasons = [e.reason for e in small.events if isinstance(e, events.RoundMissed) and e.round in WITHIN]
    assert reasons, "the smaller side says why it makes no step"
    assert all(reasons)


def test_a_cut_off_part_of_a_group_that_is_restarted_founds_no_group() -> None:
    """All peers of one half are killed during the partition, and return with their checkpoints."""

    async def main() -> SimulatedSwarm:
        swarm = build("streaming-diloco", 0)
        side = swarm.peers[:8]
        cutter = asyncio.create_task(cut(swarm, [peer.peer_id for peer in side], 62.0, 240.0))

        async def restart() -> None:
            await asyncio.sleep(80.0)
            for peer in side:
                assert peer.disk.checkpoint is not None
                assert peer.disk.quorum_store.raw
                swarm.kill(peer)
            await asyncio.sleep(70.0)  # until their earlier records have expired: now they see only each other
            for peer in side:
                swarm.restart(peer, from_checkpoint=True)

        restarter = asyncio.create_task(restart())
        await swarm.run()
        await asyncio.gather(cutter, restarter)
        return swarm

    swarm = run_virtual(main())
    assert all(peer.round_loop.round_status.round >= ROUNDS - 1 for peer in swarm.peers[:8])
    stepped = exchanges(swarm.peers[:8])
    assert [round_ for round_ in stepped if 80 / ROUND_S < round_ < 302 / ROUND_S - 1] == []


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_who_is_behind_a_cut_is_suspected_and_nobody_else_is(seed: int) -> None:
    swarm, _, _ = played("noloco", seed)
    ours, suspected = {peer.peer_id for peer in swarm.peers[:8]}, 0
    for peer in swarm.peers[:8]:
        for at, event in zip(peer.times, peer.events, strict=True):
            if isinstance(event, events.PeerSuspected | events.PeerOut):
                suspected += 1
                assert CUT_AT <= at <= HEAL_AT + 10
                assert event.peer not in ours
        view = peer.life.view
        assert view is not None
        assert to_json(view.detector.report())["suspected"] == [], "all is forgiven"
    assert suspected > 8


def test_a_killed_peer_is_suspected_denied_by_others_and_left_out_and_comes_back() -> None:
    """It is killed just before offers open, 12 s after its last record, and is out before that record expires."""

    async def main() -> SimulatedSwarm:
        swarm = build("noloco", 7, rounds=10, count=8)  # with this seed, no witness had contact with it just before
        victim = swarm.peers[3]

        async def kill() -> None:
            await asyncio.sleep(82.0)
            await victim.life.directory.announce(describe(swarm._run, victim, victim.life))
            swarm.kill(victim)
            await asyncio.sleep(80.0)
            swarm.restart(victim, from_checkpoint=True)

        killer = asyncio.create_task(kill())
        await swarm.run()
        await killer
        return swarm

    swarm = run_virtual(main())
    victim, rest = swarm.peers[3], [peer for peer in swarm.peers if peer.number != 3]
    out = [(at, e) for peer in rest for at, e in zip(peer.times, peer.events, strict=True) if e.kind == "peer_out"]
    assert out
    assert {event.peer for _, event in out if isinstance(event, events.PeerOut)} == {victim.peer_id}
    assert all(82.0 + 24.0 < at < 82.0 + 45.0 for at, _ in out)
    assert all("others do not reach it either" in e.reason for _, e in out if isinstance(e, events.PeerOut))
    assert exchanges([victim])[9] == 1, "and it takes part again"
    assert all(not peer.life.view.detector.out(victim.peer_id) for peer in rest if peer.life.view is not None)


@pytest.mark.parametrize("seed", seeds(1, 5))
@pytest.mark.parametrize("preset", ["noloco", "streaming-diloco"])
def test_saturated_links_make_nobody_look_dead(preset: str, seed: int) -> None:
    """The peers have never exchanged, and a partner's first byte takes seconds. For ten minutes no live peer may be
    suspected for long or count as dead, and most rounds must exchange."""

    async def main() -> SimulatedSwarm:
        swarm = build(preset, seed, rounds=20, count=8, link=PROFILES["full"])
        await swarm.run()
        return swarm

    swarm = run_virtual(main())
    outs, longest, exchanged = 0, 0.0, 0
    for peer in swarm.peers:
        outs += sum(isinstance(event, events.PeerOut) for event in peer.events)
        longest = max([longest, *(e.seconds for e in peer.events if isinstance(e, events.PeerBack))])
        view = peer.life.view
        assert view is not None
        longest = max([longest, *(float(case["seconds"]) for case in to_json(view.detector.report())["suspected"])])
        exchanged += peer.outcomes()["exchanged"]
    print(f"longest suspicion {longest:.1f} s, {exchanged} exchanges")
    assert outs == 0
    assert longest < 25.0
    assert exchanged > 120


async def serve_the_first_state(swarm: SimulatedSwarm, folder: Path) -> tuple[PeerId, asyncio.Task[None]]:
    """Run a node of the operator that has the state of round 0 and does not train, until the task is cancelled."""
    me, donor, clock = PeerId("sim-999"), RequestHandler(), VirtualClock()
    MemoryTransport(swarm.network, me, donor, clock)
    run_round = RunProgress(folder / "run_round", lambda: swarm.rounds, clock.now)
    outer = OuterState.fresh(swarm.layout, swarm.first.clone())
    state = DonatedState(
        outer, lambda: run_round.value, clock.now, outdated_reason=lambda: first_state_refusal(run_round.value)
    )
    donor.register(state=state)
    directory = MemoryDirectory(swarm.hub, me, RUN)

    async def announce() -> None:
        while True:
            run_round.learn((await directory.peers()).values())
            now, round_ = clock.now(), run_round.value
            record = PeerRecord(me, RUN, ("memory:b",), True, 1, 1, round_, 0.0, Status.SERVING, now, now + 45.0)
            await directory.announce(record)
            await asyncio.sleep(3.0)

    return me, asyncio.create_task(announce())


@pytest.mark.parametrize("seed", seeds(1, 5))
def test_fresh_peers_alone_with_the_bootstrap_of_a_running_swarm_are_no_source_of_state(
    seed: int, tmp_path: Path
) -> None:
    """The running peers are isolated for a minute, in which two fresh peers join one after the other. Neither may
    donate the state that it has from the bootstrap node, to the other or later to any peer."""

    async def main() -> tuple[SimulatedSwarm, list[str], list[tuple[float, PeerId]]]:
        swarm, gave = build("noloco", seed, rounds=10, count=8), list[tuple[float, PeerId]]()
        witness, loop = Witness(swarm), asyncio.get_running_loop()
        (bootstrap, serving), seen = await serve_the_first_state(swarm, tmp_path), swarm.network.on_payload_sent

        def watch(sender: PeerId, key: RoundKey | None, source: Source | None) -> None:
            if sender != bootstrap:
                seen(sender, key, source)
            if key is None:
                gave.append((loop.time(), sender))

        swarm.network.on_payload_sent = watch
        fresh = swarm.peers[:2]

        async def come() -> None:
            await asyncio.sleep(90.0)
            for peer in fresh:
                swarm.kill(peer)
            await asyncio.sleep(50.0)
            for peer in fresh:
                swarm.restart(peer, from_checkpoint=False)
                await asyncio.sleep(15.0)

        coming = asyncio.create_task(come())
        side = [bootstrap, *(peer.peer_id for peer in fresh)]
        cutting = asyncio.create_task(cut(swarm, side, 138.0, 60.0))
        await swarm.run()
        serving.cancel()
        await asyncio.wait({coming, cutting, serving})
        return swarm, witness.broken(), gave

    swarm, broken, gave = run_virtual(main())
    assert broken == []
    fresh = [peer.peer_id for peer in swarm.peers[:2]]
    assert [(at, who) for at, who in gave if 138.0 < at < 198.0 and who in fresh] == []
    fetched = [e for peer in swarm.peers for e in peer.events if isinstance(e, events.StateFetched)]
    assert fetched
    assert all(event.donor not in fresh for event in fetched)
