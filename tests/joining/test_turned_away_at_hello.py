"""The message of `peer join` for an uninvited peer, which a peer of the run refuses at a real Hello."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer.clock.run_clock import RunClock
from peer.errors import JoinRefused
from peer.identity import Identity
from peer.joining.context import JoinContext
from peer.joining.invitation import invited_peers
from peer.joining.manifest import find_manifest
from peer.node.handler import RequestHandler
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.protocol.policy.amendments import Change
from peer.run.admission.invitation import Invitation
from peer.run.manifest import SignedManifest, write_new
from peer.run.statements.log import StatementLog
from peer.transport.client import connections
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import TransportPolicy

OPERATOR, OTHER, ADA = Identity.generate(), Identity.generate(), Identity.generate()
DAY_S = 86400.0
WITH_ONE = "--invitation @FILE"


class Door:
    """A serving peer of a run by invitation, and a joiner, in one process."""

    def __init__(self, folder: Path) -> None:
        self.signed = write_new(folder / "run.toml", OPERATOR, ["admission.kind=invited"])
        self.run_id = RunId(self.signed.run_id)
        self.clock = RunClock()
        self.ahead_s = 0.0
        """Days by which the served peer's clock is ahead of the invitations."""
        self._log = StatementLog(self.run_id, OPERATOR.peer_id)
        rule = invited_peers(self.signed.manifest, self._log, self._now, ())
        self._served = GrpcTransport(OTHER, self.run_id, self._handler(), self.clock.now)
        self._served.begin_run(RunTerms(uninvited_reason=rule.refusal))

    def _now(self) -> float:
        return self.clock.now() + self.ahead_s

    def _handler(self) -> RequestHandler:
        handler = RequestHandler()
        handler.register(manifest=self.signed)
        return handler

    def invitation(self, *, key: Identity = ADA, run_id: bytes = b"", by: Identity = OPERATOR) -> Invitation:
        return Invitation.make(by, run_id or self.run_id, key.peer_id, int(self.clock.now() + DAY_S))

    def revoke(self, reason: str) -> None:
        self._log.amend(OPERATOR, 0, Change.REVOKE, reason, peer=ADA.peer_id)

    async def join(self, shown: bytes, then: Callable[[], None] = lambda: None) -> SignedManifest:
        """Run the first part of `peer join`, then `then`, and the first part once more."""
        transport = GrpcTransport(ADA, self.run_id, RequestHandler(), self.clock.now, TransportPolicy(invitation=shown))
        try:
            port = await self._served.start("127.0.0.1", 0)
            context = self._context(transport, port)
            async with asyncio.timeout(90):
                await find_manifest(context, 5.0)
                then()
                return await find_manifest(context, 5.0)
        finally:
            await transport.close()
            await self._served.close()

    def _context(self, transport: GrpcTransport, port: int) -> JoinContext:
        now, endpoints = self.clock.now(), (f"127.0.0.1:{port}",)
        other = PeerId(OTHER.peer_id)
        record = PeerRecord(other, self.run_id, endpoints, True, 1, 1, 0, 0.0, Status.TRAINING, now, now + 60)

        async def peers() -> dict[PeerId, PeerRecord]:
            return {other: record}

        directory = SimpleNamespace(peers=peers, contact=lambda: SimpleNamespace(reasons={}, clock_offset_s=None))
        return JoinContext(
            run_id=self.run_id,
            me=PeerId(ADA.peer_id),
            directory=cast(Any, directory),
            transport=transport,
            clock=self.clock,
            say=lambda line: None,
        )


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path)


def none(door: Door) -> bytes:
    return b""


def expired(door: Door) -> bytes:
    shown = door.invitation().raw
    door.ahead_s = DAY_S
    return shown


def revoked(door: Door) -> bytes:
    door.revoke("sold the machine")
    return door.invitation().raw


def of_another_run(door: Door) -> bytes:
    return door.invitation(run_id=b"s" * 32).raw


def of_another_key(door: Door) -> bytes:
    return door.invitation(key=OTHER).raw


def altered(door: Door) -> bytes:
    given = door.invitation()
    return dataclasses.replace(given, expires=given.expires + 1).raw


def self_made(door: Door) -> bytes:
    return door.invitation(by=ADA).raw


def torn(door: Door) -> bytes:
    return door.invitation().raw[:-1]


@pytest.mark.parametrize(
    ("show", "words", "fix"),
    [
        (
            none,
            f"this run admits invited peers only, and {ADA.peer_id} shows no invitation. Ask the operator",
            WITH_ONE,
        ),
        (expired, f"the invitation of {ADA.peer_id} expired on ", WITH_ONE),
        (revoked, f"the operator took back the invitation of {ADA.peer_id}: sold the machine", "Ask the operator"),
        (of_another_run, f"the invitation of {ADA.peer_id} is for another run, {(b's' * 8).hex()}", WITH_ONE),
        (of_another_key, f"the invitation that {ADA.peer_id} shows was given to {OTHER.peer_id}", WITH_ONE),
        (altered, f"the invitation of {ADA.peer_id} is altered, or the operator never signed it", WITH_ONE),
        (self_made, f"the invitation of {ADA.peer_id} is altered, or the operator never signed it", WITH_ONE),
        (torn, f"the invitation of {ADA.peer_id} cannot be read", WITH_ONE),
    ],
    ids=lambda given: given.__name__ if callable(given) else "",
)
def test_a_person_reads_why_nobody_lets_it_in(door: Door, show: Callable[[Door], bytes], words: str, fix: str) -> None:
    with pytest.raises(JoinRefused) as refused:
        asyncio.run(door.join(show(door)))
    assert refused.value.found.startswith(f"every peer of the run refuses this one: {words}")
    assert fix in refused.value.fix
    assert refused.value.exit_code == 32


def test_the_invited_one_gets_in(door: Door) -> None:
    assert asyncio.run(door.join(door.invitation().raw)).run_id == door.run_id


def test_who_was_let_in_is_refused_at_its_next_hello_once_its_day_is_over(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HELLO_EVERY_S", 0.0)

    def a_day_later() -> None:
        door.ahead_s = DAY_S

    with pytest.raises(JoinRefused, match=f"the invitation of {ADA.peer_id} expired on "):
        asyncio.run(door.join(door.invitation().raw, a_day_later))
