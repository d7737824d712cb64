"""A volunteer pauses just when a partner waits for its peer: the partner finds another one, or gets its exchange."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from peer.clock.quiet_hours import QuietHours
from peer.exchange.pair.strategy import RESTS_SOON
from peer.lab.sim.machine import SimulatedPeer
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock
from peer.observe.events import Event, PartnerFailed, PartnerLetGo, Paused, RoundEnded
from peer.protocol.messages import PeerId
from peer.rounds.pause import MINUTE_S
from tests.simulation.test_volunteers_pause import ROUND_S, STEP_S, balanced, simulate

BEGINS_S, RESTS_S = 60.0, 25.0

Stop = Callable[[SimulatedPeer], None]


def pause(peer: SimulatedPeer) -> None:
    peer.pause.pause()


def leave(peer: SimulatedPeer) -> None:
    peer.round_loop.leave()


@dataclass
class Hold:
    """The lock that a peer held at the moment when the test stopped it."""

    round: int
    partner: PeerId


async def locked(peer: SimulatedPeer, before_due_s: float) -> Hold:
    """Wait until the peer has a partner for a round that is due within `before_due_s` seconds. Return its lock."""
    await asyncio.sleep(BEGINS_S)
    clock = VirtualClock()
    while True:
        due, found = peer.round_loop.round_status.due_at, [*peer.parts.matchmaker._open.values()]
        if found and found[-1].locked is not None and due is not None and 0 < due - clock.now() <= before_due_s:
            return Hold(found[-1].key.round, found[-1].locked)
        await asyncio.sleep(0.01)


def stopped(stop: Stop, before_due_s: float, count: int) -> tuple[SimulatedSwarm, Hold, float]:
    """Stop a locked peer during a run. Return the swarm, the lock, and the seconds until the peer's trainer stopped."""
    holds, still_after_s = list[Hold](), list[float]()

    async def play(swarm: SimulatedSwarm) -> None:
        peer = swarm.peers[1]
        holds.append(await locked(peer, before_due_s))
        stop(peer)
        began, tokens = VirtualClock().now(), -1
        while tokens < peer.trainer.counters().tokens:
            tokens = peer.trainer.counters().tokens
            still_after_s.append(VirtualClock().now() - began)
            await asyncio.sleep(STEP_S + 0.1)
        await asyncio.sleep(RESTS_S)
        if stop is pause:
            peer.pause.resume()

    swarm = simulate(play, count=count, to_the_end=stop is pause)
    balanced(swarm)
    return swarm, holds[0], still_after_s[-1]


def outcome(peer: SimulatedPeer, round_: int) -> RoundEnded | None:
    return next((e for e in peer.events if isinstance(e, RoundEnded) and e.round == round_), None)


def peer_of(swarm: SimulatedSwarm, peer_id: PeerId) -> SimulatedPeer:
    return next(peer for peer in swarm.peers if peer.peer_id == peer_id)


def of_kind(swarm: SimulatedSwarm, kind: type[Event]) -> list[Event]:
    return [event for peer in swarm.peers for event in peer.events if isinstance(event, kind)]


@pytest.mark.parametrize("stop", [pause, leave])
def test_a_partner_that_is_let_go_exchanges_with_another_in_the_same_round(stop: Stop) -> None:
    swarm, hold, _ = stopped(stop, before_due_s=4.0, count=3)
    kept = outcome(peer_of(swarm, hold.partner), hold.round)
    assert kept is not None
    assert kept.outcome == "exchanged"
    assert kept.partner != swarm.peers[1].peer_id
    assert outcome(swarm.peers[1], hold.round) is None
    assert of_kind(swarm, PartnerLetGo) == [PartnerLetGo(peer=hold.partner, round=hold.round, heard=True)]
    assert not of_kind(swarm, PartnerFailed), "nobody is blamed"


def test_where_nobody_else_is_there_the_partner_steps_alone_at_once() -> None:
    swarm, hold, _ = stopped(pause, before_due_s=4.0, count=2)
    alone = outcome(peer_of(swarm, hold.partner), hold.round)
    assert alone is not None
    assert alone.outcome == "solo"
    assert "let go of us" in alone.reason
    assert not of_kind(swarm, PartnerFailed)


@pytest.mark.parametrize("stop", [pause, leave])
def test_a_partner_without_the_time_to_find_another_has_its_exchange(stop: Stop) -> None:
    swarm, hold, still_after_s = stopped(stop, before_due_s=0.05, count=2)
    for peer in swarm.peers:
        ended = outcome(peer, hold.round)
        assert ended is not None
        assert ended.outcome == "exchanged"
    assert still_after_s <= STEP_S + 0.1, "the trainer ends its step, and does not begin another round"
    assert not of_kind(swarm, PartnerLetGo) + of_kind(swarm, PartnerFailed)


@pytest.mark.parametrize(("after_due_s", "fits"), [(0.5, False), (15.0, True)])
def test_no_partner_is_taken_for_an_exchange_that_quiet_hours_would_meet(after_due_s: float, fits: bool) -> None:
    """The quiet hours begin shortly after a round is due, and last for a minute."""
    due_s, begins_minute = 100.0, 2

    async def play(swarm: SimulatedSwarm) -> None:
        peer, clock = swarm.peers[1], VirtualClock()
        await asyncio.sleep(BEGINS_S)
        rest = peer.pause
        rest._now = lambda: clock.now() - EPOCH - due_s - after_due_s + begins_minute * MINUTE_S
        rest._minute = lambda now: int(now // MINUTE_S)
        rest._quiet = QuietHours(begins_minute, begins_minute + 1)
        rest._changed.set()

    swarm = simulate(play, count=2)
    (paused,) = [event for event in swarm.peers[1].events if isinstance(event, Paused)]
    assert paused.reason.startswith("quiet hours")
    last = outcome(swarm.peers[1], round(due_s / ROUND_S) - 1)
    assert last is not None
    assert (last.outcome, last.reason) == (("exchanged", "") if fits else ("solo", RESTS_SOON))
    assert not of_kind(swarm, PartnerLetGo) + of_kind(swarm, PartnerFailed)
