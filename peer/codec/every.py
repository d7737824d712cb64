"""Every codec by its name. A run may name those of `peer.codec.plain.CODECS` for its params; the others are for
updates, which bear a loss that whole params do not."""

from __future__ import annotations

from peer.codec.blocks import E3M0, INT4, INT8
from peer.codec.plain import CODECS, FP16, Codec
from peer.codec.topk import TOPK

EVERY: dict[str, Codec] = CODECS | {codec.name: codec for codec in (FP16, INT8, INT4, E3M0, TOPK)}
