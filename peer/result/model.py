"""A run's model: a state with the manifest and files that are needed to use it. Also computes the mean of several
states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch

from peer.errors import SourceError
from peer.joining.artifacts import RunFiles
from peer.protocol.messages import RunId
from peer.protocol.model.layout import Layout
from peer.run.admission.invitation import Invitation
from peer.run.manifest import Manifest, SignedManifest
from peer.run.model_layout import layout_for
from peer.run.resolve import resolve
from peer.trainer.models.flat import views_of


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestRequest:
    """How a command fetches a model from a run's peers, without taking part."""

    donors: int | None = None
    """Most peers whose states are averaged. None: the default, which is a few peers in a run in pairs."""
    wait_s: float = 120.0
    """Give up after this many seconds without an answer."""
    key: Path | None = None
    """Key file with which the guest authenticates. None: a new temporary key."""
    invitation: Invitation | None = None
    """The operator's invitation of `key`. None: the run needs no invitation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRequest:
    """A command's request for the model of a run, and for the run's files that it needs."""

    scratch: Path
    """A temporary folder that exists longer than the models."""
    home: Path | None = None
    """Another home whose artifacts may be used."""
    manifest: Path | None = None
    """The operator's manifest file, with the artifacts beside it."""
    run: str = ""
    """Beginning of the run's id, for a home with several runs."""
    guest: GuestRequest = GuestRequest()
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Device on which donors' states are evaluated."""
    tokenizer: Literal["none", "copy", "open"] = "none"
    """Whether the run's tokenizer is needed. `copy`: only its file, so the tokenizers library is not needed."""
    holdout: bool = False
    """Whether the run's hold-out is wanted. A missing hold-out is not an error."""
    computes: str = ""
    """Name of the command that computes with the model, for the error that refuses custom models. Empty: only the
    tensors are needed."""


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """The files of a run that are needed to use its model."""

    run: RunFiles
    holdout: Path | None = None
    """The first hold-out shard. None: the run has none, or it is missing for `missing_holdout_reason`."""
    missing_holdout_reason: str = ""


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run's manifest, its files on this machine, and the layout of its tensors."""

    signed: SignedManifest
    layout: Layout
    files: ResultFiles

    @classmethod
    def of(cls, signed: SignedManifest, files: ResultFiles) -> OpenedRun:
        """Derive the layout as the run's peers do, and return the opened run."""
        manifest = signed.manifest
        return cls(signed, layout_for(manifest.model, resolve(manifest.sync), files.run.tensors), files)

    @property
    def manifest(self) -> Manifest:
        return self.signed.manifest

    @property
    def run_id(self) -> RunId:
        return self.signed.run_id

    @property
    def end_mask(self) -> int | None:
        """The token that ends a document, if attention is masked between documents. None: it is not."""
        return self.manifest.tokenizer.end_token if self.manifest.data.document_mask else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunModel:
    """One state of a run, complete and checked."""

    run: OpenedRun
    params: torch.Tensor
    """`outer_params`: flat, fp32, in the order of the run's layout."""
    round: int
    origin: str
    """Source of the state, for a person."""
    tokens: int | None = None
    """Tokens that the state was trained on, at least. None: not known."""
    donors: tuple[str, ...] = ()
    """Peer ids of the peers that the state comes from, as far as known."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Peers whose state was fetched but not used, with the reason for a person."""


def stored_tensors(model: RunModel, dtype: str | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor of each parameter for an export.

    `dtype`: data type of all parameters; None: each parameter's type in the folder that the run began from, or fp32.
    fp32 tensors are views of the model's memory."""
    layout = model.run.layout
    for spec, (name, view) in zip(layout.tensors, views_of(model.params, layout), strict=True):
        yield name, view.to(getattr(torch, dtype or spec.dtype))


def check_finite(params: torch.Tensor, where: str) -> None:
    """Raise SourceError for a state with NaN or infinity. `where`: its source, for the error."""
    if not bool(torch.isfinite(params).all()):
        raise SourceError(f"the state of {where} holds NaN or infinity", "Name an earlier checkpoint, or another peer.")


def check_same_run(models: Sequence[RunModel]) -> None:
    """Raise SourceError if the models are of different runs."""
    runs = {model.run.run_id.hex()[:16]: model for model in models}
    if len(runs) > 1:
        listed = "; ".join(f"{model.origin} is of {run}" for run, model in runs.items())
        raise SourceError(f"the sources are of different runs: {listed}", "Average sources of one run only.")


def add_state(total: RunModel, model: RunModel) -> RunModel:
    """Add a state to a running sum, in place. Returns the sum with merged metadata."""
    check_same_run([total, model])
    total.params.add_(model.params)
    known = [tokens for tokens in (total.tokens, model.tokens) if tokens is not None]
    return replace(
        total,
        round=min(total.round, model.round),
        origin=f"{total.origin}, {model.origin}",
        tokens=max(known, default=None),
        donors=tuple(dict.fromkeys((*total.donors, *model.donors))),
        left_out={**total.left_out, **model.left_out},
    )


def average_sum(total: RunModel, count: int) -> RunModel:
    """Divide a sum of `count` states by `count`, in place, and return the mean."""
    assert count >= 1, count
    if count == 1:
        return total
    total.params.div_(count)
    return replace(total, origin=f"the mean of {count} states: {total.origin}")
