"""Evaluates donors' states on windows of the run's hold-out. The guest draws the windows with its own seed, so that no
donor can prepare a state for them."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from peer.aio.threads import Offload
from peer.errors import DataError
from peer.protocol.policy.donors import StateLosses
from peer.result.holdout import hold_out
from peer.result.model import OpenedRun
from peer.result.network import empty_network, limit_memory
from peer.run.description import NOT_EVALUATED
from peer.run.sections import CustomSection
from peer.trainer.data.corpus import Tokens
from peer.trainer.loss import TokenLoss, window_losses
from peer.trainer.models.language_model import LanguageModel
from peer.trainer.probing.windows import HOLDOUT, MOST_TOKENS, WindowForm, draw

WINDOWS = 64
"""More windows than a trainer's probe uses, because a guest has no training to delay."""


class HoldOutJudge:
    """Evaluates states one after another. The network is built for the first state and reused."""

    def __init__(self, run: OpenedRun, device: torch.device, scratch: Path, offload: Offload) -> None:
        """`scratch`: a folder that exists longer than the judge."""
        self._run = run
        self._device = device
        self._scratch = scratch
        self._offload = offload
        self._tokens: Tokens | str | None = None
        """The hold-out, or the reason why there is none. None: not loaded yet."""
        self._made: tuple[LanguageModel, torch.Tensor] | None = None

    async def weigh(self, params: torch.Tensor, seed: int, within_s: float) -> StateLosses | str:
        """Return the losses of a state, or the reason why there are none, as `peer.ports.trainer.Trainer.weigh`.
        `within_s` is ignored. Raises ModelError and MachineTooSmall."""
        return await self._offload(lambda: self._weigh(params, seed))

    def _weigh(self, params: torch.Tensor, seed: int) -> StateLosses | str:
        if isinstance(self._run.manifest.model, CustomSection):
            return NOT_EVALUATED
        if self._tokens is None:
            try:
                self._tokens = hold_out(self._run, None, self._scratch).tokens
            except DataError as error:
                self._tokens = error.found
        if isinstance(self._tokens, str):
            return self._tokens
        with limit_memory(self._run, self._device, "evaluating"):
            return self._losses(params, seed, self._tokens)

    def _losses(self, params: torch.Tensor, seed: int, tokens: Tokens) -> StateLosses:
        if self._made is None:
            self._made = empty_network(self._run, self._device)
        network, values = self._made
        values.copy_(params)
        length = min(self._run.manifest.train.context, MOST_TOKENS)
        windows = draw(tokens, seed=seed, form=WindowForm(WINDOWS, length + 1))
        losses = window_losses(TokenLoss(network, self._device, self._run.end_mask), windows, {})
        assert losses is not None, "nobody gives it up"
        return StateLosses(tuple(losses), math.log(network.vocab_size), HOLDOUT)
