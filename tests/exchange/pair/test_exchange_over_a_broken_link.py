"""The daemon's exchange over real transports, whose link breaks while both sides check whether the other is alive."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import torch

from peer.aio.threads import inline
from peer.clock.run_clock import RunClock
from peer.codec.registry import EVERY
from peer.errors import PartnerLost
from peer.exchange.pair.swap import PairSwap, PartnerTerms
from peer.identity import Identity
from peer.protocol.messages import Answer, Offer, PeerId, PeerRecord, RoundKey, RunId, Status, Verdict
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from tests.support.cutting_relay import Wire, before

RUN, KEY, ELEMENTS, AWAY_S = RunId(b"R" * 32), RoundKey(1, 0), 2_000_000, 2.5


class Partner:
    """A peer that is locked with every caller."""

    def on_offer(self, sender: PeerId, offer: Offer) -> Answer:
        return Answer(Verdict.LOCKED)

    def on_swap(self, sender: PeerId, key: RoundKey) -> Answer:
        return Answer(Verdict.LOCKED)


def test_a_link_that_is_away_for_a_while_costs_that_while() -> None:
    async def main() -> None:
        loop, wires, ends, lost = asyncio.get_running_loop(), [Wire(), Wire()], list[Any](), list[str]()
        async with contextlib.AsyncExitStack() as stack:
            for wire in wires:
                identity, owner = Identity.generate(), Partner()
                transport = GrpcTransport(identity, RUN, owner, RunClock().now)  # type: ignore[arg-type]
                transport.begin_run(RunTerms(b"L" * 32, 2**26))
                stack.push_async_callback(transport.close)
                inner = f"127.0.0.1:{await transport.start('127.0.0.1', 0)}"
                where = await stack.enter_async_context(before(inner, wire))
                now, me = RunClock().now(), PeerId(identity.peer_id)
                record = PeerRecord(me, RUN, (where,), True, 1, 1, 0, 0.0, Status.TRAINING, now, now + 60)
                ends.append((transport, record))

            def cut() -> None:
                for wire in wires:
                    wire.sever()
                    loop.call_later(AWAY_S, wire.mend)

            wires[1].when(2_000_000, cut)

            async def exchanged(number: int) -> torch.Tensor:
                (transport, _), (_, other) = ends[number], ends[1 - number]

                async def alive() -> bool:
                    try:
                        return (await transport.offer(other, Offer(KEY), 1.5)).verdict is Verdict.LOCKED
                    except PartnerLost as error:
                        lost.append(str(error))
                        raise

                exchange = PairSwap(transport, RunClock(), EVERY["bf16"], inline, None)
                own, into = torch.full((ELEMENTS,), 1.0 + number), torch.zeros(ELEMENTS)
                await exchange.swap(PartnerTerms(other, KEY, 5.0, number == 0, alive), own, own, into)
                return into

            async with asyncio.timeout(90):
                one, other = await asyncio.gather(exchanged(0), exchanged(1))
            assert bool((one == 2.0).all())
            assert bool((other == 1.0).all())
            assert lost, "both asked in vain meanwhile"

    asyncio.run(main())
