"""`peer swarm --attack sybil-records`: fresh keys whose signed records all name one innocent address.

The keys cost nothing, and nobody answers for them. The attack shows how often honest peers dial the address, and how
many of their exchanges they lose to candidates that never answer."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from peer import identity as identities
from peer.discovery.dht_node.node import LOST
from peer.discovery.directory import DhtDirectory
from peer.discovery.keys import bucket_key
from peer.discovery.validator import dht_expiry
from peer.errors import UsageError
from peer.identity import Identity
from peer.lab.attack.silent_address import SilentAddress, silent_address
from peer.protocol.messages import WIRE_VERSION, PeerId, PeerRecord, RunId, Status
from peer.protocol.swarm.buckets import places_of
from peer.run.ticket import Ticket
from peer.signed_record import seal

NAME = "sybil-records"
RECORDS = 150
MOST_RECORDS = 1000
LIFE_S, AGAIN_S = 60.0, 20.0
"""Seconds that a record lives, and after which it is announced again."""
STORE_S = 10.0
PLACES = 2
"""Buckets of the directory in which each record is put: the first ones that readers look into."""


def records_asked(texts: Iterable[str]) -> tuple[int, tuple[str, ...]]:
    """Return the records that `--attack sybil-records[:N]` asks for, and the other attacks. Raises UsageError."""
    records, others = 0, list[str]()
    for text in texts:
        match = re.fullmatch(rf"{NAME}(?::([0-9]{{1,6}}))?", text)
        if match is None and text.startswith("sybil"):
            raise UsageError(f"--attack {text!r} cannot be read", f"Write {NAME} or {NAME}:N, e.g. {NAME}:{RECORDS}.")
        if match is None:
            others.append(text)
            continue
        records = int(match[1] or RECORDS)
        if not 1 <= records <= MOST_RECORDS:
            reason = f"--attack {text} cannot be played"
            raise UsageError(reason, f"Give a number of records from 1 to {MOST_RECORDS}, or none.")
    return records, tuple(others)


class SybilRecords:
    """A farm of keys. It announces their records for as long as it is open."""

    def __init__(self, run_id: RunId, count: int, directory: DhtDirectory, silent: SilentAddress) -> None:
        self._run_id = run_id
        self._keys = [Identity.generate() for _ in range(count)]
        self._directory = directory
        self._silent_address = silent
        self._begun = asyncio.Event()
        self._began = math.inf
        self._seen = 0
        self._announced: set[str] = set()
        """Peer ids of the records that the directory has taken."""

    def begin(self) -> None:
        """Announce from here on."""
        self._began = time.time()
        self._begun.set()

    async def run(self) -> None:
        """Announce for ever, once it has begun; the owner cancels."""
        await self._begun.wait()
        while True:
            for key in self._keys:
                await self._announce(key)
            found = await self._directory.peers()
            ours = sum(key.peer_id in found for key in self._keys)
            self._seen = max(self._seen, ours)
            await asyncio.sleep(AGAIN_S)

    def report(self) -> dict[str, Any]:
        """Return what came of it, JSON-able."""
        return {
            "records": len(self._keys),
            "announced": len(self._announced),
            "seen": self._seen,
            "address": self._silent_address.endpoint,
            "connections": self._silent_address.connections,
            "seconds": round(max(0.0, time.time() - self._began), 1),
        }

    async def _announce(self, key: Identity) -> None:
        now, peer, node = time.time(), PeerId(key.peer_id), self._directory._helper.node
        record = PeerRecord(
            peer_id=peer,
            run_id=self._run_id,
            endpoints=(self._silent_address.endpoint,),
            reachable=True,
            wire_min=WIRE_VERSION,
            wire_max=WIRE_VERSION,
            round=0,
            tokens_per_s=1000.0,
            status=Status.TRAINING,
            issued_at=now,
            expires_at=now + LIFE_S,
        )
        places = [bucket_key(self._run_id, bits) for bits in sorted(places_of(peer), key=len)[:PLACES]]
        with contextlib.suppress(*LOST):
            async with asyncio.timeout(STORE_S):
                if node is not None:
                    await node.store_in(places, key.public_key, seal(record, key), dht_expiry(record))
                    self._announced.add(key.peer_id)


def _own_key(path: Path) -> Identity:
    path.parent.mkdir(parents=True, exist_ok=True)
    return identities.load_or_create(path)


@contextlib.asynccontextmanager
async def sybil_records(count: int, ticket: Ticket, home: Path) -> AsyncIterator[SybilRecords]:
    """Make a farm that has still to begin. It ends with the block. `home`: a folder for its own key.

    Raises DirectoryFailed."""
    own, run_id = _own_key(home / "identity.key"), RunId(ticket.run_id)
    async with silent_address() as silent:
        directory = await DhtDirectory(
            identity=own,
            identity_path=home / "identity.key",
            run_id=run_id,
            initial_peers=ticket.addresses,
            host_maddrs=("/ip4/127.0.0.1/tcp/0",),
        ).start()
        farm = SybilRecords(run_id, count, directory, silent)
        announcing = asyncio.create_task(farm.run())
        try:
            yield farm
        finally:
            announcing.cancel()
            await asyncio.wait({announcing})
            await directory.close()
