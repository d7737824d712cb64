"""One end of a pair (`peer.lab.bench.daemon_process`) that does a daemon's whole round with the other end.

A round exchanges a snapshot in the arena, writes the outer step's result into the arena, and appends the journal event.
The round in flight, its commit, the exchange and the transport are the daemon's own code. There is no trainer and no
search for a partner."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from torch import Tensor

from peer.aio.events import Shutdown
from peer.exchange.pair.acceptance import FINITE, PartnerAcceptance
from peer.exchange.pair.partners import PartnerMemory
from peer.exchange.pair.search import PartnerSearch
from peer.exchange.pair.strategy import PairSession, PairStrategy
from peer.exchange.strategy import ExchangeControls, ExchangeStrategy
from peer.lab.bench.daemon_process import RUN, WAIT_S, DaemonEnd, Setting, main
from peer.membership.peer_table import PeerTable
from peer.membership.reputation import Reputation
from peer.membership.slow_peers import SlowPeerMonitor
from peer.methods.method import Method
from peer.methods.registry import PRESETS
from peer.observe import events
from peer.outer.state import OuterState
from peer.ports.memory_store import NoMemoryStore
from peer.ports.trainer import AT_ONCE, Merge, WorkSnapshot
from peer.protocol.ledger import cut_work
from peer.protocol.messages import PeerId, RoundKey
from peer.protocol.model.layout import Layout, TensorSpec
from peer.rounds.commit import RoundCommitter, Snapshot
from peer.rounds.inflight import InFlightRound
from peer.rounds.status import RoundStatus
from peer.rounds.trainer_supervisor import TrainerSupervisor
from peer.run.plan import RunPlan
from peer.trainer.arena import Arena

STEPS, TOKENS = 10, 640
NOMINAL = {"whole": float(STEPS), "piled": STEPS / 2}
"""Kind of work -> number of inner steps that count in full. `piled`: work of two rounds after a skipped one, of which
half counts."""


class RoundEnd(DaemonEnd):
    """One end whose `swap` is a whole round. The command may contain `work`: `whole` or `piled`."""

    def __init__(self, setting: Setting) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="peer-bench-")
        layout = Layout.whole([TensorSpec("w", (setting.elements,))])
        self._arena = Arena(Path(self._folder.name), layout, create=True)
        super().__init__(setting)
        self._outer = self._arena.in_slot(0).copy_(self._outer)
        self.state = OuterState.fresh(layout, self._outer)
        self.state.momentum.fill_(0)  # touch all its pages
        self.journal: list[events.Event] = []
        emit = self._note
        method = replace(PRESETS["noloco"].method, codec=setting.codec)
        acquaintance, detector = SimpleNamespace(met=_nothing), SimpleNamespace(exchanged=_nothing)
        self._known = SimpleNamespace(peers={}, acquaintance=acquaintance, detector=detector)
        peer_table, reputation = cast(PeerTable, self._known), Reputation(self._clock.now, emit)
        diagnosis = SlowPeerMonitor(self._clock.now, emit)
        self._pairs = PairStrategy(
            plan=self._plan(method),
            outer=self.state,
            matchmaker=cast(Any, None),
            swaps=self._pair_swap,
            buffers=self._buffers,
            partners=PartnerMemory(RUN, self._clock, peer_table, reputation, diagnosis, emit),
            acceptance=PartnerAcceptance(FINITE, cast(Any, None), self._bulk_thread, NoMemoryStore(), _nothing, emit),
            controls=ExchangeControls(lambda: True, lambda: "", _nothing),
        )
        self._landing = self._lands(method, self._pairs)

    def _lands(self, method: Method, strategy: ExchangeStrategy) -> RoundCommitter:
        return RoundCommitter(
            cast(Any, self),
            self.state,
            self._note,
            self._bulk_thread,
            TrainerSupervisor(cast(Any, self), self.state, self._note, Shutdown(), {}),
            RoundStatus(),
            self._plan(method),
            strategy,
        )

    def _plan(self, method: Method) -> RunPlan:
        return RunPlan(RUN, PeerId(self._identity.peer_id), method, total_rounds=1, eval_every=1)

    def _place(self) -> Tensor:
        return self.work

    @property
    def work(self) -> Tensor:
        """Return the trainer's snapshot in the arena."""
        return self._arena.out_slot(0)

    @property
    def result(self) -> Tensor:
        """Return the place in the arena for the result."""
        return self._arena.in_slot(0)

    async def open(self) -> dict[str, Any]:
        """Open as `DaemonEnd.open`, after returning free memory to the system, in which a swap's use could be
        hidden."""
        ctypes.CDLL(None).malloc_trim(0)
        return await super().open()

    def _note(self, event: events.Event) -> None:
        self.journal.append(event)

    # -- the trainer, as the commit calls it --------------------------------------------------------------------------

    async def apply(self, key: RoundKey, outer: Tensor, base: int, next_round: int, merge: Merge = AT_ONCE) -> None:
        """Do nothing: the result is already in the arena, and there is no trainer to merge it."""
        assert outer.data_ptr() == self._arena.in_slot(key.fragment).data_ptr()

    def release(self, key: RoundKey) -> None: ...

    # -- a round -----------------------------------------------------------------------------------------------------

    async def _swap(self, command: dict[str, Any]) -> None:
        key, now = RoundKey(command["round"], 0), self._clock.now()
        cut = cut_work(TOKENS, self.state.layout.elements, STEPS, NOMINAL[command.get("work", "whole")])
        work = WorkSnapshot(key, self._own, STEPS, TOKENS, TOKENS, 1.0, 1.0)
        self._known.peers[self._partner.peer_id] = self._partner
        flight = InFlightRound(key, self._opened(key), self._landing)
        flight.ready.set_result(Snapshot(work, cut, now + WAIT_S, AT_ONCE, now))
        await flight.task
        last = self.journal.pop()
        assert isinstance(last, events.RoundEnded), last
        assert last.outcome == "exchanged", last

    @asynccontextmanager
    async def _opened(self, key: RoundKey) -> AsyncIterator[PairSession]:
        """Open a pair round whose partner is known."""
        yield PairSession(self._pairs, cast(PartnerSearch, Found(key, self._partner.peer_id, self._we_dial)))

    async def close(self) -> None:
        await super().close()
        self._folder.cleanup()


class Found:
    """A search that has already found its partner."""

    patience_s = None
    relayed = False

    def __init__(self, key: RoundKey, partner: PeerId, we_dial: bool) -> None:
        self.key, self.we_dial = key, we_dial
        self.locked: PeerId | None = partner

    async def partner(self, closes_at: float) -> PeerId | None:
        return self.locked

    async def alive(self, partner: PeerId) -> bool:
        return True

    def lost(self, partner: PeerId, why: str) -> None:
        self.locked = None

    def solo_reason(self) -> str:
        return "the partner was lost"


def _nothing(*_: object) -> None: ...


if __name__ == "__main__":
    main(RoundEnd)
