"""The evidence of a shard's result: the signed parts that its owner claims to have averaged, and the result. The owner
stores it once a round and shows it on request. With it any member can recompute the mean, bit for bit.

    owner's signature (64) | for each part: tokens (8), its sender's signature (64) | result | parts

The owner signs the evidence together with the digest of its result, so no other peer can attribute different parts to
the owner."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from blake3 import blake3

from peer.codec.plain import TILE, Payload
from peer.codes import Code
from peer.errors import BadPayload
from peer.exchange.group.contribution import Contribution
from peer.exchange.group.mean_terms import MeanTerms
from peer.exchange.group.sparse_result import SparseResult
from peer.protocol.group.receipts import shown_statement
from peer.protocol.group.shards import MAX_TOKENS
from peer.protocol.messages import PIECE_BYTES, SHARD_PREFIX
from peer.protocol.wire.payload import BytesSource
from peer.state.unnamed import unnamed

SIGNATURE_BYTES = 64
HEAD = struct.Struct("<Q64s")
"""Tokens and signature of a part."""


def name_of(roster: bytes, shard: int) -> str:
    """Return the name under which evidence is requested. Only peers that have the roster can know it."""
    return f"{SHARD_PREFIX}{roster.hex()}:{shard}"


@dataclass(frozen=True, slots=True)
class EvidenceForm:
    """The byte layout of the evidence for a result of `parts` parts."""

    terms: MeanTerms
    elements: int
    """Elements of the shard."""
    parts: int

    @property
    def results_at(self) -> int:
        return SIGNATURE_BYTES + self.parts * HEAD.size

    @property
    def parts_at(self) -> int:
        assert not isinstance(self.terms.result_codec, SparseResult), "those relay their parts"
        return self.results_at + self.terms.result_codec.nbytes(self.elements)

    @property
    def nbytes(self) -> int:
        return self.parts_at + self.parts * self.terms.codec.nbytes(self.elements)

    def result(self, shown: memoryview) -> memoryview:
        return shown[self.results_at : self.parts_at]

    def contributions(self, shown: memoryview) -> list[Contribution]:
        """Decode the parts. Raises BadPayload for an impossible number of tokens."""
        size, found = self.terms.codec.nbytes(self.elements), list[Contribution]()
        for number in range(self.parts):
            tokens, signature = HEAD.unpack_from(shown, SIGNATURE_BYTES + number * HEAD.size)
            if not 0 < tokens < MAX_TOKENS:
                raise BadPayload(Code.WEIGHT, f"a part of {tokens} tokens")
            start = self.parts_at + number * size
            found.append(Contribution(tokens, BytesSource(shown[start : start + size]), signature))
        return found


class ShownEvidence:
    """The evidence that an owner shows of one round. `folder`: where it is stored; None: in memory."""

    def __init__(self, terms: MeanTerms, elements: int, parts: Sequence[Contribution], folder: Path | None) -> None:
        """Copy the parts, in a worker thread. Raises OSError if the disk is full."""
        self._form = EvidenceForm(terms, elements, len(parts))
        self._name = ""
        self._left = 0
        self._shown = unnamed(folder, self._form.nbytes)
        at = self._form.parts_at
        for number, part in enumerate(parts):
            signature = part.signature.ljust(SIGNATURE_BYTES, b"\0")
            HEAD.pack_into(self._shown, SIGNATURE_BYTES + number * HEAD.size, part.tokens, signature)
            for start in range(0, part.payload.nbytes, TILE):
                data = part.payload.read(start, min(TILE, part.payload.nbytes - start))
                copy(self._shown[at : at + len(data)], data)
                at += len(data)

    def digest(self, result: Payload) -> bytes:
        """Add the result, in a worker thread. Return the digest of the evidence, which the owner signs."""
        copy(self._form.result(self._shown), result)
        return digest_of(self._shown)

    def open(self, name: str, signature: bytes, askers: int) -> None:
        """Serve the evidence under this name from now on, at most as many bytes in total as `askers` complete copies
        have."""
        self._shown[:SIGNATURE_BYTES] = signature
        self._name, self._left = name, askers * self._form.nbytes

    def on_piece(self, name: str, piece: int) -> memoryview | None:
        """Return the bytes of a piece. None: unknown name or piece, or the allowed bytes are used up."""
        start = piece * PIECE_BYTES
        if name != self._name or not 0 <= start < self._form.nbytes or self._left <= 0:
            return None
        data = self._shown[start : start + PIECE_BYTES].toreadonly()
        self._left -= len(data)
        return data


def copy(into: memoryview, data: Payload) -> None:
    """Copy bytes without holding the interpreter's lock."""
    np.copyto(np.frombuffer(into, np.uint8), np.frombuffer(data, np.uint8))


def digest_of(shown: memoryview) -> bytes:
    """Return the digest of evidence without its signature, in a worker thread."""
    return blake3(shown[SIGNATURE_BYTES:]).digest()


def evidence_statement(shown: memoryview, roster: bytes, shard: int, result: bytes) -> bytes:
    """Return the bytes that the owner signs for this evidence. `result`: digest of the result."""
    return shown_statement(roster, shard, result, digest_of(shown))
