"""A transport binds its port before it serves, because its owner creates all other parts in between."""

from __future__ import annotations

import asyncio

from peer.clock.run_clock import RunClock
from peer.identity import Identity
from peer.node.handler import RequestHandler
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.transport.grpc_transport import GrpcTransport

RUN = RunId(b"r" * 32)


def test_a_caller_is_answered_only_once_the_port_is_served() -> None:
    async def main() -> list[bool]:
        now = RunClock().now
        key = Identity.generate()
        there, here = (GrpcTransport(one, RUN, RequestHandler(), now) for one in (key, Identity.generate()))
        try:
            where = f"127.0.0.1:{there.bind('127.0.0.1', 0)}"
            me, until = PeerId(key.peer_id), now() + 60
            record = PeerRecord(me, RUN, (where,), True, 1, 1, 0, 0.0, Status.TRAINING, now(), until)
            calling = asyncio.create_task(here.hello(record, 30.0))
            _, writer = await asyncio.open_connection("127.0.0.1", int(where.rpartition(":")[2]))
            writer.close()
            before = calling.done()
            await there.serve()
            await calling
            return [before, calling.done()]
        finally:
            await asyncio.gather(there.close(), here.close())

    assert asyncio.run(main()) == [False, True]


def test_a_port_that_is_never_served_is_given_back() -> None:
    async def main() -> None:
        key = Identity.generate()
        one, other = (GrpcTransport(key, RUN, RequestHandler(), RunClock().now) for _ in range(2))
        port = one.bind("127.0.0.1", 0)
        await one.close()
        assert other.bind("127.0.0.1", port) == port
        await other.close()

    asyncio.run(main())
