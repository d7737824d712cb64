"""Fuzz targets: messages between the members of a group."""

from __future__ import annotations

import torch
from google.protobuf.message import DecodeError

from peer.codec.registry import EVERY
from peer.errors import BadPayload
from peer.exchange.group.sparse_result import SparseResult
from peer.protocol.group.quorum import Base
from peer.protocol.group.roster import MAX_MEMBERS, Join, JoinReply, JoinStatus, Roster, SignedRoster, parse_roster
from peer.protocol.group.shards import MAX_TOKENS, ContributionHeader, ShardResult, check_named
from peer.protocol.messages import MAX_ROUND, PeerId, RoundKey
from peer.protocol.wire.frames import USUAL_CHUNK
from peer.transport.calls.group import MAX_WAIT_S, base_of, join_of, join_reply, join_reply_of, join_request
from peer.transport.signing import KeySigner
from peer.transport.wire.group_messages import contribute_open, contribute_reply, contribute_reply_of, opening_of
from peer.transport.wire.pacing import SMALLEST_CHUNK, chunk_size
from peer.v1 import exchange_pb2 as pb
from tests.fuzz.engine import Target
from tests.fuzz.mutate import LITERALS
from tests.fuzz.proto import change_field
from tests.fuzz.wire import OWNER, RUN, _in_a_frame, mend_frame
from tests.support import sparse_parts

KEY = RoundKey(7, 1)
ME = PeerId(OWNER.peer_id)
OTHER = PeerId(OWNER.peer_id[:-1] + "A")
PAIR = tuple(sorted((ME, OTHER)))
BASE = Base(b"d" * 32, PAIR, 3)
ROSTER = Roster(RUN, KEY, ME, BASE, PAIR, (ME,))


def roster() -> Target:
    """Decode the bytes that a leader signs."""

    def run(raw: bytes) -> None:
        got = parse_roster(raw)
        assert got.to_bytes() == raw
        assert 0 < len(got.owners) <= len(got.members) <= MAX_MEMBERS
        assert 0 <= got.key.round < MAX_ROUND
        assert len(got.name()) == len(got.base.mark()) == 32

    corpus = (ROSTER.to_bytes(), Roster(RUN, KEY, OTHER, Base(b"0" * 32), (ME,), (ME,)).to_bytes())
    tokens = (*LITERALS, b'"since":-1', b'"electors":[]', ME.encode())
    return Target(name="roster", run=run, corpus=corpus, refuses=(BadPayload,), tokens=tokens, limit=20_000)


def join_asked() -> Target:
    def run(raw: bytes) -> None:
        join = join_of(pb.JoinRoundRequest.FromString(raw))
        assert 0 <= join.wait_s <= MAX_WAIT_S
        assert len(join.base.electors) <= MAX_MEMBERS
        assert len(join.base.mark()) == 32

    joins = (Join(KEY, BASE, True, 2.0), Join(KEY, Base(b"0" * 32), False))
    corpus = tuple(join_request(join).SerializeToString() for join in joins)
    refuses = (DecodeError, BadPayload)
    return Target(name="join-asked", run=run, corpus=corpus, refuses=refuses, special=change_field, limit=8192)


def join_answer() -> Target:
    """Decode the reply to a join, and its roster."""
    seal = KeySigner(OWNER)

    def run(raw: bytes) -> None:
        reply = join_reply_of(pb.JoinRoundReply.FromString(raw))
        assert (reply.roster is not None) == (reply.status is JoinStatus.ROSTER)
        if reply.roster is not None:
            got = parse_roster(reply.roster.raw)
            seal.verify(got.leader, reply.roster.raw, reply.roster.signature)

    signed = SignedRoster(ROSTER.to_bytes(), seal.sign(ROSTER.to_bytes()))
    replies = (
        JoinReply(JoinStatus.ROSTER, signed),
        JoinReply(JoinStatus.WAIT, collecting=True),
        JoinReply(JoinStatus.NONE, reason="no"),
    )
    corpus = tuple(join_reply(reply).SerializeToString() for reply in replies)
    refuses = (DecodeError, BadPayload)
    return Target(name="join-answer", run=run, corpus=corpus, refuses=refuses, special=change_field, limit=20_000)


