"""The cut of a model into fragments. The tensors are put into the order of their fragments. So each fragment is one
contiguous span of the flat vector, whatever the pattern. The cut is a pure function of names, shapes and choices: every
machine makes the same one."""

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
    """Return the block that a tensor belongs to by its name: the first number between two dots,
    `model.layers.3.mlp.up_proj.weight` to 3. None for tensors outside the blocks: embedding, last norm, head."""
    found = _NUMBER.search(name)
    return int(found[1]) if found else None


def is_block_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is a matrix inside a block, by its name and shape. Stacks of matrices are none."""
    return len(shape) == 2 and block_of(name) is not None


def tensor_spans(layout: Layout, fragment: int) -> tuple[Span, ...]:
    """Return where the tensors lie in a fragment, in elements of it."""
    tensors = layout.tensors[slice(*layout.fragments[fragment])]
    return tuple(pairwise(accumulate((tensor.elements for tensor in tensors), initial=0)))


def block_spans(layout: Layout, fragment: int) -> tuple[Span, ...]:
    """Return where the tensors of the blocks lie in a fragment, as `tensor_spans`. Embedding, last norm and head are
    none."""
    tensors = layout.tensors[slice(*layout.fragments[fragment])]
    spans = zip(tensors, tensor_spans(layout, fragment), strict=True)
    return tuple(span for tensor, span in spans if block_of(tensor.name) is not None)


def cut(tensors: Sequence[TensorSpec], *, fragments: int, pattern: str, apart: bool = False) -> Layout:
    """Cut a model into fragments. Return the tensors in the order of their fragments, and the fragments.

    `whole` is one fragment in the order of `tensors`. With n blocks and P fragments, block b of the ascending ones goes
    to fragment b * P // n (`sequential`) or b mod P (`strided`). Tensors outside the blocks go to fragment 0.
    `balanced` looks at tensors only: the largest first, each into the fragment with the fewest elements. So no fragment
    is larger than mean + largest tensor. `apart`: tensors outside the blocks are the last fragment, and the pattern
    cuts the blocks. The tensors of a fragment keep their order.

    `cut_problem` must have found nothing: asserted."""
    assert not (reason := cut_problem(tensors, fragments=fragments, pattern=pattern, apart=apart)), reason
    inside = [tensor for tensor in tensors if not apart or block_of(tensor.name) is not None]
    place = _PLACES[pattern](inside, fragments - apart)
    home = {tensor.name: fragments - 1 for tensor in tensors} | place
    ordered = sorted(tensors, key=lambda tensor: home[tensor.name])  # stable
    counts = Counter(home.values())
    ends = accumulate((counts[fragment] for fragment in range(fragments)), initial=0)
    return Layout(tuple(ordered), tuple(pairwise(ends)))


def cut_problem(tensors: Sequence[TensorSpec], *, fragments: int, pattern: str, apart: bool = False) -> str:
    """Return why a model cannot be cut like this, as a sentence. Empty: it can."""
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
    """Map each tensor to its fragment. `of` maps a block's rank and the number of blocks to its fragment."""
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
    """Greedy. Among equals the earlier tensor and the lower fragment come first: the same on every machine."""
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
