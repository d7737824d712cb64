"""The codecs that each kind of payload may use, and the sizes of their payloads.

They are separate from the codecs in `peer.codec`, so that checking a manifest does not import torch. A test compares
the sizes with the codecs' own `nbytes`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """The size of a codec's payload.

    Each element takes `code_bits`; the sum is rounded up to bytes. In addition, each chunk of `chunk` elements takes
    `chunk_bytes`; the last chunk may be incomplete."""

    code_bits: int
    chunk: int = 1
    chunk_bytes: int = 0

    def nbytes(self, elements: int) -> int:
        """Return the exact bytes of the payload of this number of elements."""
        return -(-elements * self.code_bits // 8) + self.chunk_bytes * -(-elements // self.chunk)

    @property
    def bits(self) -> float:
        """Bits per element of a long payload."""
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
"""Kind of payload -> its codecs.

Params (in pairs) need their full range, or for the modulo codecs a receiver whose own values are near. A receiver with
other values requests more bits, which `CodecSpec` does not count. Pseudo-gradients (in groups) tolerate more loss. A
group's result is encoded a second time, so it is encoded more finely than the contributions. `sparse` is only for
contributions in `topk`."""

WHY = {
    "params": "in pairs the parameters themselves cross the wire, whose small differences a few bits would round away",
    "pseudo_gradient": "it is read against the receiver's own params, which updates are not near to",
    "result": "every member applies the result, which is rounded a second time: so not to a few bits",
}
"""Kind of payload -> why it may not use the other codecs, for a person."""

RESULT_OF = {"fp32": "fp32", "bf16": "bf16", "int4": "int8"}
"""Codec of the contributions -> default codec of the result. For all others it is `fp16`, which is eight times finer
than bf16 and has enough range for a mean of updates. The rounding error of int8 is a twelfth of the noise that int4
leaves in the mean of four contributions."""


def result_codec_for(codec: str) -> str:
    """Return the default codec of a group's result for contributions in this codec."""
    return RESULT_OF.get(codec, "fp16")


SPARSE = "sparse"
"""Codec of the result of contributions in `topk`. It has two forms. *Relayed*: the contributors' own payloads, each
preceded by a head of `PART_HEAD` bytes. *Joined*: one bit per element, and int8 values of the elements that at least
one contributor sent.

The form is the one that would be smaller if contributors chose their elements independently of each other. Owner and
members both compute it from the numbers of elements and of contributors, so that the owner has no choice. If
contributors choose similar elements, the joined form is even smaller."""
PART_HEAD = 76
"""Bytes of tokens, factor and signature of a contributor."""
KEPT = 64
"""Number of elements per chunk for which a `topk` payload has values."""


def joined_nbytes(elements: int, present: int) -> int:
    """Return the bytes of the joined form of `elements`, of which `present` have values."""
    return -(-elements // 8) + FORMS["int8"].nbytes(present)


def relayed_nbytes(elements: int, parts: int) -> int:
    """Return the bytes of the relayed form with this number of contributions."""
    return parts * (PART_HEAD + FORMS["topk"].nbytes(elements))


def is_relayed(elements: int, parts: int) -> bool:
    """Return whether a sparse result of `parts` contributions has the relayed form."""
    return relayed_nbytes(elements, parts) <= _independently_joined(elements, parts)


def result_nbytes(codec: str, elements: int, parts: int) -> int:
    """Return the bytes of a group's result of `parts` contributions. For the joined form this is an estimate."""
    if codec != SPARSE:
        return FORMS[codec].nbytes(elements)
    return min(relayed_nbytes(elements, parts), _independently_joined(elements, parts))


def largest_result(codec: str, elements: int, parts: int) -> int:
    """Return the most bytes that a group's result of `parts` contributions can have."""
    if codec != SPARSE or is_relayed(elements, parts):
        return result_nbytes(codec, elements, parts)
    return joined_nbytes(elements, min(elements, parts * KEPT * -(-elements // FORMS["topk"].chunk)))


def _independently_joined(elements: int, parts: int) -> int:
    """Return the expected bytes of the joined form if contributors choose their elements independently.

    An element is in no contribution with probability (1 - KEPT / chunk)**parts. Computed with integers, so that the
    result is the same on every machine."""
    chunk = FORMS["topk"].chunk
    absent = elements * (chunk - KEPT) ** parts // chunk**parts
    return joined_nbytes(elements, elements - absent)
