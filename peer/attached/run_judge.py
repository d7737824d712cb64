"""Judges params inside a user's training loop with the run's own network, on the run's data.

The network computes with the user's live tensors, so that it needs no second copy of the params."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from peer.attached.rank_tensors import LeadTensors
from peer.attached.untouched import untouched
from peer.protocol.model.layout import Layout
from peer.trainer.arena import Arena
from peer.trainer.batches import BatchStream
from peer.trainer.config import TrainerConfig
from peer.trainer.data.tracked import TrackedData
from peer.trainer.evaluation import evaluate_holdout, weights_of
from peer.trainer.ipc import Message
from peer.trainer.loss import TokenLoss
from peer.trainer.models.factory import bind, empty_model
from peer.trainer.models.flat import replace_parameters, views_of
from peer.trainer.models.language_model import LanguageModel
from peer.trainer.probing.probe import Prober

EVALUATION_S = 30.0
"""Most seconds that one evaluation may delay the loop. After that it is given up, without a result."""


class BoundNetwork:
    """The run's own network, as a `peer.trainer.evaluation.RunNetwork` that computes with a user's live tensors.

    Its own parameters are on the meta device, so that they need no memory."""

    def __init__(self, config: TrainerConfig, layout: Layout, params: LeadTensors) -> None:
        """Make the network. Raises ModelError when the run's model cannot be made here."""
        model = empty_model(config)
        flat = torch.zeros(layout.elements, device=params.device)
        bind(model, layout, flat)
        model.examine()
        named = {model.prefix + name: nn.Parameter(view.to("meta")) for name, view in views_of(flat, layout)}
        replace_parameters(model, named)
        model.eval()
        self._tensors = params
        self.token_loss = TokenLoss(model, params.device, config.mask_end_token)

    @property
    def network(self) -> LanguageModel:
        return self.token_loss.network

    @property
    def device(self) -> torch.device:
        return self._tensors.device

    def live_weights(self) -> dict[str, Tensor]:
        named = self._tensors.whole_named().items()
        return weights_of(self.network, ((name, value.to(self.device)) for name, value in named))

    def forget_gradients(self) -> None:
        """Do nothing: the gradients belong to the user's loop."""


class RunJudge:
    """Evaluates and probes params with the run's network on the run's data, inside a user's loop."""

    def __init__(
        self,
        config: TrainerConfig,
        layout: Layout,
        folder: Path,
        arena: Arena,
        params: LeadTensors,
        send: Callable[[Message], None],
    ) -> None:
        """Open the data and make the network. Raises DataError, ManifestError and ModelError.

        `send`: sends requests for shards to the daemon."""
        self._config = config
        self._layout = layout
        self._arena = arena
        self._network = BoundNetwork(config, layout, params)
        self._tracked = TrackedData(config, folder, len(layout.fragments), send)
        self._prober = Prober(config, layout, folder, arena, self._network, self._tracked)
        if self._tracked.shards is not None:
            self._tracked.shards.request([])  # requests the hold-out

    @property
    def holdout_awaited(self) -> bool:
        return self._tracked.holdout_awaited

    @property
    def asks_daemon(self) -> bool:
        """Whether the data is requested from the daemon. Another daemon then needs a new judge."""
        return self._tracked.shards is not None

    @property
    def data(self) -> str:
        """Description of the data that params are evaluated on, for a person."""
        return self._tracked.data.description

    def weigh(self, message: Message) -> Message:
        with untouched():
            return self._prober.weigh(message)

    def probe(self, message: Message) -> Message:
        with untouched():
            return self._prober.answer(message)

    def evaluate(self, own: bool, given_up: Callable[[], bool]) -> Message:
        until = time.monotonic() + EVALUATION_S
        network, train = self._network, self._config.train
        with untouched():
            if own:
                weights = network.live_weights()
            else:
                weights = weights_of(network.network, views_of(self._arena.inn.to(network.device), self._layout))
            result = evaluate_holdout(
                network.token_loss,
                self._tracked.data,
                train.context,
                train.eval_windows,
                weights,
                lambda: given_up() or time.monotonic() > until,
            )
        return {"loss": result.loss, "bits_per_byte": result.bits_per_byte, "tokens": result.tokens}

    def take_shard(self, message: Message) -> None:
        self._tracked.receive_shard(message)
        self._prober.check_borrowed()

    def stream(self) -> BatchStream:
        """Return a stream of the run's training data, in this peer's order."""
        config, shape = self._config, {"context": self._config.train.context, "batch": self._config.train.batch}
        return BatchStream(self._tracked.data, seed=config.seed, peer_id=config.peer_id, **shape)