def contribution() -> Target:
    """Decode the first frame of a contribution."""

    def run(raw: bytes) -> None:
        opening, max_rate = opening_of(raw)
        assert SMALLEST_CHUNK <= chunk_size(max_rate or None) <= USUAL_CHUNK
        assert len(opening.roster) == 32
        assert opening.nbytes == 0 or 0 < opening.tokens < MAX_TOKENS
        assert opening.have == 0 or opening.transfer
        assert len(opening.signature) in (0, 64)

    openings = (
        ContributionHeader(KEY, b"r" * 32, 2, 4096, 1000),
        ContributionHeader(KEY, b"r" * 32, 0, 0, 0),
        ContributionHeader(KEY, b"r" * 32, 2, 4096, 1000, transfer=2**62 + 1, have=300, signature=b"s" * 64),
    )
    corpus = tuple(contribute_open(opening, rate) for opening in openings for rate in (0.0, 125_000.0))
    return Target(
        name="contribution", run=run, corpus=corpus, refuses=(BadPayload,), mend=mend_frame, special=_in_a_frame
    )


def owners_answer() -> Target:
    """Decode a frame of a shard's owner."""

    def run(raw: bytes) -> None:
        reply = contribute_reply_of(raw)
        assert reply.step in ("send", "wait", "result")
        assert SMALLEST_CHUNK <= chunk_size(reply.max_rate or None) <= USUAL_CHUNK
        named = check_named(reply.named, 16)
        assert len(named) <= 16

    corpus = (
        contribute_reply("send", max_rate=1e6),
        contribute_reply("send", transfer=2**62 + 1, have=300),
        contribute_reply("wait"),
        contribute_reply("result", ShardResult(b"x" * 4096, (0, 2, 7), b"s" * 64)),
    )
    refuses = (BadPayload, ValueError)
    return Target(name="owners-answer", run=run, corpus=corpus, refuses=refuses, mend=mend_frame, special=_in_a_frame)


def sparse_result() -> Target:
    """Decode the contributors and a result that relays or joins their parts. Signatures are not checked."""
    elements, result = 20_000, SparseResult(EVERY["topk"])

    def made(count: int) -> bytes:
        return bytes([count]) + bytes(
            result.make([(sparse_parts.contribution(n, elements), 1.0) for n in range(count)], zeros())
        )

    def zeros() -> torch.Tensor:
        return torch.zeros(elements)

    def run(raw: bytes) -> None:
        parts, into = raw[0] if raw else 0, zeros()
        sink = result.sink(len(raw[1:]), elements, parts)
        sink.write(0, raw[1:])
        result.read(sink.data, parts, into, lambda number, part: len(part.signature) == 64)
        assert bool(into.isfinite().all())

    corpus = tuple(made(count) for count in (1, 2, 12))
    return Target(name="sparse-result", run=run, corpus=corpus, refuses=(BadPayload,), limit=20_000)


def held() -> Target:
    """Decode the base that a donor holds."""

    def run(raw: bytes) -> None:
        base = base_of(pb.HeldReply.FromString(raw).base)
        assert len(base.digest) == 32
        assert (base.since < 0) == (not base.electors)

    corpus = tuple(
        pb.HeldReply(base=pb.GroupBase(digest=b.digest, electors=b.electors, since=b.since)).SerializeToString()
        for b in (BASE, Base(b"0" * 32))
    )
    refuses = (DecodeError, BadPayload)
    return Target(name="held", run=run, corpus=corpus, refuses=refuses, special=change_field, limit=8192)


TARGETS = (roster, join_asked, join_answer, contribution, owners_answer, sparse_result, held)
