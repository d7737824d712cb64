"""`PeerCallback` for `transformers.Trainer`, and therefore for TRL, Axolotl and other programs that train with it.

Importing this module raises UsageError if transformers or Accelerate, which its Trainer needs, is not installed."""

from __future__ import annotations

import importlib.util
import inspect
from types import TracebackType
from typing import Any

import torch
from torch import nn

from peer.attached.swarm import Swarm, join
from peer.errors import UsageError
from peer.installation import using_extra

for _name in ("transformers", "accelerate"):
    if importlib.util.find_spec(_name) is None:
        raise UsageError(f"{_name} is not installed", "Install what the Trainer needs: pip install transformers[torch]")

with using_extra("hf"):
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class PeerCallback(TrainerCallback):
    """Takes part in a run while a Trainer trains: joins when training begins, exchanges inside the optimizer's steps,
    stops the Trainer when the run is over, and leaves when training ends.

    Transformers does not report an exception in `Trainer.train` to callbacks. If the callback is used as a context
    manager around `train`, it drains shortly after an exception. Otherwise the daemon drains when the program ends or
    `train` is called again."""

    def __init__(self, ticket: str, *, run_schedule: bool = False, **given: Any) -> None:
        """`given`: keyword arguments of `peer.join`. Without `tokens_per_step` the Trainer's own count of tokens is
        used.

        Args:
            ticket: The ticket, or `@FILE` with it.
            run_schedule: Follow the learning rate schedule of the run's manifest, times the operator's factor. False:
                that of the Trainer.

        Raises TypeError for an argument that `peer.join` does not take."""
        inspect.signature(join).bind(ticket, None, None, **given)
        self._ticket = ticket
        self._run_schedule = run_schedule
        self._given = given
        self._counted = 0
        """The Trainer's count of tokens at the last optimizer step."""
        self.swarm: Swarm | None = None
        """The run, from the beginning of training on. Kept after leaving it."""

    def on_train_begin(  # type: ignore[override] # the Trainer always gives these two
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: Any = None,
        **_: Any,
    ) -> None:
        """Join the run. Raises the errors of `peer.join`, and UsageError for settings of the Trainer that conflict with
        a run."""
        if args.load_best_model_at_end:
            found = "load_best_model_at_end would replace the run's parameters while this peer still takes part"
            raise UsageError(found, "Set load_best_model_at_end=False, and load the checkpoint after training.")
        schedule = _lambdas_of(lr_scheduler) if self._run_schedule else None
        if self.swarm is not None:  # an exception ended an earlier `train`
            self.swarm.leave_shortly()
        if args.include_num_input_tokens_seen == "no":
            args.include_num_input_tokens_seen = "all"
        self._counted = state.num_input_tokens_seen
        self.swarm = swarm = join(self._ticket, model, optimizer, **self._given)
        if schedule is not None:
            schedule.lr_lambdas = [lambda _: swarm.lr_factor for _ in schedule.lr_lambdas]
            for group, base in zip(schedule.optimizer.param_groups, schedule.base_lrs, strict=True):
                group["lr"] = base * swarm.lr_factor

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Count the tokens of this step's batches."""
        assert self.swarm is not None
        self.swarm.count((state.num_input_tokens_seen - self._counted) // args.world_size)
        self._counted = state.num_input_tokens_seen

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Stop training when the run is over. Raises the PeerError that ended the daemon for good."""
        assert self.swarm is not None
        if self.swarm.over:
            control.should_training_stop = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Pass on the mean loss since the Trainer's last log, as that of the current step."""
        if self.swarm is not None and logs is not None and "loss" in logs:
            self.swarm.log(loss=logs["loss"])

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Leave the run, as `Swarm.leave` does."""
        if self.swarm is not None:
            self.swarm.leave()

    def __enter__(self) -> PeerCallback:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.swarm is not None:
            self.swarm.__exit__(kind, error, traceback)


def _lambdas_of(scheduler: Any) -> torch.optim.lr_scheduler.LambdaLR:
    """Return the Trainer's scheduler, whose lambdas the run's schedule can replace. Raises UsageError for a scheduler
    of another kind."""
    inner = getattr(scheduler, "scheduler", scheduler)  # Accelerate wraps it
    if not isinstance(inner, torch.optim.lr_scheduler.LambdaLR):
        found = f"the run's schedule cannot take the place of a {type(inner).__name__}"
        raise UsageError(found, 'Set lr_scheduler_type="constant", or leave run_schedule out.')
    return inner
