"""The leaf certificate of a server: short-lived, backdated, renewed, and bound to the peer's key."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl
import time
from collections.abc import AsyncIterator

from cryptography import x509

from peer.identity import Identity
from peer.protocol.messages import PeerId
from peer.transport.client.dial_check import dial_check
from peer.transport.tls import BACKDATED, VALID, RenewedLeaf, leaf_for
from tests.support.behind_front import behind, speaking

DAY_S = 86_400.0


def certificate_shown(port: int) -> x509.Certificate:
    """Return the leaf that a server presents now."""
    return x509.load_pem_x509_certificate(ssl.get_server_certificate(("127.0.0.1", port), timeout=5).encode())


@contextlib.asynccontextmanager
async def served(now: list[float], identity: Identity) -> AsyncIterator[int]:
    async def settings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with behind(speaking(settings), leaf=RenewedLeaf(identity, lambda: now[0])) as front:
        yield front.port


def test_a_leaf_is_valid_for_weeks_and_begins_a_week_ago() -> None:
    now = datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC)
    leaf = x509.load_pem_x509_certificate(leaf_for(Identity.generate(), now)[1])
    assert leaf.not_valid_before_utc == now - BACKDATED
    assert leaf.not_valid_after_utc == now + VALID


def test_a_server_shows_a_new_leaf_when_the_last_one_is_a_day_old() -> None:
    async def scene() -> None:
        now = [time.time()]
        async with served(now, Identity.generate()) as port:
            shown = []
            for later in (0.0, 0.9 * DAY_S, 0.2 * DAY_S, 0.1 * DAY_S):
                now[0] += later
                shown.append((await asyncio.to_thread(certificate_shown, port)).serial_number)
            assert shown[0] == shown[1] != shown[2] == shown[3]

    asyncio.run(scene())


async def reaches(port: int, identity: Identity) -> bool:
    """Return whether a caller that accepts only this identity can connect."""
    return not await dial_check(PeerId(identity.peer_id), f"127.0.0.1:{port}", 10.0)


def test_a_stolen_leaf_is_worthless_after_a_month() -> None:
    """The server's clock is set back, so that it presents the leaf that a thief would present later."""

    async def scene(age_s: float) -> bool:
        identity = Identity.generate()
        async with served([time.time() - age_s], identity) as port:
            return await reaches(port, identity)

    assert asyncio.run(scene(29 * DAY_S))
    assert not asyncio.run(scene(31 * DAY_S))
    assert asyncio.run(scene(-6 * DAY_S)), "a caller whose clock is six days behind"
    assert not asyncio.run(scene(-8 * DAY_S))
