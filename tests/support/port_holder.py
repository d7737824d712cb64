"""A process that holds a port at the router of its network until its input ends: `python -m tests.support.port_holder`.

It prints each change of the lease as a line of JSON with the held port (0: none) and the mapper's message. `--seen` is
the address from which others see the node call; empty: unknown."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys

from peer.clock.run_clock import RunClock
from peer.protocol.swarm.port_lease import LeaseTerms, PortLease, Surroundings
from peer.transport.port_mapping.mapper import PortMapper
from peer.transport.port_mapping.router import IgdRouter


def tell(port: int, news: str) -> None:
    print(json.dumps({"port": port, "news": news}), flush=True)


async def hold(port: int, lease_s: float, seen: str) -> None:
    clock = RunClock()
    terms = LeaseTerms(lease_s=lease_s, least_renewal_s=0.5, unknown_s=0.0, retry_s=1.0)
    lease = PortLease(port, random.Random(1), clock.now(), terms=terms)
    mapper = PortMapper(lease, port, IgdRouter(), clock, lambda: Surroundings(seen=seen), tell, lambda held: None)
    mapper.start()
    await asyncio.to_thread(sys.stdin.read)
    await mapper.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--lease", type=float, default=4.0)
    parser.add_argument("--seen", default="")
    given = parser.parse_args()
    asyncio.run(hold(given.port, given.lease, given.seen))


if __name__ == "__main__":
    main()
