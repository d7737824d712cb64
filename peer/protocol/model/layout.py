"""The layout of a model: its tensors, their order, and how they are cut into fragments. Peers compare its digest at
Hello. Two peers that disagree on a shape, on the order or on the cut never exchange parameters."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from peer.protocol.messages import PIECE_BYTES

PIECES_OF_STATE = 128
"""A state is cut into about so many pieces, or more once they reach `PIECE_BYTES`."""
SMALLEST_PIECE = 2**18
"""Bytes."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor as it lies in the flat fp32 vector of the model."""

    name: str
    shape: tuple[int, ...]
    dtype: str = field(default="float32", compare=False)
    """Type in the folder that the run began from, which an export writes. Everywhere else the tensor is fp32."""

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
        """Return a layout of one fragment that holds everything (schedule `full`)."""
        return cls(tuple(tensors), ((0, len(tensors)),))

    def arranged(self, names: Sequence[str], fragments: Sequence[tuple[int, int]]) -> Layout:
        """Return the same tensors in another order, with other fragments. `names` has each of theirs once: asserted."""
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
        """(start, end) of a fragment in elements of the flat vector."""
        first, _ = self.fragments[fragment]
        start = sum(t.elements for t in self.tensors[:first])
        return start, start + self.fragment_elements(fragment)

    def digest(self) -> bytes:
        """SHA-256 over names in order, shapes, dtype and the fragment cut, 32 bytes."""
        body = {
            "dtype": "float32",
            "tensors": [[t.name, list(t.shape)] for t in self.tensors],
            "fragments": [list(f) for f in self.fragments],
        }
        return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).digest()

    def pieces(self) -> list[tuple[int, int, int]]:
        """(first tensor, count, bytes) of each piece of the flat vector in fp32, in order. A piece holds complete
        tensors up to `piece_limit`. A larger tensor is cut into parts of that size."""
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
        """Return the bytes of the largest piece, a multiple of an fp32 value. A joiner that dies loses a small part of
        the state in flight, and asking for a piece costs next to nothing."""
        part = 4 * self.elements // PIECES_OF_STATE // 4 * 4
        return min(max(part, SMALLEST_PIECE), PIECE_BYTES)
