"""Interfaces of the calls to other peers, in four parts. A user depends only on the part that it needs.

A call sends Hello first if it has to. It ends within its timeout, and raises only `PartnerLost`, `PartnerRefused` or
`BadPayload`. `peer.transport.grpc_transport` implements the calls over gRPC, `peer.lab.sim.memory_transport` over a
network in memory. One conformance suite tests both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from peer.ports.directory import Shown
from peer.protocol.group.quorum import Base
from peer.protocol.group.roster import Join, JoinReply
from peer.protocol.group.shards import ContributionHeader, Receipt, ResultSink
from peer.protocol.messages import (
    Answer,
    Offer,
    PeerId,
    PeerRecord,
    PeerTimings,
    Probed,
    RoundKey,
    StateIndex,
    SwapReport,
    Vouched,
    Welcome,
)
from peer.protocol.pair.receipt import ShownReceipt, SignedOpinion
from peer.protocol.wire.payload import Arrived, Sink, Source, ignore_arrival


class SwapCalls(Protocol):
    """Calls between the partners of a pair."""

    async def offer(self, to: PeerRecord, offer: Offer, timeout_s: float) -> Answer: ...

    async def swap(
        self,
        partner: PeerRecord,
        key: RoundKey,
        source: Source,
        sink: Sink,
        timeout_s: float,
        dial: bool,
        told: PeerTimings | None = None,
        needs: float = 0.0,
    ) -> SwapReport:
        """Exchange payloads with a locked partner. Both sides call this, one of them with `dial`
        (`peer.protocol.pair.scores.initiates`).

        Returns when `sink` holds the partner's complete, verified payload, even if the partner did not receive all of
        ours. If it raises, the content of `sink` is not valid. Source and sink are not used after the call, so their
        memory can be reused. `needs`: bytes per second each way below which the swap would be too slow; if no relay on
        the path has that much left, the call raises RelayBusy. `told`: our timings for the partner. The report has the
        partner's."""

    def relay_gone(self, partner: PeerId, within_s: float) -> PeerId | None:
        """Return the relay that disappeared during a transfer with this partner within the last `within_s` seconds.
        None: there was none."""

    async def receipt(self, partner: PeerRecord, signed: SignedOpinion, timeout_s: float) -> SignedOpinion | None:
        """Send the partner of a swap our signature and return the partner's. None: it has not decided yet, or knows no
        such swap."""

    async def shown_receipts(self, by: PeerRecord, timeout_s: float) -> list[ShownReceipt]:
        """Fetch the receipts that other peers signed for a peer; at most `MAX_SHOWN`, not verified."""


class GroupCalls(Protocol):
    """Calls among the members of a group."""

    async def join_round(self, leader: PeerRecord, join: Join, timeout_s: float) -> JoinReply:
        """Ask a peer to lead a round, and return its answer. It may delay the answer for `join.wait_s` seconds."""

    async def contribute(
        self, owner: PeerRecord, opening: ContributionHeader, source: Source | None, sink: ResultSink, timeout_s: float
    ) -> Receipt:
        """Send our part of a shard to its owner and wait for the result. `source` None: nothing is sent.

        Returns when `sink` holds the complete, verified result. If it raises, the content of `sink` is not valid. An
        owner that stops sending is noticed within five seconds. If both sides support resumption, it then has ten more
        seconds before it counts as lost. `source` is not read once the result has begun."""

    async def held(self, by: PeerRecord, fragment: int, timeout_s: float) -> Base:
        """Fetch the base of the state of a fragment that a peer has now."""

    async def fetch_part(self, donor: PeerRecord, snapshot: str, part: int, nbytes: int, timeout_s: float) -> bytes:
        """Fetch a part of a fragment's state (`peer.state.transfer.fragment`), of exactly `nbytes` bytes. The caller
        checks the digest over all parts."""


class StateCalls(Protocol):
    """Calls of a joiner to peers that serve manifest, state and artifacts."""

    async def fetch_manifest(self, to: PeerRecord, timeout_s: float) -> tuple[bytes, bytes]:
        """Fetch the exact bytes of the manifest and their signature. Neither is verified."""

    async def describe_state(
        self, donor: PeerRecord, timeout_s: float, fresh: bool = False, wanted: str = ""
    ) -> StateIndex:
        """Fetch the description of the snapshot that a donor offers. `fresh`: of its present state, not an earlier
        snapshot. `wanted`: name of the snapshot to describe, if the donor still has it."""

    def answered_at(self, peer: PeerId) -> str:
        """Return the address (`host:port`) at which a peer proved its key to us; empty: we have no connection to it."""

    async def fetch_piece(
        self, donor: PeerRecord, index: StateIndex, piece: int, timeout_s: float, arrived: Arrived = ignore_arrival
    ) -> bytes:
        """Fetch one piece and verify its digest. `arrived` is called with the number of bytes as they come, before they
        are verified."""

    async def query_artifacts(self, holder: PeerRecord, digests: Sequence[bytes], timeout_s: float) -> list[bool]:
        """Ask a peer which of at most `MAX_ARTIFACTS` artifacts it serves. Returns one answer each, in the same order.
        A peer of an older version serves none."""

    async def fetch_artifact(
        self,
        donor: PeerRecord,
        digest: bytes,
        piece: int,
        nbytes: int,
        timeout_s: float,
        arrived: Arrived = ignore_arrival,
    ) -> bytes:
        """Fetch a piece of an artifact, of exactly `nbytes` bytes. The caller checks the digest over all pieces.
        `arrived`: see `fetch_piece`."""


class SwarmCalls(Protocol):
    """Calls between peers that need not exchange anything: membership, reachability, statements of the operator."""

    async def forget_connections(self) -> None:
        """Close all connections after a sleep of this machine. The next call to a peer connects again."""

    async def hello(self, to: PeerRecord, timeout_s: float) -> Welcome: ...

    async def probe(self, by: PeerRecord, endpoints: tuple[str, ...], timeout_s: float) -> Probed:
        """Ask a peer to dial us at the address that it sees, at the ports of these endpoints.

        The request uses a new connection to one of the endpoints of `by`."""

    def take_callers(self) -> tuple[str, ...]:
        """Return a few hosts from which peers with a proven key have called since the last call of this method."""

    async def vouch(self, by: PeerRecord, about: PeerId, timeout_s: float) -> Vouched:
        """Ask a peer whether it reaches `about`, a peer that does not answer us."""

    async def send_summary(self, to: PeerRecord, raw: bytes, timeout_s: float) -> str:
        """Send our signed summary to a node of the operator. Return why it was dropped; empty: it was accepted.
        `UNWANTED` (`peer.ports.handler`): the node collects none, or is of an older version. Raises PartnerRefused
        (`record`) for a summary that our key did not sign."""

    async def fetch_amendments(
        self, to: PeerRecord, held: int, head: bytes, timeout_s: float
    ) -> list[tuple[bytes, bytes]]:
        """Fetch (raw, signature) of the operator's amendments after the first `held`, not verified."""

    async def fetch_papers(self, to: PeerRecord, held: Sequence[bytes], timeout_s: float) -> list[bytes]:
        """Fetch the papers of the run that we lack, as lines, not verified. `held`: digests of those that we have."""

    async def fetch_peers(self, to: PeerRecord, own: Shown, timeout_s: float) -> list[Shown]:
        """Send a peer our own record (empty: we have none), and fetch the records that it knows, not verified."""


class Transport(SwapCalls, GroupCalls, StateCalls, SwarmCalls, Protocol):
    """All four parts, for code that passes them on."""
