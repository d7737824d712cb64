"""The loss of a run's model, on the same windows and with the same arithmetic as its trainers' evaluation."""

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
    """The loss of a model, in nats per token."""

    loss: float
    bits_per_byte: float | None
    tokens: int
    """How many it was measured on."""
    description: str
    """What they are, for a person."""

    @property
    def perplexity(self) -> float | None:
        """None: beyond every number."""
        return math.exp(self.loss) if self.loss < 700 else None


def measure(model: RunModel, data: Path | None, device: torch.device) -> LossReport:
    """Evaluate a model on the run's hold-out or on the folder `data`. Raises DataError, ModelError and MachineTooSmall,
    and as `hold_out` does."""
    with temporary_folder("peer-eval-") as scratch:
        found = hold_out(model.run, data, Path(scratch))
        with limit_memory(model.run, device, "evaluating"):
            return measured(model.run, network_of(model, device), found, device)


def measured(run: OpenedRun, network: LanguageModel, found: HoldOut, device: torch.device) -> LossReport:
    """Evaluate a model on these tokens."""
    train = run.manifest.train
    windows = holdout_windows(found.tokens, context=train.context, count=train.eval_windows)
    found_loss = mean_loss(TokenLoss(network, device, run.end_mask), windows, {})
    assert found_loss is not None, "nobody gives it up"
    loss, tokens = found_loss
    bits = None if found.bytes_per_token is None else loss / math.log(2) / found.bytes_per_token
    return LossReport(loss, bits, tokens, found.description)


def report(model: RunModel, found: LossReport) -> dict[str, Any]:
    """Return the numbers of an evaluation, JSON-able."""
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
