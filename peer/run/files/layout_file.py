"""The layout file of a foreign model: names and shapes of its tensors. The operator's machine writes it, so that a
daemon knows the model without the library that builds it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from peer.errors import ManifestError
from peer.protocol.model.layout import TensorSpec

MOST_LAYOUT_BYTES = 2**19
"""Names and shapes must fit into one message line to the trainer."""
MOST_TENSORS = 10**4
LONGEST_NAME = 400
MOST_DIMENSIONS = 8
DTYPES = ("float32", "bfloat16", "float16")
"""Types that a tensor may have in the folder of weights from which the run began."""
FIX = "The operator makes it again: peer manifest new."


def format_layout(tensors: Sequence[TensorSpec]) -> bytes:
    """Encode tensors as JSON, one per line: name, shape, and the type unless it is float32."""
    rows = (
        [tensor.name, list(tensor.shape), tensor.dtype][: 2 if tensor.dtype == DTYPES[0] else 3] for tensor in tensors
    )
    lines = ",\n".join(map(json.dumps, rows))
    return f"[\n{lines}\n]\n".encode()


def parse_layout(raw: bytes, parameters: int) -> list[TensorSpec]:
    """Parse the tensors, in the model's own order. They must have `parameters` elements together. Raises
    ManifestError."""
    if len(raw) > MOST_LAYOUT_BYTES:
        raise ManifestError(f"the layout has more than {MOST_LAYOUT_BYTES:,} bytes", FIX)
    try:
        rows = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"the layout is not JSON: {str(error)[:200]}", FIX) from error
    if not isinstance(rows, list) or not 1 <= len(rows) <= MOST_TENSORS:
        raise ManifestError(f"the layout is no list of 1 to {MOST_TENSORS:,} tensors", FIX)
    tensors = [_tensor(number, row, parameters) for number, row in enumerate(rows)]
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise ManifestError("the layout names a tensor twice", FIX)
    if (elements := sum(tensor.elements for tensor in tensors)) != parameters:
        raise ManifestError(
            f"the layout holds {elements:,} elements, but model.parameters is {parameters:,}",
            FIX,
        )
    return tensors


def _tensor(number: int, row: Any, parameters: int) -> TensorSpec:
    match row:
        case [str(name), list(shape)] if 0 < len(name) <= LONGEST_NAME and name.isprintable():
            tensor = TensorSpec(name, tuple(shape))
        case [str(name), list(shape), str(dtype)] if (
            0 < len(name) <= LONGEST_NAME and name.isprintable() and dtype in DTYPES
        ):
            tensor = TensorSpec(name, tuple(shape), dtype)
        case _:
            raise ManifestError(
                f"entry {number} of the layout is not [name, [shape...]] or [name, [shape...], type]", FIX
            )
    sizes_fit = all(type(size) is int and 1 <= size <= parameters for size in shape)
    if len(shape) > MOST_DIMENSIONS or not sizes_fit or tensor.elements > parameters:
        raise ManifestError(
            f"tensor {name} of the layout has a shape that {parameters:,} parameters cannot have: {str(shape)[:99]}",
            FIX,
        )
    return tensor
