"""Evaluation of given parameters on the run's fixed hold-out, with the run's own network."""

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
    """The run's network, as probes and evaluations compute with it. Other values can take the place of its params for a
    call."""

    @property
    def network(self) -> LanguageModel: ...

    @property
    def token_loss(self) -> TokenLoss: ...

    @property
    def device(self) -> torch.device: ...

    def live_weights(self) -> Mapping[str, Tensor]:
        """Return the live params that do not lie in the network itself, by their names in `token_loss`."""

    def forget_gradients(self) -> None:
        """Give back the memory of the last gradients, where it is ours."""


def weights_of(network: LanguageModel, named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return values under their names in a `TokenLoss` of the network. `named`: by the names of the layout."""
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
    """Evaluate these fp32 weights in fp32 on `count` evenly spaced windows of `context` tokens of the hold-out.

    The loss is NaN when the hold-out cannot be had, or when nobody waits for it any more."""
    if data.holdout is None:
        return NO_EVALUATION
    result = mean_loss(loss, holdout_windows(data.holdout, context=context, count=count), weights, given_up)
    if result is None:
        return NO_EVALUATION
    nats, tokens = result
    return Evaluation(nats, nats / math.log(2) / data.bytes_per_token, tokens)
