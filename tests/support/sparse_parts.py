"""Makes signed contributions with the `topk` codec, as group members make them."""

from __future__ import annotations

from functools import cache

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from peer.codec.registry import EVERY
from peer.exchange.group.contribution import Contribution, statement_of
from peer.exchange.group.sparse_result import Genuine
from peer.identity import Identity
from peer.protocol.messages import PeerId
from peer.protocol.wire.payload import BytesSource
from peer.transport.signing import KeySigner

TOPK = EVERY["topk"]
ROSTER, SHARD = b"r" * 32, 3


@cache
def member(number: int) -> Identity:
    """Return the key of a member, the same in each test run."""
    return Identity(Ed25519PrivateKey.from_private_bytes(bytes([number + 1]) * 32))


def gradient(number: int, elements: int) -> Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(number)) * 0.01


def contribution(number: int, elements: int, tokens: int = 0) -> Contribution:
    """Return the signed contribution of a member."""
    payload = BytesSource(TOPK.encode(gradient(number, elements)))
    part = Contribution(tokens or 100 + 20 * (number % 3), payload)
    signature = KeySigner(member(number)).sign(statement_of(part, ROSTER, SHARD, TOPK, elements))
    return Contribution(part.tokens, payload, signature)


def signed_by(elements: int) -> Genuine:
    """Return the signature check for contributions."""
    verify = KeySigner(member(0)).verify

    def genuine(number: int, part: Contribution) -> bool:
        said = statement_of(part, ROSTER, SHARD, TOPK, elements)
        return verify(PeerId(member(number).peer_id), said, part.signature)

    return genuine
