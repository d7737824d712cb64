"""A state of a run with everything that using it takes, and the mean of several."""

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
    """What a command asks of the peers of a ticket, and as whom."""

    donors: int | None = None
    """Peers whose states are averaged, at most. None: a few in pairs."""
    wait_s: float = 120.0
    """Seconds without an answer after which a ticket is given up."""
    key: Path | None = None
    """File of the key that is proven to the peers. None: a new key for this once."""
    invitation: Invitation | None = None
    """Of that key, where the run asks for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRequest:
    """What a command asks of its sources."""

    scratch: Path
    """A folder of ours, which outlives the models."""
    home: Path | None = None
    """A further home whose artifacts may be used."""
    manifest: Path | None = None
    """The operator's manifest file, with its artifacts beside it."""
    run: str = ""
    """Beginning of the run's id, for a home with several."""
    guest: GuestRequest = GuestRequest()
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where states of donors are judged."""
    tokenizer: Literal["none", "copy", "open"] = "none"
    """Whether the run's tokenizer is needed. `copy`: its file, without the tokenizers library."""
    holdout: bool = False
    """Whether the run's hold-out is wanted. A run that has none here still gives its model."""
    computes: str = ""
    """The use that makes the model here, for a person. A custom model is refused for it. Empty: its tensors suffice."""


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """The files of a run that using its model takes."""

    run: RunFiles
    holdout: Path | None = None
    """The first hold-out shard. None: the run has no such file, or `why_no_holdout`."""
    missing_holdout_reason: str = ""


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run's manifest, its files here, and the order of its tensors."""

    signed: SignedManifest
    layout: Layout
    files: ResultFiles

    @classmethod
    def of(cls, signed: SignedManifest, files: ResultFiles) -> OpenedRun:
        """Cut the model as the run's peers do."""
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
        """The token that closes a document, when documents do not see each other. None: they do."""
        return self.manifest.tokenizer.end_token if self.manifest.data.document_mask else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunModel:
    """One state of a run, complete and checked."""

    run: OpenedRun
    params: torch.Tensor
    """`outer_params`, flat fp32 in the order of the run's layout."""
    round: int
    origin: str
    """Where it is from, for a person."""
    tokens: int | None = None
    """Tokens that were trained on at least, as the state's own facts say. None: they do not."""
    donors: tuple[str, ...] = ()
    """Peer ids whose states these are, as far as they are known."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Peers that gave a state which is not used, and why, for a person."""


def stored_tensors(model: RunModel, dtype: str | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters as an export writes them, by name. `dtype`: of all of them; None: of each as in the folder
    that the run began from, and fp32 without one. A fp32 tensor is a view of the model's."""
    layout = model.run.layout
    for spec, (name, view) in zip(layout.tensors, views_of(model.params, layout), strict=True):
        yield name, view.to(getattr(torch, dtype or spec.dtype))


def check_finite(params: torch.Tensor, where: str) -> None:
    """Raise SourceError for a state that no model can have."""
    if not bool(torch.isfinite(params).all()):
        raise SourceError(f"the state of {where} holds NaN or infinity", "Name an earlier checkpoint, or another peer.")


def check_same_run(models: Sequence[RunModel]) -> None:
    """Raise SourceError when not all are of one run."""
    runs = {model.run.run_id.hex()[:16]: model for model in models}
    if len(runs) > 1:
        listed = "; ".join(f"{model.origin} is of {run}" for run, model in runs.items())
        raise SourceError(f"the sources are of different runs: {listed}", "Average sources of one run only.")


def add_state(total: RunModel, model: RunModel) -> RunModel:
    """Add a state to a sum, whose memory is used again."""
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
    """Make the mean of a sum of so many states, in its own memory."""
    assert count >= 1, count
    if count == 1:
        return total
    total.params.div_(count)
    return replace(total, origin=f"the mean of {count} states: {total.origin}")
