"""`BoundRun`: the tensors, files and round clock of a run, to which a user's training loop is bound by its daemon's
config."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from peer.attached.params import Named, check_optimizers, match_tensors
from peer.attached.rank_tensors import LeadTensors, reshard
from peer.attached.ranks import Ranks
from peer.errors import UsageError
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.schedule import RoundClock
from peer.trainer.arena import Arena, CounterFile
from peer.trainer.config import TrainerConfig
from peer.trainer.inner_loop import lr_factor
from peer.trainer.ipc import Message


class BoundRun:
    """A run, bound to the tensors of a user's model. It outlives the daemon, and the next daemon has to fit it."""

    def __init__(
        self, opening: Message, model: Named, optimizers: Sequence[torch.optim.Optimizer], ranks: Ranks
    ) -> None:
        """Bind the model's tensors to the layout of the daemon's `opening` message, on all ranks.

        Raises ModelError and UsageError when the model or the optimizers do not fit the run, and RankLost."""
        self.config = TrainerConfig.model_validate(opening["config"])
        self.layout, self.folder = _layout_of(opening), Path(opening["folder"])
        self._model = model
        reshard(model)
        self.arena = Arena(self.folder, self.layout, create=False)
        tensors = match_tensors(model, self.layout.tensors)
        self.params = LeadTensors(self.layout, tensors, ranks, self.arena, self.folder)
        check_optimizers(optimizers, self.params.tensors)
        ranks.order("open", **{name: opening[name] for name in ("tensors", "shapes", "fragments", "folder")})
        ranks.wait_answers()
        fragments = len(self.layout.fragments)
        self.counters = CounterFile(self.folder, fragments)
        clock, every = self.config.clock, self.config.sync_every
        self._rounds = RoundClock(clock, every, fragments, growth=self.config.growth)
        self._checked_round = -1
        """Round in which the model's tensors were last compared with those bound at the start."""

    def rebind(self, opening: Message) -> None:
        """Adopt the config that another daemon has sent. Raises UsageError if that daemon takes part in another run."""
        config = TrainerConfig.model_validate(opening["config"])
        if (_layout_of(opening), Path(opening["folder"])) != (self.layout, self.folder):
            raise UsageError("the daemon that was started again is of another run", "Join again.")
        self.config = config

    @property
    def total_rounds(self) -> int:
        """Number of rounds of the run."""
        return self.config.train.total_rounds

    @property
    def nominal_tokens(self) -> int:
        """Tokens of an inner step by the manifest."""
        return self.config.tokens_per_step

    @property
    def tokens(self) -> int:
        """Tokens that this home has processed in the run, in all processes."""
        return self.counters.tokens

    @property
    def lr_factor(self) -> float:
        """Factor on the peak learning rate for the next step: the run's schedule times the operator's factor."""
        place = self.params.round, self.params.step_in_round
        return lr_factor(self.config, self._rounds, *place) * self.params.lr_scale

    def check_tensors(self) -> None:
        """Once a round, check that the model still has the tensors that were bound at the start, because only those are
        exchanged.

        Raises ModelError or UsageError, which names the first tensor that was replaced."""
        if self.params.round == self._checked_round:
            return
        reshard(self._model)
        found = match_tensors(self._model, self.layout.tensors)
        for spec, live, bound in zip(self.layout.tensors, found, self.params.tensors, strict=True):
            if live is not bound:
                fix = "Change values in place, as load_state_dict() does, or leave the run and join again."
                raise UsageError(f"{spec.name} is another tensor than the one that joined", fix)
        self._checked_round = self.params.round


def _layout_of(opening: Message) -> Layout:
    """Return the layout in a daemon's opening message."""
    named = zip(opening["tensors"], opening["shapes"], strict=True)
    tensors = tuple(TensorSpec(name, tuple(shape)) for name, shape in named)
    return Layout(tensors, tuple((first, end) for first, end in opening["fragments"]))
