"""What does a look into the directory cost, in one bucket and in buckets that split?

Two nodes on this machine: one holds the records of a crowd, the other looks. Seconds are medians; bytes are those of
the values that came, at the reader, once each.
Left out: the network, and the hops to the nodes that hold the keys, of which there is one here.

    python -m benchmarks.directory [--records 10 100 1000]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from peer.discovery.dht_node.node import DhtNode, DhtNodeOptions
from peer.discovery.dht_node.supervisor import SupervisorTimes
from peer.discovery.keys import bucket_key
from peer.discovery.validator import RecordGate, dht_expiry
from peer.identity import Identity
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.protocol.swarm.buckets import DirectoryBuckets, address
from peer.signed_record import seal

RUN = RunId(b"b" * 32)
LOOKS = 7
LISTEN = ("/ip4/127.0.0.1/tcp/0",)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, nargs="+", default=[10, 100, 1000])
    counts = parser.parse_args().records
    print(f"{'records':>8} {'keys':>14} {'read':>5} {'found':>6} {'kB':>7} {'ms a look':>10}")
    for count in counts:
        asyncio.run(_compare(count))


async def _compare(count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="peer-bench-") as folder:
        holder, reader = await _node(Path(folder)), await _node(Path(folder))
        try:
            await reader.link((await holder.addresses())[0], SupervisorTimes().dial)
            crowd = [Identity.generate() for _ in range(count)]
            places = _settled([PeerId(identity.peer_id) for identity in crowd])
            for identity in crowd:
                await _hold(holder, identity, ["", *places[PeerId(identity.peer_id)].places(1e9)])
            me = places[PeerId(crowd[0].peer_id)]
            for name, wanted in (("one", [""]), ("split", _wanted(me))):
                await _look(count, name, reader, wanted)
        finally:
            await reader.close()
            await holder.close()


def _settled(peers: Sequence[PeerId]) -> dict[PeerId, DirectoryBuckets]:
    """Where each of these is after some looks, without a network."""
    found = {peer: DirectoryBuckets(peer) for peer in peers}
    for _ in range(12):
        live: dict[str, set[PeerId]] = {}
        for peer, buckets in found.items():
            for bits in buckets.places(0.0):
                live.setdefault(bits, set()).add(peer)
        for buckets in found.values():
            wanted = buckets.reads(0)
            buckets.saw({bits: live.get(bits, set()) for bits in wanted}, 0.0)
    return found


def _wanted(buckets: DirectoryBuckets) -> list[str]:
    """A round in which the bucket across is another one, wherever there is one."""
    rounds = (buckets.reads(round_) for round_ in range(20))
    return max(rounds, key=lambda wanted: len(wanted) == 2)


async def _hold(holder: DhtNode, identity: Identity, places: Sequence[str]) -> None:
    now, peer = time.time(), PeerId(identity.peer_id)
    assert all(address(peer).startswith(bits) for bits in places)
    record = PeerRecord(peer, RUN, ("192.0.2.1:4000",), True, 1, 1, 0, 1.0, Status.TRAINING, now, now + 100.0)
    keys = [bucket_key(RUN, bits) for bits in dict.fromkeys(places)]
    await holder.store_in(keys, identity.public_key, seal(record, identity), dht_expiry(record))


async def _look(count: int, name: str, reader: DhtNode, wanted: Sequence[str]) -> None:
    keys, seconds, found = [bucket_key(RUN, bits) for bits in wanted], [], [[b""]]
    reader._dht.protocol.storage.__init__()  # what was stored here, too, would need no network
    for _ in range(LOOKS):
        began = time.perf_counter()
        found = await reader.find_in(keys)
        seconds.append(time.perf_counter() - began)
    values = [value for some in found for value in some]
    kilobytes, took = sum(map(len, values)) / 1e3, 1e3 * statistics.median(seconds)
    print(f"{count:>8} {name:>14} {len(wanted):>5} {len(values):>6} {kilobytes:>7.1f} {took:>10.1f}", flush=True)


async def _node(folder: Path) -> DhtNode:
    identity = Identity.generate()
    path = folder / f"{identity.peer_id}.key"
    path.write_bytes(identity.to_bytes())
    path.chmod(0o600)
    return await DhtNode.start(DhtNodeOptions(path, identity.public_key), LISTEN, RecordGate(time.time))


if __name__ == "__main__":
    main()
