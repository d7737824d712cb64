"""`PeerCallback` for the Trainer of Lightning 2, of either package: `lightning` or `pytorch_lightning`.

It uses the package that the program has imported, otherwise the installed one. Importing this module raises UsageError
if neither is installed."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from typing import Any

from torch import Tensor, nn

from peer.attached.swarm import Swarm, join
from peer.errors import UsageError

_PACKAGES = ("lightning", "pytorch_lightning")


def _callback_class() -> Any:
    """Return Lightning's base class of callbacks. Raises UsageError if Lightning is not installed."""
    imported = [name for name in _PACKAGES if name in sys.modules]
    installed = [name for name in _PACKAGES if name in sys.modules or importlib.util.find_spec(name) is not None]
    if not installed:
        raise UsageError("Lightning is not installed", "Install it: pip install lightning")
    name = (imported or installed)[0]
    return importlib.import_module("lightning.pytorch" if name == "lightning" else name).Callback


Callback: Any = _callback_class()


class PeerCallback(Callback):  # type: ignore[misc] # of either package, so that type checkers accept it as both
    """Takes part in a run while a Trainer trains: joins when training begins, exchanges inside the optimizer's steps,
    stops the Trainer when the run is over, and leaves when training ends. After an exception it drains shortly.

    Logs the loss that `training_step` returned, every `log_every_n_steps` steps."""

    def __init__(
        self, ticket: str, *, model: nn.Module | None = None, run_schedule: bool = False, **given: Any
    ) -> None:
        """`given`: keyword arguments of `peer.join`. Without `tokens_per_step` the tokens in the batches are counted.

        Args:
            ticket: The ticket, or `@FILE` with it.
            model: The part of the LightningModule that is the run's model, such as `module.net`, so that its parameters
                have the run's names. None: the LightningModule itself.
            run_schedule: Follow the learning rate schedule of the run's manifest, times the operator's factor. False:
                that of the module.

        Raises TypeError for an argument that `peer.join` does not take."""
        inspect.signature(join).bind(ticket, None, None, **given)
        self._ticket = ticket
        self._model = model
        self._run_schedule = run_schedule
        self._given = given
        self._schedulers: list[Any] = []
        self._steps = 0
        """Number of optimizer steps at the end of the last batch."""
        self.swarm: Swarm | None = None
        """The run, from the beginning of training on. Kept after leaving it."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Join the run. Raises the errors of `peer.join`, and UsageError if two schedules would set the learning
        rate."""
        if self._run_schedule and trainer.lr_scheduler_configs:
            found = "the run's schedule and a scheduler of the module would both set the learning rate"
            raise UsageError(found, "Return no scheduler from configure_optimizers, or leave run_schedule out.")
        self.swarm = swarm = join(
            self._ticket, pl_module if self._model is None else self._model, trainer.optimizers, **self._given
        )
        self._schedulers = [swarm.scheduler(one) for one in trainer.optimizers] if self._run_schedule else []
        self._steps = trainer.global_step

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Count the batch's tokens for the current step."""
        assert self.swarm is not None
        self.swarm.count(batch)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """Log the loss. Lightning has divided it by the number of accumulated batches, so multiply it back."""
        assert self.swarm is not None
        if trainer.global_step % trainer.log_every_n_steps == 0:
            self.swarm.log(loss=loss.detach() * trainer.accumulate_grad_batches)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Stop training when the run is over. Raises the PeerError that ended the daemon for good."""
        assert self.swarm is not None
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            for scheduler in self._schedulers:
                scheduler.step()
        if self.swarm.over:
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave the run, as `Swarm.leave` does."""
        if self.swarm is not None:
            self.swarm.leave()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Drain shortly. Also called if the user interrupts training."""
        if self.swarm is not None:
            self.swarm.leave_shortly()
