"""Effects of the operator's statements on the transport: bans, with their reasons, and the range of wire versions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from peer.clock.run_clock import RunClock
from peer.errors import BadPayload, PartnerRefused
from peer.identity import Identity
from peer.node.handler import RequestHandler
from peer.protocol.messages import WIRE_VERSION, Offer, PeerId, PeerRecord, RoundKey, RunId, Status
from peer.transport.client import connections
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import TransportPolicy

RUN = RunId(b"W" * 32)
TIMEOUT = 10.0


class Other(RequestHandler):
    def on_vouch(self, about: PeerId) -> tuple[PeerRecord | None, float | None]:
        return None, None

    def on_amendments(self, held: int, head: bytes) -> list[tuple[bytes, bytes]]:
        return [(b"why", b"signed")]


@contextlib.asynccontextmanager
async def two(
    ours_shown: bytes = b"", theirs_shown: bytes = b""
) -> AsyncIterator[tuple[GrpcTransport, PeerId, GrpcTransport, PeerRecord]]:
    """Run our transport and another peer that we can dial, with their invitations."""
    now = RunClock().now
    me, them = Identity.generate(), Identity.generate()
    ours = GrpcTransport(me, RUN, RequestHandler(), now, TransportPolicy(invitation=ours_shown))
    theirs = GrpcTransport(them, RUN, Other(), now, TransportPolicy(invitation=theirs_shown))
    try:
        port = await theirs.start("127.0.0.1", 0)
        record = PeerRecord(
            PeerId(them.peer_id), RUN, (f"127.0.0.1:{port}",), True, 1, 1, 0, 0.0, Status.TRAINING, now(), now() + 60
        )
        async with asyncio.timeout(90):
            yield ours, PeerId(me.peer_id), theirs, record
    finally:
        await ours.close()
        await theirs.close()


def test_who_is_banned_is_refused_with_the_reason_and_still_gets_the_amendments() -> None:
    async def main() -> None:
        async with two() as (ours, me, theirs, record):
            theirs.begin_run(RunTerms(ban_reason=lambda peer: "sends noise" if peer == me else ""))
            for call in (
                ours.fetch_manifest(record, TIMEOUT),
                ours.describe_state(record, TIMEOUT),
                ours.offer(record, Offer(RoundKey(0, 0)), TIMEOUT),
            ):
                with pytest.raises(PartnerRefused, match="sends noise") as caught:
                    await call
                assert caught.value.code == "banned"
            assert await ours.fetch_amendments(record, 0, bytes(RUN), TIMEOUT) == [(b"why", b"signed")]
            theirs.begin_run(RunTerms())
            with pytest.raises(PartnerRefused) as unbanned:
                await ours.fetch_manifest(record, TIMEOUT)
            assert unbanned.value.code == "no_manifest"

    asyncio.run(main())


def test_who_does_not_speak_the_wire_range_is_refused_at_hello() -> None:
    async def main() -> None:
        async with two() as (ours, _, theirs, record):
            theirs.narrow_wire(1, WIRE_VERSION + 1)
            await ours.hello(record, TIMEOUT)
            theirs._config.wire_min = theirs._config.wire_max = WIRE_VERSION + 1  # as a newer program would
            with pytest.raises(
                PartnerRefused, match=f"wire versions {WIRE_VERSION + 1} to {WIRE_VERSION + 1}"
            ) as caught:
                await ours.hello(record, TIMEOUT)
            assert caught.value.code == "wire_version"

    asyncio.run(main())


def test_both_sides_of_a_hello_show_their_invitation_and_refuse_the_other_without_a_good_one() -> None:
    asked = list[tuple[PeerId, bytes]]()

    def uninvited_reason(peer: PeerId, shown: bytes) -> tuple[str, str] | None:
        asked.append((peer, shown))
        return None if shown.startswith(b"good") else ("invitation_expired", f"the invitation of {peer} is over")

    async def main() -> None:
        async with two(b"bad", b"good too") as (ours, me, theirs, record):
            theirs.begin_run(RunTerms(uninvited_reason=uninvited_reason))
            with pytest.raises(PartnerRefused, match=f"the invitation of {me} is over") as caught:
                await ours.hello(record, TIMEOUT)
            assert caught.value.code == "invitation_expired"
            assert asked == [(me, b"bad")]
        async with two(b"good", b"good too") as (ours, me, theirs, record):
            for transport in (ours, theirs):
                transport.begin_run(RunTerms(uninvited_reason=uninvited_reason))
            asked.clear()
            await ours.hello(record, TIMEOUT)
            assert asked == [(record.peer_id, b"good too"), (me, b"good")]
        async with two(b"good", b"") as (ours, _, theirs, record):
            ours.begin_run(RunTerms(uninvited_reason=uninvited_reason))
            with pytest.raises(BadPayload, match=f"the invitation of {record.peer_id} is over"):
                await ours.offer(record, Offer(RoundKey(0, 0)), TIMEOUT)

    asyncio.run(main())


def test_who_said_hello_before_the_terms_were_known_says_it_again_under_them() -> None:
    def nobody(peer: PeerId, shown: bytes) -> tuple[str, str] | None:
        return "uninvited", f"{peer} is not invited"

    async def main() -> None:
        async with two() as (ours, me, theirs, record):
            await ours.fetch_amendments(record, 0, bytes(RUN), TIMEOUT)
            theirs.begin_run(RunTerms(uninvited_reason=nobody))
            with pytest.raises(PartnerRefused, match=f"{me} is not invited"):
                await ours.fetch_amendments(record, 0, bytes(RUN), TIMEOUT)
        async with two() as (ours, _, theirs, record):
            await ours.fetch_amendments(record, 0, bytes(RUN), TIMEOUT)
            ours.begin_run(RunTerms(uninvited_reason=nobody))
            with pytest.raises(BadPayload, match=f"{record.peer_id} is not invited"):
                await ours.fetch_amendments(record, 0, bytes(RUN), TIMEOUT)

    asyncio.run(main())


def test_a_token_does_not_spare_a_peer_the_next_hello(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer whose invitation has expired must not continue with old tokens: its callers say Hello again."""
    over = [False]

    def uninvited_reason(peer: PeerId, shown: bytes) -> tuple[str, str] | None:
        return ("invitation_expired", f"the invitation of {peer} is over") if over[0] else None

    async def main() -> None:
        async with two() as (ours, _, _, record):
            ours.begin_run(RunTerms(uninvited_reason=uninvited_reason))
            await ours.fetch_amendments(record, 0, bytes(RUN), TIMEOUT)
            over[0] = True
            await ours.fetch_amendments(record, 0, bytes(RUN), TIMEOUT)
            monkeypatch.setattr(connections, "HELLO_EVERY_S", 0.0)
            with pytest.raises(BadPayload, match="is over"):
                await ours.fetch_amendments(record, 0, bytes(RUN), TIMEOUT)

    asyncio.run(main())
