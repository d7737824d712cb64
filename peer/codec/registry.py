"""The codecs by name, each in the fastest implementation of this machine."""

from __future__ import annotations

from peer.codec.blocks import E3M0, INT4, INT8
from peer.codec.kernels import fastest
from peer.codec.plain import BF16, FP16, FP32, Codec
from peer.codec.topk import TOPK

CODECS: dict[str, Codec] = {codec.name: fastest(codec) for codec in (FP32, BF16)}
"""Codecs precise enough for full params. Manifests may name only these for params."""
EVERY: dict[str, Codec] = CODECS | {codec.name: fastest(codec) for codec in (FP16, INT8, INT4, E3M0, TOPK)}
"""All codecs. Those beyond `CODECS` are for updates, which tolerate a loss that full params do not."""
REFERENCE: dict[str, Codec] = {codec.name: codec for codec in (FP32, BF16, FP16, INT8, INT4, E3M0, TOPK)}
"""The codecs in torch. All other implementations must give the same bytes and floats."""
