"""`peer swarm --attack sybil-records`: many fresh keys with signed records that all name one uninvolved address.

Keys cost nothing, and no peer runs behind them. The attack shows how often honest peers dial the address, and how many
exchanges they lose to candidates that never answer."""

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
"""Lifetime of a record in seconds, and the seconds until it is announced again."""
STORE_S = 10.0
PLACES = 2
"""Number of directory buckets in which each record is stored: those that readers look into first."""


def records_asked(texts: Iterable[str]) -> tuple[int, tuple[str, ...]]:
    """Return the number of records that `--attack sybil-records[:N]` requests (0: none), and the other attacks. Raises
    UsageError."""
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
    """A set of fresh keys, whose records it announces while it runs."""

    def __init__(self, run_id: RunId, count: int, directory: DhtDirectory, silent: SilentAddress) -> None:
        self._run_id = run_id
        self._keys = [Identity.generate() for _ in range(count)]
        self._directory = directory
        self._silent_address = silent
        self._begun = asyncio.Event()
        self._began = math.inf
        self._seen = 0
        self._announced: set[str] = set()
        """Peer ids whose records the directory has accepted."""

    def begin(self) -> None:
        """Start to announce."""
        self._began = time.time()
        self._begun.set()

    async def run(self) -> None:
        """Announce all records repeatedly after `begin`, until cancelled."""
        await self._begun.wait()
        while True:
            for key in self._keys:
                await self._announce(key)
            found = await self._directory.peers()
            ours = sum(key.peer_id in found for key in self._keys)
            self._seen = max(self._seen, ours)
            await asyncio.sleep(AGAIN_S)

    def report(self) -> dict[str, Any]:
        """Return the numbers of the attack, as JSON."""
        return {
            "records": len(self._keys),
            "announced": len(self._announced),
            "seen": self._seen,
            "address": self._silent_address.endpoint,
            "connections": self._silent_address.connections,
            "seconds": round(max(0.0, time.time() - self._began), 1),
        }

    async def _announce(self, key: Identity) -> None:
        now, peer, node = time.time(), PeerId(key.peer_id), self._directory._supervisor.node
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
    """Make the keys and their directory client, until the block ends. Nothing is announced before `SybilRecords.begin`.
    `home`: folder for the client's own key.

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
