"""What the operator's node gives to joiners: parameters made from the manifest's seed, those that the manifest names by
their digest, or a checkpoint that the operator wants everybody to go on from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from peer.errors import StateError
from peer.join.reset import digest_of
from peer.outer.state import OuterState
from peer.protocol.model.layout import Layout
from peer.run.manifest import Manifest
from peer.run.sections import LlamaSection
from peer.state.checkpoint import Checkpoint, CheckpointError
from peer.trainer.models.factory import layout_of
from peer.trainer.models.flat import views_of
from peer.trainer.models.llama import first_params


def first_state(manifest: Manifest, layout: Layout, folder: Path | None, say: Callable[[str], None]) -> OuterState:
    """`folder`: a checkpoint of a peer, if one was given. Raises StateError when it is not what the run needs."""
    if folder is None:
        if manifest.init:
            raise StateError(
                f"run {manifest.name!r} begins from the state {manifest.init[:16]}…, which this node does not have",
                "Give the checkpoint folder that holds it with --state.",
            )
        assert isinstance(manifest.model, LlamaSection), manifest.model.kind
        return OuterState.fresh(layout, first_params(manifest.model, manifest.seed, layout))
    params = load_params(folder, layout.elements)
    if manifest.init:
        return OuterState.fresh(layout, _named_by(manifest, params, layout, folder))
    digest = digest_of(params).hex()
    say(f"serving the state in {folder}; to make everybody go on from it:  peer manifest amend … refound {digest}")
    return OuterState.fresh(layout, params)


def load_params(folder: Path, elements: int | None) -> torch.Tensor:
    """`outer_params` of a checkpoint, flat fp32 in its own run's order. `elements`: how many there have to be, if that
    is known. Raises StateError."""
    advice = "Give --state a checkpoint folder of a peer of this run."
    try:
        params, _ = Checkpoint(folder, {}, 0).load()
    except CheckpointError as error:
        raise StateError(str(error), advice) from error
    if elements is not None and params.numel() != elements:
        found = f"the state in {folder} has {params.numel():,} parameters, the run's model {elements:,}"
        raise StateError(found, advice)
    return params.to(torch.float32)


def _named_by(manifest: Manifest, params: torch.Tensor, layout: Layout, folder: Path) -> torch.Tensor:
    """The manifest's first state, in the order of the run's layout."""
    if (found := digest_of(params).hex()) != manifest.init:
        raise StateError(
            f"the state in {folder} is {found[:16]}…, the run begins from {manifest.init[:16]}…",
            "Give --state the checkpoint whose digest the manifest names (of a run with a full schedule).",
        )
    return rearranged(params, layout_of(manifest.model), layout)


def rearranged(params: torch.Tensor, now: Layout, wanted: Layout) -> torch.Tensor:
    """The same tensors in another order; flat fp32, copied."""
    flat = torch.empty_like(params)
    given = dict(views_of(params, now))
    for name, view in views_of(flat, wanted):
        view.copy_(given[name])
    return flat
