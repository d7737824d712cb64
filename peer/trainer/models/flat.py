"""The flat vector of a model, seen as its tensors."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from peer.protocol.model.layout import Layout


def views_of(flat: Tensor, layout: Layout) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, view of the flat vector in the tensor's shape), in layout order."""
    at = 0
    for spec in layout.tensors:
        yield spec.name, flat[at : at + spec.elements].view(spec.shape)
        at += spec.elements
    assert at == flat.numel(), (at, flat.numel())


def fragment_views(flat: Tensor, layout: Layout, fragment: int) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, view) of the tensors of one fragment, whose values are `flat`."""
    first, end = layout.fragments[fragment]
    return views_of(flat, Layout.whole(layout.tensors[first:end]))
