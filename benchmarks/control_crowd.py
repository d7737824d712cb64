"""A process of `benchmarks.control_bytes`: shows records of peers that are paused and cannot be dialled, as many as a
larger swarm would.

    python -m benchmarks.control_crowd TICKET COUNT LISTEN HOME"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from peer.discovery.dht_node.node import LOST
from peer.discovery.directory import DhtDirectory
from peer.discovery.keys import bucket_key
from peer.discovery.multiaddr import split
from peer.discovery.validator import dht_expiry
from peer.identity import Identity, load_or_create
from peer.membership.peer_table import lifetime, pace
from peer.protocol.messages import WIRE_VERSION, PeerId, PeerRecord, RunId, Status
from peer.run.ticket import Ticket
from peer.signed_record import seal

ROUND_S = 300.0


async def announce(
    directory: DhtDirectory, run_id: RunId, key: Identity, lifetime_s: float, nodes: Sequence[str]
) -> None:
    """Store the record of one key at these nodes, as a peer does."""
    now, node = time.time(), directory._helper.node
    record = PeerRecord(
        peer_id=PeerId(key.peer_id),
        run_id=run_id,
        endpoints=("21.0.0.1:4810",),
        reachable=False,
        wire_min=WIRE_VERSION,
        wire_max=WIRE_VERSION,
        round=1,
        tokens_per_s=1000.0,
        status=Status.PAUSED,
        issued_at=now,
        expires_at=now + lifetime_s,
    )
    if node is not None:
        with contextlib.suppress(*LOST):
            await node.store_in([bucket_key(run_id)], key.public_key, seal(record, key), dht_expiry(record), nodes)


async def show(ticket: Ticket, count: int, listen: str, home: Path) -> None:
    """Announce for ever, each record as often as a peer announces its own."""
    path, run_id, lifetime_s = home / "identity.key", RunId(ticket.run_id), lifetime(pace(ROUND_S))
    directory = await DhtDirectory.start(
        identity=load_or_create(path),
        identity_path=path,
        run_id=run_id,
        initial_peers=ticket.addresses,
        host_maddrs=(listen,),
    )
    keys = [Identity.generate() for _ in range(count)]
    nodes = [split(address)[1] for address in ticket.addresses]
    while True:
        for key in keys:
            await announce(directory, run_id, key, lifetime_s, nodes)
            await asyncio.sleep(lifetime_s / 3 / count)


if __name__ == "__main__":
    folder = Path(sys.argv[4])
    folder.mkdir(parents=True)
    asyncio.run(show(Ticket.decode(sys.argv[1]), int(sys.argv[2]), sys.argv[3], folder))
