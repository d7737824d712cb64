"""What the operator of a run signed and every peer hands on, and how a daemon asks others for it. The word reaches all
in a few hops, even when the operator's node is seen by some only."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping

from peer.codes import Code
from peer.errors import BadPayload, ExchangeError
from peer.ports.clock import Clock
from peer.ports.transport import Transport
from peer.protocol.messages import NODES, PeerId, PeerRecord

ASK_EVERY_S = 5.0
ASK_TIMEOUT_S = 5.0
TRIES = 8
"""Draws before it is given up, until the next time, to find one that can be called."""
MAX_NAMED = 1024
"""Most pairs of peer and code that are journaled."""

Peers = Callable[[], Awaitable[Mapping[PeerId, PeerRecord]]]
Answered = Callable[[PeerId, float], None]


class OperatorsWord(ABC):
    """The asking half of one daemon. A subclass keeps what was signed."""

    def __init__(self, tell_refused: Callable[[PeerId, Code, str], None]) -> None:
        """`tell_refused`: journals a peer, a code and a reason."""
        self.refused = 0
        """Words of others that did not check."""
        self._tell_refused = tell_refused
        self._told_of: set[tuple[PeerId, Code]] = set()

    @property
    @abstractmethod
    def count(self) -> int:
        """How much was signed, as far as it is known here."""

    @abstractmethod
    async def _take(self, transport: Transport, record: PeerRecord) -> bool:
        """Ask once; whether there was anything new. Raises ExchangeError, BadPayload for what does not check."""

    @abstractmethod
    def _new_since(self, before: int) -> None:
        """Tell of all that came since the count was so much, and keep it."""

    async def ask(self, transport: Transport, record: PeerRecord) -> bool:
        """Get all we lack from one peer; whether one good answer was all. Never raises: what does not check is
        journaled, once a peer and code."""
        before, answers, more = self.count, 0, True
        try:
            while more:
                more = await self._take(transport, record)
                answers += 1
        except BadPayload as bad:
            self._refuse(record.peer_id, bad.code, bad.reason)
        except ExchangeError:
            return False
        finally:
            self._new_since(before)
        return answers == 1 and not more

    def _refuse(self, peer: PeerId, code: Code, reason: str) -> None:
        self.refused += 1
        if (peer, code) not in self._told_of and len(self._told_of) < MAX_NAMED:
            self._told_of.add((peer, code))
            self._tell_refused(peer, code, reason)

    def pace(self, every_s: float) -> float:
        """Seconds until the next question. `every_s`: as its owner asked for."""
        return every_s

    async def run(
        self,
        transport: Transport,
        clock: Clock,
        rng: random.Random,
        peers: Peers,
        every_s: float = ASK_EVERY_S,
        answered: Answered = lambda peer, took_s: None,
    ) -> None:
        """Ask for ever: now the operator's node, now anybody. The owner cancels. `answered` is called with how many
        seconds an answer of a peer took: a peer that all others call, and that calls nobody for an exchange, learns
        only so that its line is slow."""
        while True:
            if (record := _whom(list((await peers()).values()), rng)) is not None:
                began = clock.now()
                if await self.ask(transport, record):  # several say nothing of how long one takes
                    answered(record.peer_id, clock.now() - began)
            await clock.sleep(self.pace(every_s) * rng.uniform(0.8, 1.2))


def _whom(records: list[PeerRecord], rng: random.Random) -> PeerRecord | None:
    """The operator's node every other time, if there is one, else anybody who can be called."""
    if rng.random() < 0.5:
        records = [record for record in records if record.status in NODES] or records
    drawn = (rng.choice(records) for _ in range(TRIES if records else 0))
    return next((record for record in drawn if record.reach), None)
