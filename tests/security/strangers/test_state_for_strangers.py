"""The share of a volunteer's upload that strangers get, over real gRPC: part of a day's quota, and rations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import date

import torch

from peer.clock.run_clock import RunClock
from peer.errors import PartnerRefused
from peer.identity import Identity
from peer.node.handler import DonatedState, RequestHandler
from peer.node.upload_quota import UploadQuota
from peer.outer.state import OuterState
from peer.ports.reputation import NoReputation
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.policy.state_ration import OF_A_KEY, StateRation
from peer.protocol.policy.upload_quota import STRANGERS_SHARE, Moment, UploadLimits
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import TransportPolicy

RUN = RunId(b"r" * 32)
LAYOUT = Layout.whole([TensorSpec("a", (250_000,))])
STATE = 1_000_000
DAY = 20 * STATE
EXCHANGE = STATE
TIMEOUT_S = 10.0


class Knows(NoReputation):
    """A reputation in which the test sets the proven peers."""

    def __init__(self) -> None:
        self.proven = set[PeerId]()

    def is_proven(self, peer: PeerId) -> bool:
        return peer in self.proven


@dataclass
class Donor:
    """A volunteer with a daily limit, and the callers that fetch from it."""

    transport: GrpcTransport
    record: PeerRecord
    knows: Knows
    quota: UploadQuota
    others: list[GrpcTransport] = field(default_factory=list)

    def caller(self, *, proven: bool = False) -> GrpcTransport:
        """Create a caller with a new key. `proven`: whether the donor knows it as a proven peer."""
        identity = Identity.generate()
        if proven:
            self.knows.proven.add(PeerId(identity.peer_id))
        made = GrpcTransport(identity, RUN, RequestHandler(), RunClock().now)
        made.begin_run(RunTerms(LAYOUT.digest(), 2**24))
        self.others.append(made)
        return made

    async def fetched(self, caller: GrpcTransport, states: int) -> tuple[int, str]:
        """Fetch `states` states. Return the bytes received, and the code of the refusal that ended it."""
        got = 0
        try:
            for _ in range(states):
                index = await caller.describe_state(self.record, TIMEOUT_S)
                for number in range(len(index.pieces)):
                    got += len(await caller.fetch_piece(self.record, index, number, TIMEOUT_S))
        except PartnerRefused as refused:
            return got, refused.code
        return got, ""


@contextlib.asynccontextmanager
async def donor(limits: UploadLimits) -> AsyncIterator[Donor]:
    knows, identity, outer = Knows(), Identity.generate(), OuterState.fresh(LAYOUT, torch.zeros(LAYOUT.elements))
    quota = UploadQuota(
        limits, None, lambda event: None, lambda line: None, moment=lambda now: Moment(date(2026, 1, 1), 0.0, 0.0)
    )
    quota.reserve_for_exchange(EXCHANGE)
    state = DonatedState(outer, lambda: 1, RunClock().now)
    policy = TransportPolicy(quota=quota, reputation=knows)
    transport = GrpcTransport(identity, RUN, RequestHandler(state=state), RunClock().now, policy)
    transport.begin_run(RunTerms(LAYOUT.digest(), 2**24))
    at = (f"127.0.0.1:{await transport.start('127.0.0.1', 0)}",)
    record = PeerRecord(PeerId(identity.peer_id), RUN, at, True, 1, 1, 0, 0.0, Status.TRAINING, 0.0, 1e12)
    made = Donor(transport, record, knows, quota)
    try:
        yield made
    finally:
        for end in (transport, *made.others):
            await end.close()


def test_strangers_have_a_share_of_the_day() -> None:
    """Strangers together get a fixed share of the quota, whatever the number of their keys. The rest is for exchanges
    and proven peers."""

    async def main() -> None:
        async with donor(UploadLimits(day=DAY)) as giving:
            taken, codes = 0, set[str]()
            for _ in range(12):
                got, code = await giving.fetched(giving.caller(), 2)
                taken += got
                codes.add(code)
            assert 0.5 * STRANGERS_SHARE * DAY < taken <= STRANGERS_SHARE * DAY
            assert "busy" in codes
            assert giving.quota.blocked_reason() == "", "there is room for exchanges"
            assert await giving.fetched(giving.caller(proven=True), 3) == (3 * STATE, "")

    asyncio.run(main())


def test_a_stranger_has_a_ration_while_a_proven_peer_wants_state() -> None:
    async def main() -> None:
        async with donor(UploadLimits()) as giving:
            giving.transport._service._uploads._rations[False] = StateRation(STATE)
            assert await giving.fetched(giving.caller(), 3) == (3 * STATE, ""), "nobody else wants any"
            assert await giving.fetched(giving.caller(proven=True), 3) == (3 * STATE, "")
            got, code = await giving.fetched(giving.caller(), 3)
            assert (got <= OF_A_KEY * STATE, code) == (True, "busy")
            assert got >= STATE, "a joiner is still served"

    asyncio.run(main())
