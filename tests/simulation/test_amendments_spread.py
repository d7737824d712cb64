"""All peers, including newcomers, follow an amendment in the same round. Peers that were isolated receive it later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import torch

from peer.joining.reset import digest_of
from peer.lab.sim.machine import SimulatedPeer
from peer.lab.sim.process import OPERATOR, RUN
from peer.lab.sim.setting import LAYOUT, SwarmSetting
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.membership.statement_sync import MAX_HANDED_ON
from peer.observe.events import Amended, AmendmentRefused, Paused, Refounded, RoundEnded, Skipped, WentOn
from peer.protocol.messages import PeerRecord, Status
from peer.protocol.policy.amendments import Amendment, Change
from peer.protocol.schedule import RoundClock
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from peer.run.statements.kinds import AMENDMENT, AmendmentDocument
from peer.run.statements.log import StatementLog
from peer.run.statements.statement import Statement

METHOD = resolve(SyncSection(preset="noloco", codec="fp32"))
SECONDS = RoundClock("seconds", 20.0, 1, EPOCH)
STEPS = RoundClock("steps", 100, 1)


class Operator:
    """Passes amendments to peer 0 alone, as its node would."""

    def __init__(self, swarm: SimulatedSwarm) -> None:
        self.log = StatementLog(RUN, OPERATOR.peer_id)
        self._first = swarm.peers[0].statements

    def amend(self, round_: int, change: Change, **fields: Any) -> Statement[AmendmentDocument]:
        signed = self.log.amend(OPERATOR, round_, change, "because", **fields)
        self._first.add_own([signed])
        return signed


def simulate(
    play: Callable[[SimulatedSwarm, Operator], Coroutine[Any, Any, None]], rounds: RoundClock = SECONDS, total: int = 20
) -> SimulatedSwarm:
    async def main() -> SimulatedSwarm:
        swarm = SimulatedSwarm(5, SwarmSetting(method=METHOD, rounds=rounds, total_rounds=total, seed=4))
        async with asyncio.timeout(3000), asyncio.TaskGroup() as group:  # of virtual time
            group.create_task(swarm.run())
            group.create_task(play(swarm, Operator(swarm)))
        return swarm

    return run_virtual(main())


def rounds_of(peer: SimulatedPeer) -> list[int]:
    return [event.round for event in peer.events if isinstance(event, RoundEnded)]


def skipped_by(peer: SimulatedPeer) -> list[int]:
    """Clock in steps: a peer that learns last of the end of a pause is behind, and jumps to the round of the others."""
    jumps = [event for event in peer.events if isinstance(event, Skipped)]
    return [round_ for jump in jumps for round_ in range(jump.from_round, jump.to_round)]


def test_all_change_the_learning_rate_in_the_same_round_within_a_minute() -> None:
    heard: list[float] = []

    async def play(swarm: SimulatedSwarm, operator: Operator) -> None:
        await asyncio.sleep(60)
        operator.amend(7, Change.LR_SCALE, value=0.5)
        while any(not peer.statements.log.chain for peer in swarm.peers):
            await asyncio.sleep(0.5)
            heard.append(0.5)

    swarm = simulate(play)
    assert sum(heard) < 60
    for peer in swarm.peers:
        assert peer.trainer.lr_scales == [1.0] * 7 + [0.5] * 13
    assert sum(isinstance(event, Amended) for peer in swarm.peers for event in peer.events) == 5


@pytest.mark.parametrize("rounds", [SECONDS, STEPS], ids=["seconds", "steps"])
def test_all_pause_and_go_on(rounds: RoundClock) -> None:
    async def play(swarm: SimulatedSwarm, operator: Operator) -> None:
        await asyncio.sleep(1)
        operator.amend(6, Change.PAUSE)
        await asyncio.sleep(200)
        operator.amend(6, Change.GO_ON)

    swarm = simulate(play, rounds)
    for peer in swarm.peers:
        assert any(isinstance(event, Paused) and event.round == 6 for event in peer.events)
        assert any(isinstance(event, WentOn) for event in peer.events)
        played = rounds_of(peer)
        assert played[:6] == [0, 1, 2, 3, 4, 5]
        assert played[-1] == 19
        if rounds is STEPS:
            assert sorted([*played, *skipped_by(peer)]) == list(range(20))
        else:
            assert not set(range(6, 10)) & set(played)
        book = peer.ledger()
        assert book.processed == book.applied + book.dropped + book.outstanding


def test_in_steps_a_pause_ends_although_the_round_to_go_on_in_never_comes() -> None:
    async def play(swarm: SimulatedSwarm, operator: Operator) -> None:
        operator.amend(6, Change.PAUSE)
        await asyncio.sleep(100)
        assert all(peer.round_loop.round_status.status is Status.PAUSED for peer in swarm.peers)
        operator.amend(9, Change.LR_SCALE, value=0.5)
        operator.amend(10, Change.GO_ON)

    for peer in simulate(play, STEPS).peers:
        played = rounds_of(peer)
        assert sorted([*played, *skipped_by(peer)]) == list(range(20))
        assert peer.trainer.lr_scales == [1.0 if round_ < 9 else 0.5 for round_ in played]


def test_nobody_pairs_with_a_banned_peer_until_it_is_unbanned() -> None:
    async def play(swarm: SimulatedSwarm, operator: Operator) -> None:
        bad = swarm.peers[2].peer_id  # peer ids of a simulation are no keys, so the chain would refuse them
        for peer in swarm.peers:
            peer.statements.log.amendments += [
                Amendment(1, 5, Change.BAN, "because", peer=bad),
                Amendment(2, 12, Change.UNBAN, "", peer=bad),
            ]

    swarm = simulate(play)
    bad = swarm.peers[2].peer_id
    met = {round_ for peer in swarm.peers for round_, other in peer.partners().items() if other == bad}
    assert not met & set(range(5, 12))
    assert met & set(range(5))
    assert met & set(range(12, 20))
    assert all(rounds_of(peer) == list(range(20)) for peer in swarm.peers)


def test_a_peer_that_was_cut_off_gets_the_rest() -> None:
    async def play(swarm: SimulatedSwarm, operator: Operator) -> None:
        lost = swarm.peers[3].peer_id
        await asyncio.sleep(30)
        swarm.network.connected = lambda one, other: lost not in (one, other)
        for factor in (0.5, 0.25, 0.125):
            operator.amend(4, Change.LR_SCALE, value=factor)
        await asyncio.sleep(100)
        assert not swarm.peers[3].statements.log.chain
        swarm.network.connected = lambda one, other: True

    swarm = simulate(play)
    assert [len(peer.statements.log.chain) for peer in swarm.peers] == [3] * 5
    assert swarm.peers[3].trainer.lr_scales[-1] == 0.125


def test_all_go_on_from_the_state_the_operator_names() -> None:
    state = torch.full((LAYOUT.elements,), 7.0)

    async def play(swarm: SimulatedSwarm, operator: Operator) -> None:
        await asyncio.sleep(1)
        operator.amend(6, Change.REFOUND, digest=digest_of(state).hex())
        await asyncio.sleep(150)  # by now all peers have stopped and wait for the state
        assert all(peer.round_loop.round_status.status is Status.JOINING for peer in swarm.peers)
        swarm.states[digest_of(state)] = state

    swarm = simulate(play)
    for peer in swarm.peers:
        (refounded,) = [event for event in peer.events if isinstance(event, Refounded)]
        assert not set(range(6, refounded.round)) & set(rounds_of(peer))
        assert rounds_of(peer)[-1] == 19
        assert float((peer.outer.params - 7.0).abs().max()) < 2.0  # a few steps from the refounded state
        book = peer.ledger()
        assert book.processed == book.applied + book.dropped + book.outstanding


def test_a_newcomer_has_them_all_from_one_peer_before_it_trains() -> None:
    many = 3 * MAX_HANDED_ON - 1

    async def main() -> SimulatedSwarm:
        swarm = SimulatedSwarm(5, SwarmSetting(method=METHOD, rounds=SECONDS, total_rounds=4, seed=4))
        operator, first, newcomer = Operator(swarm), swarm.peers[0], swarm.peers[4]
        for number in range(1, many + 1):
            operator.amend(0, Change.LR_SCALE, value=number / 100)
        record = PeerRecord(first.peer_id, RUN, (), True, 1, 1, 0, 0.0, Status.TRAINING, EPOCH, EPOCH + 60)
        await newcomer.statements.fetch_from(newcomer.transport, record, [AMENDMENT])
        assert len(newcomer.statements.log.chain) == many
        await swarm.run()
        return swarm

    assert run_virtual(main()).peers[4].trainer.lr_scales == [many / 100] * 4


def test_two_amendments_under_one_number_are_journaled_and_the_first_stays() -> None:
    async def play(swarm: SimulatedSwarm, operator: Operator) -> None:
        await asyncio.sleep(1)
        other = StatementLog(RUN, OPERATOR.peer_id)
        swarm.peers[1].statements.add_own([other.amend(OPERATOR, 8, Change.LR_SCALE, "", value=0.25)])
        operator.amend(8, Change.LR_SCALE, value=0.5)

    swarm = simulate(play)
    scales = {peer.trainer.lr_scales[-1] for peer in swarm.peers}
    assert swarm.peers[0].trainer.lr_scales[-1] == 0.5
    assert swarm.peers[1].trainer.lr_scales[-1] == 0.25
    assert scales == {0.25, 0.5}
    for peer in swarm.peers:
        refused = [event for event in peer.events if isinstance(event, AmendmentRefused)]
        assert refused
        assert {event.code for event in refused} == {"amendment_fork"}
        assert len({event.peer for event in refused}) == len(refused), "once a peer"


def test_a_forged_amendment_is_journaled_once_and_obeyed_by_nobody() -> None:
    async def play(swarm: SimulatedSwarm, operator: Operator) -> None:
        signed = operator.log.amend(OPERATOR, 0, Change.PAUSE, "")
        forged = (signed.raw, signed.signature[::-1])
        swarm.peers[0].statements.on_amendments = lambda held, head: [forged]  # type: ignore[method-assign]

    swarm = simulate(play)
    for peer in swarm.peers[1:]:
        (refused,) = [event for event in peer.events if isinstance(event, AmendmentRefused)]
        assert refused.code == "amendment_signature"
        assert refused.peer == swarm.peers[0].peer_id
        assert rounds_of(peer) == list(range(20))
