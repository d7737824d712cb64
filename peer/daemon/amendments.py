"""The amendments a daemon holds: kept in its run folder, asked of others every few seconds, handed on to whoever asks.
A new one reaches everybody in a few hops even when the operator's node is seen by some only."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

from peer.daemon.interfaces import Clock, Transport
from peer.errors import BadPayload, ExchangeError, JoinRefused, ManifestError
from peer.observe import events
from peer.protocol.messages import WIRE_VERSION, PeerId, PeerRecord, Status
from peer.protocol.ruling import Amendment, Ruling, describe, ruling
from peer.run.amendments import Chain, SignedAmendment, keep, load

ASK_EVERY_S = 5.0
ASK_TIMEOUT_S = 5.0
MAX_HANDED_ON = 64
"""In one answer; who lacks more asks again."""


class Amendments:
    """One daemon's. `told` is called with every amendment that is new here."""

    def __init__(self, chain: Chain, path: Path | None, emit: Callable[[events.Event], None]) -> None:
        """Reads what was kept (None: nothing is, in simulations). A kept file that does not check counts as
        far as it does; the rest is asked anew."""
        self._chain = chain
        self._path = path
        self._emit = emit
        self._refused: set[tuple[PeerId, str]] = set()
        self.told: Callable[[Amendment], None] = lambda amendment: None
        try:
            if path is not None:
                load(path, chain)
        except ManifestError as damaged:
            emit(events.AmendmentRefused(peer="", code="kept", reason=damaged.found))

    def ruling(self, round_: int) -> Ruling:
        """What holds in this round, by the amendments known here."""
        return ruling(self._chain.amendments, round_)

    @property
    def count(self) -> int:
        return len(self._chain.signed)

    def since(self, held: int, head: bytes) -> list[tuple[bytes, bytes]]:
        """For one who asks: what it lacks, in order; nothing for one that holds a foreign chain."""
        lacking = self._chain.since(held, head) or []
        return [(signed.raw, signed.signature) for signed in lacking[:MAX_HANDED_ON]]

    def read(self, operators_file: Path) -> None:
        """Take what the operator has added to the file beside the manifest. Raises ManifestError."""
        before = self.count
        try:
            load(operators_file, self._chain)
        finally:
            self._new_since(before)

    async def ask(self, transport: Transport, record: PeerRecord) -> None:
        """Get what we lack from one peer. Never raises: what does not check is journaled, once a peer and code."""
        before = self.count
        try:
            for raw, signature in await transport.fetch_amendments(record, before, self._chain.head, ASK_TIMEOUT_S):
                self._chain.extend(SignedAmendment(raw, signature))
        except BadPayload as bad:
            if (record.peer_id, bad.code) not in self._refused and len(self._refused) < 1024:
                self._refused.add((record.peer_id, bad.code))
                self._emit(events.AmendmentRefused(peer=record.peer_id, code=bad.code, reason=bad.reason))
        except ExchangeError:
            return
        finally:
            self._new_since(before)

    def _new_since(self, before: int) -> None:
        if self.count == before:
            return
        if self._path is not None:
            keep(self._path, self._chain)
        for amendment in self._chain.amendments[before:]:
            self._emit(events.Amended(number=amendment.number, round=amendment.round, change=describe(amendment)))
            self.told(amendment)

    async def run(
        self,
        transport: Transport,
        clock: Clock,
        rng: random.Random,
        peers: Callable[[], Awaitable[list[PeerRecord]]],
    ) -> None:
        """Ask for ever: now the operator's node, now anybody. The owner cancels."""
        while True:
            records = [record for record in await peers() if record.reachable and record.endpoints]
            serving = [record for record in records if record.status is Status.SERVING]
            among = serving if serving and rng.random() < 0.5 else records
            if among:
                await self.ask(transport, rng.choice(among))
            await clock.sleep(ASK_EVERY_S * rng.uniform(0.8, 1.2))


def check(now: Ruling, me: PeerId) -> None:
    """Raises JoinRefused when the operator keeps this peer out."""
    if me in now.banned:
        why = now.banned[me] or "no reason was given"
        raise JoinRefused(f"the operator of this run has banned this peer: {why}", "Ask the operator of the run.")
    if now.wire is not None and not now.wire[0] <= WIRE_VERSION <= now.wire[1]:
        low, high = now.wire
        raise JoinRefused(
            f"the operator has moved this run to wire versions {low} to {high}; this program speaks {WIRE_VERSION}",
            "Update this program: pip install -U peer-swarm",
        )
