"""The checks of values and of a single group state can fail: a run with one fault is detected by the matching message,
and the same run without the fault passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from peer.exchange import build
from peer.exchange.buffers import Buffers
from peer.exchange.group.member import GroupMean, GroupMember
from peer.exchange.group.strategy import GroupSession, GroupStrategy
from peer.lab.sim.setting import SwarmSetting, layout_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.observe import events
from peer.outer.robust_mean import WEIGHTS
from peer.outer.state import OuterState
from peer.outer.values import OuterValues
from peer.protocol.group.roster import Roster
from peer.protocol.messages import PeerId
from peer.protocol.schedule import RoundClock
from peer.protocol.wire.payload import BytesSource, Source
from peer.rounds.commit import RoundCommitter
from peer.rounds.inflight import InFlightRounds
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from tests.support.invariants import Witness

PEERS, ROUNDS, ROUND_S = 4, 3, 20.0
ELEMENTS = {"pair": 16, "group": 4 * 128}
Prepare = Callable[[SimulatedSwarm], None]


def broken(preset: str, prepare: Prepare = lambda swarm: None, rounds: int = ROUNDS) -> list[str]:
    """Return the messages of the checks for a run of these peers. `prepare` is called before the witness is
    attached."""
    method = replace(resolve(SyncSection(preset=preset, clock="seconds", sync_every=ROUND_S)), codec="fp32")

    async def main() -> Witness:
        swarm = SimulatedSwarm(
            PEERS,
            SwarmSetting(
                method=method,
                rounds=RoundClock("seconds", method.sync_every, method.fragments, EPOCH),
                total_rounds=rounds,
                seed=3,
                layout=layout_of(method, ELEMENTS[method.topology]),
                min_peers=PEERS,
                eval_every=1,
            ),
            step_seconds=2.0,
        )
        prepare(swarm)
        witness = Witness(swarm)
        await swarm.run([])
        outcomes = [e.outcome for p in swarm.peers for e in p.events if isinstance(e, events.RoundEnded)]
        assert outcomes.count("exchanged") >= PEERS, outcomes
        return witness

    return run_virtual(main()).broken()


def caught(found: list[str], words: str) -> None:
    assert any(words in sentence for sentence in found), found


@pytest.mark.parametrize("preset", ["noloco", "diloco"])
def test_without_a_mutation_all_is_well(preset: str) -> None:
    assert broken(preset) == []


def test_one_bit_of_a_partners_payload() -> None:
    def prepare(swarm: SimulatedSwarm) -> None:
        def tamper(sender: PeerId, source: Source) -> Source:
            if sender != swarm.peers[1].peer_id:
                return source
            raw = bytearray(source.read(0, source.nbytes))
            raw[-4] ^= 1  # the last bit of the last value
            return BytesSource(bytes(raw))

        swarm.network.tamper = tamper

    caught(broken("noloco", prepare), "is not what that one sent")


def test_an_outer_step_that_is_applied_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    once = RoundCommitter._step

    async def twice(self: RoundCommitter, fragment: int, values: OuterValues) -> bytes:
        await once(self, fragment, values)
        return await once(self, fragment, values)

    monkeypatch.setattr(RoundCommitter, "_step", twice)
    caught(broken("noloco"), "gave a third value")


def test_a_snapshot_that_is_written_over_while_its_round_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds read the trainer's slot in place, so the next work of a fragment must not be requested before its round is
    over. Here it is requested early, and the exchange takes longer than the time until then."""

    def taking(seconds: float) -> Prepare:
        def prepare(swarm: SimulatedSwarm) -> None:
            swarm.network.weight = 8.3e5 * seconds  # so that a fragment takes `seconds` on this link

        return prepare

    made = list[Buffers]()
    once = Buffers.__init__

    def noted(self: Buffers, *terms: int) -> None:
        once(self, *terms)
        made.append(self)

    async def impatient(self: InFlightRounds, fragment: int, *, patient: bool) -> None:
        self._flying.pop(fragment, None)

    monkeypatch.setattr(Buffers, "__init__", noted)
    assert broken("streaming-noloco", taking(ROUND_S), 6) == []
    assert [buffers.made for buffers in made] == [2] * PEERS, "two fragments were exchanged at once"
    monkeypatch.setattr(InFlightRounds, "await_slot", impatient)
    monkeypatch.setattr(Buffers, "_another", lambda self: torch.empty(self._elements))
    caught(broken("streaming-noloco", taking(1.25 * ROUND_S), 6), "gave a third value")


