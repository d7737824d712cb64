"""Evaluation of parameters on the run's fixed hold-out, with the run's own network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from peer.ports.trainer import Evaluation
from peer.trainer.batches import holdout_windows
from peer.trainer.data.corpus import TrainingData
from peer.trainer.loss import TokenLoss, mean_loss
from peer.trainer.models.language_model import LanguageModel

NO_EVALUATION = Evaluation(math.nan, math.nan, 0)


class RunNetwork(Protocol):
    """Interface of the run's network for probes and evaluations, which replace its params by other values during a
    call."""

    @property
    def network(self) -> LanguageModel: ...

    @property
    def token_loss(self) -> TokenLoss: ...

    @property
    def device(self) -> torch.device: ...

    def live_weights(self) -> Mapping[str, Tensor]:
        """Return the live params that are not the network's own tensors, by their names in `token_loss`."""

    def forget_gradients(self) -> None:
        """Free the memory of the last gradients, unless it belongs to a user's loop."""


def weights_of(network: LanguageModel, named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Rename tensors from the names of the layout to those of a `TokenLoss` of this network."""
    return {f"network.{network.prefix}{name}": value for name, value in named}


@torch.inference_mode()
def evaluate_holdout(
    loss: TokenLoss,
    data: TrainingData,
    context: int,
    count: int,
    weights: Mapping[str, Tensor],
    given_up: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Evaluate fp32 weights in fp32 on `count` evenly spaced windows of `context` tokens of the hold-out.

    `weights`: as `weights_of` returns them. The loss is NaN when there is no hold-out, or once `given_up()` returns
    True."""
    if data.holdout is None:
        return NO_EVALUATION
    result = mean_loss(loss, holdout_windows(data.holdout, context=context, count=count), weights, given_up)
    if result is None:
        return NO_EVALUATION
    nats, tokens = result
    return Evaluation(nats, nats / math.log(2) / data.bytes_per_token, tokens)
