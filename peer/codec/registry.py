"""The codecs by name, as this machine runs them. A run may name those of CODECS for its params. The rest is for
updates, which tolerate a loss that full params do not."""

from __future__ import annotations

from peer.codec.blocks import E3M0, INT4, INT8
from peer.codec.kernels import fastest
from peer.codec.plain import BF16, FP16, FP32, Codec
from peer.codec.topk import TOPK

CODECS: dict[str, Codec] = {codec.name: fastest(codec) for codec in (FP32, BF16)}
"""Codecs that are good enough for full params."""
EVERY: dict[str, Codec] = CODECS | {codec.name: fastest(codec) for codec in (FP16, INT8, INT4, E3M0, TOPK)}
REFERENCE: dict[str, Codec] = {codec.name: codec for codec in (FP32, BF16, FP16, INT8, INT4, E3M0, TOPK)}
"""Codecs in torch: all implementations have to equal them."""
