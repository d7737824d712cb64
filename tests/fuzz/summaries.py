"""Fuzz targets: summaries that peers send to a node of the run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import DecodeError

from peer.identity import Identity
from peer.observe.status.codec import to_json
from peer.protocol.messages import PeerId
from peer.signed_summary import DOMAIN, InvalidSummary, unseal_summary
from peer.transport.signing import holds
from peer.v1 import exchange_pb2 as pb
from tests.fuzz.engine import Target
from tests.fuzz.proto import change_field
from tests.fuzz.wire import OWNER
from tests.support.signed_receipts import RUN, Signing
from tests.support.summaries import SetClock, shown, signed_summary, view_at

ME, PARTNER = Signing(OWNER), Signing(Identity(Ed25519PrivateKey.from_private_bytes(b"p" * 32)))


def _sign_again(raw: bytes) -> bytes:
    """Return a summary with a valid signature over its body. Bytes that are no SignedSummary are used as the body."""
    try:
        body = pb.SignedSummary.FromString(raw).body or raw
    except DecodeError:
        body = raw
    return _signed(body)


def _signed(body: bytes) -> bytes:
    summary = pb.SignedSummary(public_key=OWNER.public_key, body=body, signature=OWNER.sign(DOMAIN, body))
    raw: bytes = summary.SerializeToString()
    return raw


def _change_body(rng: Random, data: bytearray, corpus: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    try:
        body = bytearray(pb.SignedSummary.FromString(bytes(data)).body)
    except DecodeError:
        return
    change_field(rng, body, corpus, tokens)
    data[:] = _signed(bytes(body))


def summary() -> Target:
    """Decode a summary and add it to the view."""

    def run(raw: bytes) -> None:
        said = unseal_summary(raw, RUN)
        assert said.peer_id == ME.id
        forged = any(not holds(one.statement.signer, one.statement.to_bytes(), one.signature) for one in said.receipts)
        view = view_at(SetClock(said.issued_at))
        assert view.on_summary(PeerId(ME.id), "home", raw) == ("forged" if forged else "")
        view.tick()
        json.dumps(to_json(view.report()), allow_nan=False)

    full = signed_summary(ME, receipts=(shown(PARTNER, ME, 1), shown(PARTNER, ME, 2)))
    corpus = (full, signed_summary(ME, loss=None, device=""))
    refuses = (InvalidSummary,)
    return Target(name="summary", run=run, corpus=corpus, refuses=refuses, mend=_sign_again, special=_change_body)


TARGETS = (summary,)
