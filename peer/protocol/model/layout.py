"""The layout of a model: its tensors, their order, and their division into fragments. Peers compare its digest at
Hello, so that peers that differ in a shape, the order or the fragments never exchange parameters."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from peer.protocol.messages import PIECE_BYTES

PIECES_OF_STATE = 128
"""Approximate number of pieces of a state. There are more if pieces would exceed `PIECE_BYTES`."""
SMALLEST_PIECE = 2**18
"""Bytes below which `piece_limit` never falls."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor in the flat fp32 vector of the model."""

    name: str
    shape: tuple[int, ...]
    dtype: str = field(default="float32", compare=False)
    """Type in the checkpoint from which the run began, used for export. Everywhere else the tensor is fp32."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """Tensors in order, and fragments as half-open ranges of tensor indices. The fragments cover every tensor once."""

    tensors: tuple[TensorSpec, ...]
    fragments: tuple[tuple[int, int], ...]

    @classmethod
    def whole(cls, tensors: Sequence[TensorSpec]) -> Layout:
        """Return a layout with a single fragment (schedule `full`)."""
        return cls(tuple(tensors), ((0, len(tensors)),))

    def arranged(self, names: Sequence[str], fragments: Sequence[tuple[int, int]]) -> Layout:
        """Return a layout of the same tensors in another order, with other fragments. Asserts that `names` contains
        each tensor once."""
        by_name = {tensor.name: tensor for tensor in self.tensors}
        assert len(names) == len(self.tensors), (len(names), len(self.tensors))
        assert by_name.keys() == set(names), by_name.keys() ^ set(names)
        return Layout(tuple(by_name[name] for name in names), tuple(fragments))

    @property
    def elements(self) -> int:
        return sum(t.elements for t in self.tensors)

    def fragment_elements(self, fragment: int) -> int:
        first, end = self.fragments[fragment]
        return sum(t.elements for t in self.tensors[first:end])

    def fragment_span(self, fragment: int) -> tuple[int, int]:
        """Return (start, end) of a fragment in elements of the flat vector."""
        first, _ = self.fragments[fragment]
        start = sum(t.elements for t in self.tensors[:first])
        return start, start + self.fragment_elements(fragment)

    def digest(self) -> bytes:
        """Return the SHA-256 digest (32 bytes) of names in order, shapes, dtype and fragments."""
        body = {
            "dtype": "float32",
            "tensors": [[t.name, list(t.shape)] for t in self.tensors],
            "fragments": [list(f) for f in self.fragments],
        }
        return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).digest()

    def pieces(self) -> list[tuple[int, int, int]]:
        """Return (first tensor, count, bytes) of each piece of the flat fp32 vector, in order. A piece has whole
        tensors of at most `piece_limit` bytes together. A larger tensor is divided into parts of that size."""
        limit, cut, whole = self.piece_limit(), list[tuple[int, int, int]](), False
        for index, tensor in enumerate(self.tensors):
            nbytes = 4 * tensor.elements
            if whole and cut[-1][2] + nbytes <= limit:
                first, count, before = cut[-1]
                cut[-1] = (first, count + 1, before + nbytes)
            else:
                cut.extend((index, 1, min(limit, nbytes - start)) for start in range(0, nbytes, limit))
                whole = nbytes <= limit
        return cut

    def piece_limit(self) -> int:
        """Return the maximum bytes of a piece, a multiple of 4. Small pieces limit the data in flight that is lost when
        a joiner dies, and requesting a piece costs little."""
        part = 4 * self.elements // PIECES_OF_STATE // 4 * 4
        return min(max(part, SMALLEST_PIECE), PIECE_BYTES)
