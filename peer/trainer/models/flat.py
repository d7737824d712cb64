"""Maps between a model's flat vector and its named tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from peer.protocol.model.layout import Layout


def views_of(flat: Tensor, layout: Layout) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, view of `flat` in the tensor's shape) for all tensors, in layout order."""
    at = 0
    for spec in layout.tensors:
        yield spec.name, flat[at : at + spec.elements].view(spec.shape)
        at += spec.elements
    assert at == flat.numel(), (at, flat.numel())


def fragment_views(flat: Tensor, layout: Layout, fragment: int) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, view of `flat` in the tensor's shape) for a fragment's tensors. `flat`: the fragment alone."""
    first, end = layout.fragments[fragment]
    return views_of(flat, Layout.whole(layout.tensors[first:end]))


def replace_parameters(model: nn.Module, given: Mapping[str, nn.Parameter]) -> None:
    """Replace all parameters of a model, by the names of `named_parameters`. Tied parameters stay tied."""
    by_id = {id(parameter): given[name] for name, parameter in model.named_parameters()}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            module.register_parameter(name, by_id[id(parameter)])
