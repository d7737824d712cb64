"""The cost of strangers' requests for state: no time of the event loop, and a bounded part of a core."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import torch

from peer.aio.threads import LowPriorityThread
from peer.clock.run_clock import RunClock
from peer.errors import PartnerLost, PartnerRefused
from peer.identity import Identity
from peer.node.handler import DonatedState, RequestHandler
from peer.outer.state import OuterState
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.protocol.model.layout import Layout, TensorSpec
from peer.state.snapshot import SnapshotCache, StateSnapshot
from peer.state.transfer.fragment import name_of
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.server.rate_limits import PIECES_AT_ONCE_OF_ADDRESS

T = TypeVar("T")
RUN, FRAGMENTS, CALLERS = RunId(b"r" * 32), 8, 24
LAYOUT = Layout(
    tuple(TensorSpec(f"t{number}", (1000,)) for number in range(FRAGMENTS)),
    tuple((number, number + 1) for number in range(FRAGMENTS)),
)
ANSWER_S = 5.0


class Held:
    """Copies made by a donor, which last until they are released."""

    def __init__(self) -> None:
        self.bulk, self.go = LowPriorityThread(), threading.Event()
        self.threads = list[int]()
        self.asked = list[str]()

    def start(self, work: Callable[[], T], /) -> Future[T]:
        def held() -> T:
            self.threads.append(threading.get_ident())
            self.go.wait(4 * ANSWER_S)
            return work()

        return self.bulk.start(held)

    def noted(self, state: DonatedState) -> DonatedState:
        """As the original, and record each call that may start a copy."""
        making = state.making

        def note(snapshot: str) -> Future[Any] | None:
            self.asked.append(snapshot)
            return making(snapshot)

        state.making = note  # type: ignore[method-assign]
        return state


def test_the_loop_answers_while_many_ask_for_fragments() -> None:
    """Over real gRPC: most requests are refused before a copy is made, and copies are made one at a time in a
    thread."""

    async def main() -> tuple[Held, list[str]]:
        held, outer = Held(), OuterState.fresh(LAYOUT, torch.linspace(-1, 1, LAYOUT.elements))
        digests = [outer.digest(fragment) for fragment in range(FRAGMENTS)]
        group = SimpleNamespace(on_held=lambda fragment: SimpleNamespace(digest=digests[fragment]))
        state = DonatedState(outer, lambda: 1, RunClock().now, momentum=True, group=cast(Any, group), start=held.start)
        donor = Identity.generate()
        serving = GrpcTransport(donor, RUN, RequestHandler(state=held.noted(state)), RunClock().now)
        callers = [GrpcTransport(Identity.generate(), RUN, RequestHandler(), RunClock().now) for _ in range(CALLERS)]
        try:
            at = (f"127.0.0.1:{await serving.start('127.0.0.1', 0)}",)
            record = PeerRecord(PeerId(donor.peer_id), RUN, at, True, 1, 1, 0, 0.0, Status.TRAINING, 0.0, 1e12)

            async def fetch(number: int) -> str:
                wanted = number % FRAGMENTS
                try:
                    name = name_of(wanted, digests[wanted])
                    await callers[number].fetch_part(record, name, 0, 8 * 1000, 4 * ANSWER_S)
                except PartnerRefused as refused:
                    return refused.code
                except PartnerLost:
                    return "lost"
                return ""

            fetching = [asyncio.create_task(fetch(number)) for number in range(CALLERS)]
            async with asyncio.timeout(3 * ANSWER_S):
                while sum(task.done() for task in fetching) < CALLERS - PIECES_AT_ONCE_OF_ADDRESS:
                    await asyncio.wait(fetching, timeout=0.05)
            refused = [task.result() for task in fetching if task.done()]
            another = GrpcTransport(Identity.generate(), RUN, RequestHandler(), RunClock().now)
            callers.append(another)
            await another.hello(record, ANSWER_S)  # the copy is not done yet
            assert not held.go.is_set()
            held.go.set()
            await asyncio.gather(*fetching)
            return held, refused
        finally:
            held.go.set()
            for end in (serving, *callers):
                await end.close()
            held.bulk.close()

    held, refused = asyncio.run(main())
    assert set(refused) == {"busy"}, refused
    assert len(held.asked) <= PIECES_AT_ONCE_OF_ADDRESS, "the others were refused before anything was copied"
    assert threading.get_ident() not in held.threads


class Clock:
    now = 1000.0


def test_fresh_copies_cost_a_twentieth_of_a_core_whoever_asks() -> None:
    """Each copy takes 0.2 s, the state changes constantly, and a fresh copy is requested every 0.1 s."""
    layout, clock, copies = Layout.whole([TensorSpec("a", (10,))]), Clock(), 0

    def copy() -> StateSnapshot | None:
        nonlocal copies
        copies += 1
        clock.now += 0.2
        values = torch.full((10,), float(copies))
        return None if copies % 3 == 0 else StateSnapshot(values, layout, copies, values)  # every third copy fails

    cache = SnapshotCache(copy, lambda: clock.now)
    began = clock.now
    while clock.now - began < 600.0:
        cache.on_state(fresh=True)
        clock.now += 0.1
    assert 0.02 < 0.2 * copies / (clock.now - began) <= 0.05


def test_a_fresh_copy_that_costs_nothing_is_made_each_second() -> None:
    layout, clock, copies = Layout.whole([TensorSpec("a", (10,))]), Clock(), 0

    def copy() -> StateSnapshot:
        nonlocal copies
        copies += 1
        return StateSnapshot(torch.full((10,), float(copies)), layout, copies, torch.zeros(10))

    cache = SnapshotCache(copy, lambda: clock.now)
    for _ in range(100):
        cache.on_state(fresh=True)
        clock.now += 0.1
    assert 8 <= copies <= 11
