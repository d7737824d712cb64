"""The codecs of each kind of payload, and their sizes. They are here and not with the codecs, so that checking a
manifest and its cost loads no torch. The codecs' own `nbytes` give the same sizes, which a test compares."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """The form of a codec's payload: `code_bits` an element, the sum in full bytes, and `chunk_bytes` for each `chunk`
    of elements that has begun."""

    code_bits: int
    chunk: int = 1
    chunk_bytes: int = 0

    def nbytes(self, elements: int) -> int:
        """Exact."""
        return -(-elements * self.code_bits // 8) + self.chunk_bytes * -(-elements // self.chunk)

    @property
    def bits(self) -> float:
        """Bits of an element, in the long run."""
        return self.code_bits + 8 * self.chunk_bytes / self.chunk


FORMS = {
    "fp32": CodecSpec(32),
    "bf16": CodecSpec(16),
    "fp16": CodecSpec(16),
    "int8": CodecSpec(8, chunk=128, chunk_bytes=4),
    "int4": CodecSpec(4, chunk=128, chunk_bytes=4),
    "e3m0": CodecSpec(4, chunk=128, chunk_bytes=4),
    "topk": CodecSpec(0, chunk=4096, chunk_bytes=120),
    "modulo7": CodecSpec(7, chunk=128, chunk_bytes=4),
    "modulo6": CodecSpec(6, chunk=128, chunk_bytes=4),
}

KINDS = {
    "params": ("fp32", "bf16", "fp16", "modulo7", "modulo6"),
    "pseudo_gradient": ("fp32", "bf16", "fp16", "int8", "int4", "e3m0", "topk"),
    "result": ("fp32", "bf16", "fp16", "int8", "sparse"),
}
"""The codecs for each kind of payload. Full parameters (pairs) need their full range, or a receiver whose own are near
(modulo). A modulo receiver whose own are not near asks for more, which its form does not count. Updates (groups)
tolerate more loss. The result that every member of a group applies is coded a second time, so it is coded more finely
than its parts. `sparse` is for parts in `topk` alone."""

WHY = {
    "params": "in pairs the parameters themselves cross the wire, whose small differences a few bits would round away",
    "pseudo_gradient": "it is read against the receiver's own params, which updates are not near to",
    "result": "every member applies the result, which is rounded a second time: so not to a few bits",
}
"""Why a codec is not there."""

RESULT_OF = {"fp32": "fp32", "bf16": "bf16", "int4": "int8"}
"""The result's codec by that of the contributions, where the manifest names none. Otherwise it is `fp16`. That is eight
times finer than bf16, and a mean of updates is far from the end of its range. The rounding to int8 is a twelfth of the
noise that int4 leaves in the mean of four."""


def result_codec_for(codec: str) -> str:
    return RESULT_OF.get(codec, "fp16")


SPARSE = "sparse"
"""The result of contributions in `topk`. It has one of two forms. *Relayed*: the contributors' own payloads, each
behind a head of `PART_HEAD` bytes. *Joined*: one bit for each element, and int8 for those that some contributor sent.

The form is the one that is smaller if the contributors choose their elements independently of each other. Owner and
members find it from the numbers of elements and of contributors, so that it is no choice of the owner. Where the
contributors choose alike, the joined form is smaller still."""
PART_HEAD = 76
"""Bytes: tokens, factor and signature of a contributor."""
KEPT = 64
"""A `topk` payload has values for so many elements of a chunk."""


def joined_nbytes(elements: int, present: int) -> int:
    """Return the bytes of the joined form with values for so many elements."""
    return -(-elements // 8) + FORMS["int8"].nbytes(present)


def relayed_nbytes(elements: int, parts: int) -> int:
    return parts * (PART_HEAD + FORMS["topk"].nbytes(elements))


def is_relayed(elements: int, parts: int) -> bool:
    """Whether a sparse result of so many parts is relayed, not joined."""
    return relayed_nbytes(elements, parts) <= _independently_joined(elements, parts)


def result_nbytes(codec: str, elements: int, parts: int) -> int:
    """Return the bytes of a group's result of so many parts: exact, but for a joined one."""
    if codec != SPARSE:
        return FORMS[codec].nbytes(elements)
    return min(relayed_nbytes(elements, parts), _independently_joined(elements, parts))


def largest_result(codec: str, elements: int, parts: int) -> int:
    """Return the bytes of the largest result that so many parts can have."""
    if codec != SPARSE or is_relayed(elements, parts):
        return result_nbytes(codec, elements, parts)
    return joined_nbytes(elements, min(elements, parts * KEPT * -(-elements // FORMS["topk"].chunk)))


def _independently_joined(elements: int, parts: int) -> int:
    """An element is in no part with probability (1 - KEPT / chunk)**parts. Integers: the same on every machine."""
    chunk = FORMS["topk"].chunk
    absent = elements * (chunk - KEPT) ** parts // chunk**parts
    return joined_nbytes(elements, elements - absent)