def test_a_lost_shard_that_is_applied_as_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, stepped = GroupMember._averaged, GroupSession._stepped

    async def without_the_first(self: GroupMember, roster: Roster, *terms: Any) -> GroupMean:
        got = await honest(self, roster, *terms)
        if roster.key.round == 0:  # without momentum a step by zero changes nothing
            return got
        got.mean[:128] = 0
        return replace(got, spans=[(128, got.mean.numel())], named=[(128, got.mean.numel())], reason="lost")

    def as_zero(self: GroupSession, got: GroupMean, *terms: Any) -> Any:
        return stepped(self, replace(got, spans=[(0, got.mean.numel())]), *terms)

    monkeypatch.setattr(GroupMember, "_averaged", without_the_first)
    assert broken("diloco") == [], "a shard that is lost and left alone is no fault"
    monkeypatch.setattr(GroupSession, "_stepped", as_zero)
    caught(broken("diloco"), "gave a third value")


def test_a_digest_of_another_state(monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, lambda outer: b"\1" * 32)
    caught(broken("diloco"), "is not what its digest says")


def test_members_that_end_with_several_states(monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, lambda outer: str(id(outer)).encode().ljust(32))
    caught(broken("diloco"), f"left {PEERS} states")


def says(monkeypatch: pytest.MonkeyPatch, digest: Callable[[OuterState], bytes]) -> None:
    """Make outer steps return this digest instead of their own."""
    step_with = OuterState.step_with

    def stepped(self: OuterState, *terms: Any) -> bytes:
        step_with(self, *terms)
        return digest(self)

    monkeypatch.setattr(OuterState, "step_with", stepped)


def test_an_average_with_wrong_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = WEIGHTS["tokens"]
    monkeypatch.setattr(build, "WEIGHTS", {"tokens": lambda tokens: honest([2 * tokens[0], *tokens[1:]])})
    caught(broken("diloco"), "not the mean of")


def test_a_member_left_out_of_a_mean_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = WEIGHTS["tokens"]
    monkeypatch.setattr(build, "WEIGHTS", {"tokens": lambda tokens: [0.0, *honest(tokens[1:])]})
    caught(broken("diloco"), "not the mean of")


def test_one_bit_of_a_result_on_one_member(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, first = GroupMember._averaged, list[GroupMember]()

    async def averaged(self: GroupMember, *terms: Any) -> GroupMean:
        first.append(self)
        got = await honest(self, *terms)
        if self is first[0]:
            got.mean.view(torch.int32)[5] ^= 1
        return got

    monkeypatch.setattr(GroupMember, "_averaged", averaged)
    caught(broken("diloco"), "came out differently")


def test_a_state_that_is_not_the_one_said_to_be_built_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def digest(self: GroupStrategy, fragment: int) -> bytes:
        return b"\2" * 32

    monkeypatch.setattr(GroupStrategy, "digest", digest)
    caught(broken("diloco"), "took a step from another state than it said")


def test_a_state_taken_over_at_the_end_is_journaled_and_one_that_is_not_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One member receives less of the last round than the others, so it has to catch up at the end."""
    honest, first, told = GroupMember._averaged, list[GroupMember](), list[events.CaughtUp]()

    async def averaged(self: GroupMember, roster: Roster, *terms: Any) -> GroupMean:
        got = await honest(self, roster, *terms)
        if roster.key.round < ROUNDS - 1 or first not in ([], [self]):
            return got
        first[:] = [self]
        return replace(got, spans=[(128, got.mean.numel())], named=[(128, got.mean.numel())], reason="lost")

    def listen(swarm: SimulatedSwarm) -> None:
        for peer in swarm.peers:
            peer.listeners.append(lambda _, event: told.append(event) if isinstance(event, events.CaughtUp) else None)

    monkeypatch.setattr(GroupMember, "_averaged", averaged)
    assert broken("diloco", listen) == []
    # The last round only: a peer that recovers from an earlier fault also catches up, and journals it.
    last = [event for event in told if event.round == ROUNDS]
    assert [(e.fragment, e.bytes) for e in last] == [(0, 8 * ELEMENTS["group"])]
    assert last[0].peer.startswith("sim-")
    assert "last round" in last[0].reason

    first.clear()
    monkeypatch.setattr(RoundCommitter, "_caught_up", lambda self, key, *terms: events.WentOn(round=key.round))
    caught(broken("diloco"), "without a journaled step")


@pytest.mark.parametrize("preset", ["noloco", "diloco"])
def test_a_state_that_moves_without_a_step(preset: str) -> None:
    caught(broken(preset, at(events.Evaluated)), "without a journaled step")


def test_a_peer_that_begins_with_a_state_nobody_had() -> None:
    caught(broken("noloco", at(events.TrainingBegan)), "in a state that nobody had")


def at(kind: type[events.Event]) -> Prepare:
    """Flip one bit of one value of one peer's state at this event."""

    def prepare(swarm: SimulatedSwarm) -> None:
        def change(peer: Any, event: events.Event) -> None:
            if isinstance(event, kind):
                peer.outer.params.view(torch.int32)[3] ^= 1

        swarm.peers[2].listeners.append(change)

    return prepare
