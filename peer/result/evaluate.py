"""Evaluates a run's model with the same windows and arithmetic as the run's trainers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from peer.result.holdout import HoldOut, hold_out
from peer.result.model import OpenedRun, RunModel
from peer.result.network import limit_memory, network_of
from peer.trainer.batches import holdout_windows
from peer.trainer.loss import TokenLoss, mean_loss
from peer.trainer.models.language_model import LanguageModel
from peer.user_folders import temporary_folder


@dataclass(frozen=True, slots=True)
class LossReport:
    """Result of an evaluation. `loss` is in nats a token."""

    loss: float
    bits_per_byte: float | None
    tokens: int
    """Number of tokens that were predicted."""
    description: str
    """Origin of the tokens, for a person."""

    @property
    def perplexity(self) -> float | None:
        """exp(loss). None: too large for a float."""
        return math.exp(self.loss) if self.loss < 700 else None


def measure(model: RunModel, data: Path | None, device: torch.device) -> LossReport:
    """Evaluate a model on the run's hold-out, or on the folder `data`. Raises DataError, ModelError, MachineTooSmall,
    and the errors of `hold_out`."""
    with temporary_folder("peer-eval-") as scratch:
        found = hold_out(model.run, data, Path(scratch))
        with limit_memory(model.run, device, "evaluating"):
            return measured(model.run, network_of(model, device), found, device)


def measured(run: OpenedRun, network: LanguageModel, found: HoldOut, device: torch.device) -> LossReport:
    """Evaluate a network on the given tokens."""
    train = run.manifest.train
    windows = holdout_windows(found.tokens, context=train.context, count=train.eval_windows)
    found_loss = mean_loss(TokenLoss(network, device, run.end_mask), windows, {})
    assert found_loss is not None, "nobody gives it up"
    loss, tokens = found_loss
    bits = None if found.bytes_per_token is None else loss / math.log(2) / found.bytes_per_token
    return LossReport(loss, bits, tokens, found.description)


def report(model: RunModel, found: LossReport) -> dict[str, Any]:
    """Return the results of an evaluation as a JSON-able dict."""
    return {
        "loss": found.loss,
        "bits_per_byte": found.bits_per_byte,
        "perplexity": found.perplexity,
        "tokens": found.tokens,
        "run_id": model.run.run_id.hex(),
        "round": model.round,
        "donors": list(model.donors),
        "left_out": dict(model.left_out),
    }
