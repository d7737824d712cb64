"""Errors of rounds in the background reach a caller that waits for something else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from peer.aio.threads import inline
from peer.errors import PartnerLost, TrainerDied
from peer.exchange.strategy import ExchangeResult, ExchangeSession, ExchangeStrategy, MissedState
from peer.identity import Identity
from peer.methods.registry import PRESETS
from peer.observe import events
from peer.outer.state import OuterState
from peer.outer.values import GroupState
from peer.ports.trainer import Merge, WorkSnapshot
from peer.protocol.ledger import WorkShare
from peer.protocol.messages import PeerId, PeerRecord, RoundKey, RunId, Status
from peer.protocol.model.layout import Layout, TensorSpec
from peer.rounds.commit import RoundCommitter, Snapshot
from peer.rounds.inflight import InFlightRounds
from peer.run.plan import RunPlan
from peer.transport.grpc_transport import GrpcTransport

RUN = RunId(b"r" * 32)
PLAN = RunPlan(RUN, PeerId("me"), PRESETS["diloco"].method, total_rounds=9, eval_every=9)
NOBODY = PeerRecord(PeerId("nobody"), RUN, (), False, 1, 1, 0, 0.0, Status.TRAINING, 0.0, 60.0)


class Opens:
    """A strategy that runs `work` as soon as a round opens."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._work = work

    @asynccontextmanager
    async def open_round(self, key: RoundKey, opens_at: float, closes_at: float) -> AsyncIterator[ExchangeSession]:
        await self._work
        yield cast(ExchangeSession, None)


async def fails(error: BaseException) -> None:
    raise error


def beside(error: BaseException) -> object:
    async def main() -> object:
        flights = InFlightRounds(cast(ExchangeStrategy, Opens(fails(error))), cast(RoundCommitter, None))
        flights.begin(RoundKey(0, 0), 0.0, 1.0)
        async with asyncio.timeout(180):
            return await flights.run_beside(asyncio.sleep(0.05, "done"))

    return asyncio.run(main())


def test_an_error_in_a_flight_ends_what_is_waited_for() -> None:
    with pytest.raises(ZeroDivisionError):
        beside(ZeroDivisionError())


def test_a_flight_that_ends_without_a_word_is_an_error_too() -> None:
    with pytest.raises(AssertionError, match="nobody gave this flight up"):
        beside(asyncio.CancelledError())


def test_a_trainers_death_is_left_to_the_call_itself() -> None:
    assert beside(TrainerDied("killed")) == "done"


class Moves:
    """A trainer that merges only when the test allows it. Records the merges."""

    def __init__(self) -> None:
        self.asked, self.free = asyncio.Event(), asyncio.Event()
        self.given: list[tuple[torch.Tensor, Merge]] = []

    async def apply(self, key: RoundKey, outer: torch.Tensor, base: int, next_round: int, merge: Merge) -> None:
        self.given.append((outer, merge))
        self.asked.set()
        await self.free.wait()

    def release(self, key: RoundKey) -> None: ...


class Lags:
    """A session in which the group is ahead of this member once. Counts the exchanges."""

    def __init__(self) -> None:
        self.exchanged, self.ahead, self.whole = 0, [2.0], asyncio.Event()

    async def fetch_missed_state(self) -> MissedState | None:
        if not self.ahead:
            self.whole.set()
            return None
        state = GroupState(torch.full((4,), self.ahead.pop()), torch.zeros(4))
        return MissedState(state, PeerId("donor"), "it went on without us")

    @asynccontextmanager
    async def exchange(self, work: WorkSnapshot, cut: WorkShare, closes_at: float) -> AsyncIterator[ExchangeResult]:
        self.exchanged += 1
        yield ExchangeResult("carried", "nobody is there")

    def late(self, work: WorkSnapshot, cut: WorkShare) -> ExchangeResult:
        raise AssertionError("it is never due again")


@pytest.mark.parametrize("in_time", [True, False])
def test_work_that_was_taken_while_the_state_changed_under_it_is_not_exchanged(in_time: bool) -> None:
    """When `outer_params` moves, the trainer is moved by the same difference. A snapshot between the two moves belongs
    to neither state."""

    async def main() -> None:
        outer = OuterState.fresh(Layout.whole([TensorSpec("w", (4,))]), torch.ones(4))
        trainer, lags, journal = Moves(), Lags(), list[events.Event]()
        noted = list[tuple[int, bytes]]()
        strategy = cast(Any, SimpleNamespace(note_state=lambda *what: noted.append(what)))
        landing = RoundCommitter(
            cast(Any, trainer), outer, journal.append, inline, cast(Any, None), cast(Any, None), PLAN, strategy
        )

        @asynccontextmanager
        async def opened(key: RoundKey, opens_at: float, closes_at: float) -> AsyncIterator[Lags]:
            yield lags

        flights = InFlightRounds(cast(ExchangeStrategy, SimpleNamespace(open_round=opened)), landing)
        flight = flights.begin(RoundKey(1, 0), 0.0, 1.0)
        await asyncio.wait({asyncio.create_task(trainer.asked.wait()), flight.task}, return_when="FIRST_COMPLETED")
        assert not flight.task.done()
        assert landing.stepping.locked(), "no checkpoint of two grounds"
        if in_time:
            trainer.free.set()
            async with asyncio.timeout(180):
                await lags.whole.wait()
        work = WorkSnapshot(RoundKey(1, 0), torch.ones(4), 3, 30, 30, 0.0, 1.0)
        flight.ready.set_result(Snapshot(work, WorkShare(1.0, 120, 0), 1.0, Merge(), 0.5))
        trainer.free.set()
        async with asyncio.timeout(180):
            await flights.finish()
        assert [(moved.tolist(), merge.shift) for moved, merge in trainer.given] == [([1.0] * 4, True)]
        assert lags.exchanged == in_time
        assert noted == [(0, outer.digest(0))], "the group is told the state that we have now"
        assert [type(event) for event in journal] == [events.CaughtUp, events.SatOut, events.RoundMissed]

    asyncio.run(main())


def test_a_call_that_grpc_breaks_off_is_a_lost_partner_and_a_cancelled_one_is_cancelled() -> None:
    async def main() -> None:
        transport = GrpcTransport(Identity.generate(), RUN, cast(Any, None), lambda: 0.0)
        with pytest.raises(PartnerLost, match="broken off"):
            await transport._call_client.bounded(fails(asyncio.CancelledError()), NOBODY, 5.0)
        waiting = asyncio.create_task(transport._call_client.bounded(asyncio.Event().wait(), NOBODY, 5.0))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await transport.close()

    asyncio.run(main())


def test_a_round_that_is_given_up_before_it_is_due_is_not_one_that_was_missed() -> None:
    told, waiting = list[tuple[RoundKey, bool]](), asyncio.Event()

    class Follows:
        async def follow(self, session: object, key: RoundKey, ready: asyncio.Future[Snapshot]) -> bool:
            waiting.set()
            return False

        def journal_missed(self, key: RoundKey, reason: str, *, was_due: bool) -> None:
            told.append((key, was_due))

    async def main() -> None:
        async def nothing() -> None: ...

        flights = InFlightRounds(cast(ExchangeStrategy, Opens(nothing())), cast(RoundCommitter, Follows()))
        flights.begin(RoundKey(13, 0), 0.0, 1.0)
        async with asyncio.timeout(180):
            await waiting.wait()
        await asyncio.sleep(0)  # let the round begin to wait for its snapshot
        await flights.give_up(0, "leaving")

    asyncio.run(main())
    assert told == [(RoundKey(13, 0), False)]
