"""Division of a model into fragments. The tensors are sorted by fragment, so that each fragment is one contiguous span
of the flat vector, whatever the pattern. The result depends only on names, shapes and options: it is the same on every
machine."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from peer.protocol.model.layout import Layout, TensorSpec

PATTERNS = ("whole", "sequential", "strided", "balanced")
MOST_FRAGMENTS = 1024
Span = tuple[int, int]
"""A half-open range of elements."""
_NUMBER = re.compile(r"\.(\d{1,9})\.")


def block_of(name: str) -> int | None:
    """Return the block of the model that a tensor belongs to: the first number between two dots in its name, such as 3
    in `model.layers.3.mlp.up_proj.weight`. None for tensors outside the blocks: embedding, last norm, head."""
    found = _NUMBER.search(name)
    return int(found[1]) if found else None


def is_block_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor is a matrix inside a block, by name and shape. Stacks of matrices do not count."""
    return len(shape) == 2 and block_of(name) is not None


def tensor_spans(layout: Layout, fragment: int) -> tuple[Span, ...]:
    """Return the span of each tensor of a fragment, in elements relative to the fragment."""
    tensors = layout.tensors[slice(*layout.fragments[fragment])]
    return tuple(pairwise(accumulate((tensor.elements for tensor in tensors), initial=0)))


def block_spans(layout: Layout, fragment: int) -> tuple[Span, ...]:
    """Return the spans of the tensors inside the model's blocks, as `tensor_spans`. Embedding, last norm and head are
    not included."""
    tensors = layout.tensors[slice(*layout.fragments[fragment])]
    spans = zip(tensors, tensor_spans(layout, fragment), strict=True)
    return tuple(span for tensor, span in spans if block_of(tensor.name) is not None)


def cut(tensors: Sequence[TensorSpec], *, fragments: int, pattern: str, apart: bool = False) -> Layout:
    """Return a layout that divides the model into fragments. Its tensors are sorted by fragment.

    `whole` is one fragment in the order of `tensors`. With n blocks and P fragments, block b (in ascending order) goes
    to fragment b * P // n (`sequential`) or b mod P (`strided`), and tensors outside the blocks go to fragment 0.
    `balanced` ignores blocks: the largest tensor first, each goes into the fragment with the fewest elements, so that
    no fragment is larger than mean + largest tensor. `apart`: tensors outside the blocks are the last fragment, and the
    pattern divides the blocks. Within a fragment the tensors keep their order.

    Asserts that `cut_problem` returns nothing."""
    assert not (reason := cut_problem(tensors, fragments=fragments, pattern=pattern, apart=apart)), reason
    inside = [tensor for tensor in tensors if not apart or block_of(tensor.name) is not None]
    place = _PLACES[pattern](inside, fragments - apart)
    home = {tensor.name: fragments - 1 for tensor in tensors} | place
    ordered = sorted(tensors, key=lambda tensor: home[tensor.name])  # stable
    counts = Counter(home.values())
    ends = accumulate((counts[fragment] for fragment in range(fragments)), initial=0)
    return Layout(tuple(ordered), tuple(pairwise(ends)))


def cut_problem(tensors: Sequence[TensorSpec], *, fragments: int, pattern: str, apart: bool = False) -> str:
    """Return why a model cannot be divided in this way, as a sentence. Empty: it can."""
    assert pattern in PATTERNS, pattern
    assert 1 <= fragments <= MOST_FRAGMENTS, fragments
    if pattern == "whole":
        return "" if fragments == 1 and not apart else "the pattern whole makes exactly one fragment"
    inside = [tensor for tensor in tensors if block_of(tensor.name) is not None]
    rest = fragments - apart
    if apart and len(inside) == len(tensors):
        return "there is nothing outside the model's blocks to set apart"
    if rest < 1:
        return "one fragment holds everything: with what lies outside the blocks set apart it takes two"
    if pattern == "balanced":
        units, kind = len(inside if apart else tensors), "tensors"
    else:
        units, kind = len(_blocks(inside)), "blocks"
    if rest > units:
        return f"the model has {units} {kind}, which is not enough for {rest} fragments of complete {kind}"
    return ""


def _blocks(tensors: Sequence[TensorSpec]) -> list[int]:
    """Return the numbers of the blocks, ascending."""
    return sorted({block for tensor in tensors if (block := block_of(tensor.name)) is not None})


def _by_block(tensors: Sequence[TensorSpec], of: Callable[[int, int], int]) -> dict[str, int]:
    """Return the fragment of each tensor. `of` maps a block's rank and the number of blocks to its fragment."""
    blocks = _blocks(tensors)
    ranks = {block: rank for rank, block in enumerate(blocks)}
    placed = {}
    for tensor in tensors:
        block = block_of(tensor.name)
        placed[tensor.name] = 0 if block is None else of(ranks[block], len(blocks))
    return placed


def _sequential(tensors: Sequence[TensorSpec], fragments: int) -> dict[str, int]:
    return _by_block(tensors, lambda rank, blocks: rank * fragments // blocks)


def _strided(tensors: Sequence[TensorSpec], fragments: int) -> dict[str, int]:
    return _by_block(tensors, lambda rank, blocks: rank % fragments)


def _balanced(tensors: Sequence[TensorSpec], fragments: int) -> dict[str, int]:
    """Assign greedily. Ties go to the earlier tensor and the lower fragment, so that every machine gets the same
    result."""
    filled = [(0, fragment) for fragment in range(fragments)]
    placed = {}
    for tensor in sorted(tensors, key=lambda tensor: -tensor.elements):
        elements, fragment = filled[0]
        heapq.heapreplace(filled, (elements + tensor.elements, fragment))
        placed[tensor.name] = fragment
    return placed


def _whole(tensors: Sequence[TensorSpec], fragments: int) -> dict[str, int]:
    return {tensor.name: 0 for tensor in tensors}


_PLACES = {"whole": _whole, "sequential": _sequential, "strided": _strided, "balanced": _balanced}
