"""What asking for amendments tells of the line to a peer."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import pytest

from peer.errors import BadPayload, PartnerLost
from peer.identity import Identity
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.membership.amendment_sync import AmendmentSync, ensure_admitted
from peer.observe import events
from peer.protocol.messages import MAX_ROUND, PeerId, PeerRecord, RunId, Status
from peer.protocol.policy.amendments import Amendment, Change, describe
from peer.run.amendments import Chain

RUN, CALL_S, SILENT_S = RunId(b"r" * 32), 0.25, 5.0
OTHER = PeerRecord(PeerId("o"), RUN, ("o:1",), True, 1, 1, 0, 1.0, Status.TRAINING, EPOCH, EPOCH + 900)


class Scripted(AmendmentSync):
    """What each call comes to: whether there was more, or what it raises."""

    def __init__(self, *calls: bool | Exception) -> None:
        super().__init__(Chain(RUN, Identity.generate().peer_id), None, lambda event: None)
        self.calls = list(calls)

    async def _take(self, transport: Any, record: PeerRecord) -> bool:
        came = self.calls.pop(0)
        await asyncio.sleep(SILENT_S if isinstance(came, PartnerLost) else CALL_S)
        if isinstance(came, Exception):
            raise came
        return came


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ([False], [CALL_S]),
        ([True, False], []),
        ([PartnerLost("gone")], []),
        ([True, PartnerLost("gone after one")], []),
        ([BadPayload("amendment", "no")], []),
        ([True, BadPayload("amendment", "no")], []),
    ],
)
def test_only_a_whole_answer_at_once_says_how_long_a_call_takes(
    calls: list[bool | Exception], told: list[float]
) -> None:
    heard: list[float] = []

    async def scenario() -> None:
        amendments = Scripted(*calls)

        async def peers() -> dict[PeerId, PeerRecord]:
            return {OTHER.peer_id: OTHER}

        def answered(peer: PeerId, took_s: float) -> None:
            heard.append(took_s)

        asking = asyncio.create_task(
            amendments.run(cast(Any, None), VirtualClock(), random.Random(0), peers, 1000.0, answered)
        )
        await asyncio.sleep(100.0)
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()

    run_virtual(scenario())
    assert heard == pytest.approx(told)


def test_an_amendment_that_came_in_round_27_is_not_told_to_hold_from_round_0() -> None:
    operator, told, journal = Identity.generate(), list[str](), list[events.Event]()
    chain = Chain(RUN, operator.peer_id)
    held = AmendmentSync(chain, None, journal.append, lambda new: told.append(describe(new)), round_now=lambda: 27)
    chain.make(operator, 0, Change.LR_SCALE, "plateau", value=0.5)
    held._new_since(0)
    assert told == held.latest(5) == ["amendment 1, from round 27 on: learning rate times 0.5 (plateau)"]
    assert [event.round for event in journal if isinstance(event, events.Amended)] == [27]
    chain.make(operator, 120, Change.PAUSE, "")
    held._new_since(1)
    assert held.latest(1) == ["amendment 2, from round 120 on: pause"]


def test_an_amendment_of_an_unknown_round_names_no_round() -> None:
    assert describe(Amendment(1, 0, Change.PAUSE, "")) == "amendment 1, from when it was known: pause"


def test_what_no_round_of_the_run_reaches_never_holds() -> None:
    operator, other = Identity.generate(), PeerId(Identity.generate().peer_id)
    chain = Chain(RUN, operator.peer_id)
    held = AmendmentSync(chain, None, lambda event: None, rounds=80)
    chain.make(operator, 80, Change.PAUSE, "a slip")
    chain.make(operator, 2**53, Change.REFOUND, "another", digest="ab" * 32)
    chain.make(operator, 79, Change.BAN, "", peer=other)
    for round_ in (79, 80, MAX_ROUND):
        now = held.ruling(round_)
        assert (now.paused, now.founded, list(now.banned)) == (None, b"", [other])
    assert not held.ruling(78).banned


def test_the_operators_own_key_is_never_kept_out() -> None:
    operator, chain = (key := Identity.generate()), Chain(RUN, key.peer_id)
    held, me = AmendmentSync(chain, None, lambda event: None), PeerId(operator.peer_id)
    chain.make(operator, 0, Change.BAN, "a slip", peer=me)
    chain.make(operator, 0, Change.REVOKE, "a slip", peer=me)
    assert held.ruling(5).kept_out == {}
    ensure_admitted(held.ruling(5), me)


def test_what_is_replaced_is_told_so_and_no_page_shows_it() -> None:
    operator = Identity.generate()
    chain = Chain(RUN, operator.peer_id)
    held = AmendmentSync(chain, None, lambda event: None, rounds=80)
    chain.make(operator, 70, Change.PAUSE, "a slip")
    chain.make(operator, 10, Change.GO_ON, "")
    assert held.latest(5) == ["amendment 1, replaced by 2: pause (a slip)", "amendment 2, from round 10 on: resume"]
    assert [one.number for one in held.newest(5)] == [2]
