"""Choice of the windows that go through the model at once.

An estimate and one measured step fit them to the free memory. A batch made for a large machine then neither kills a
small one nor makes it swap."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from peer.errors import MachineTooSmall
from peer.run.activations import largest_micro_batch, window_bytes
from peer.trainer.config import TrainerConfig
from peer.trainer.inner_loop import InnerLoop

SHARE = 0.9
"""Share of an accelerator's free memory that is used. The rest is for fragmentation and other programs."""
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Fit:
    micro_batch: int
    """Windows at once."""
    reason: str
    """Reason of the choice, for a person."""


def fit(loop: InnerLoop, config: TrainerConfig) -> Fit:
    """Choose, try and set the loop's micro-batch. The gradient is zero afterwards, and the parameters are untouched.

    Raises MachineTooSmall when not even one window goes through an accelerator's memory."""
    if config.micro_batch is not None:
        loop.set_micro_batch(min(config.micro_batch, config.train.batch))
        return Fit(loop.micro_batch, f"{_of(loop, config)}: asked for")
    on_device = loop.device.type == "cuda"
    return _fit_device(loop, config) if on_device else _fit_main_memory(loop, config)


def _fit_main_memory(loop: InnerLoop, config: TrainerConfig) -> Fit:
    """Try one window, the least there is: the system's out-of-memory killer gives no second chance."""
    free = config.activation_bytes
    if free is None:
        return Fit(loop.micro_batch, f"{_of(loop, config)}: free memory is not told here")
    estimate = window_bytes(config.model, config.train.context)
    window = max(estimate, peak_growth(lambda: loop.probe(1)))
    loop.set_micro_batch(largest_micro_batch(config.train.batch, window, free))
    return Fit(loop.micro_batch, f"{_of(loop, config)}: a window takes {_mib(window)}, {_mib(free)} are free for them")


def _fit_device(loop: InnerLoop, config: TrainerConfig) -> Fit:
    """Try from the estimate downwards: an accelerator raises an error when it is full, and goes on."""
    free = int(SHARE * torch.cuda.mem_get_info(loop.device)[0])
    window = window_bytes(config.model, config.train.context)
    loop.set_micro_batch(largest_micro_batch(config.train.batch, window, free))
    torch.cuda.reset_peak_memory_stats(loop.device)
    before = torch.cuda.memory_allocated(loop.device)
    while not _goes_through(loop):
        if loop.micro_batch == 1:
            raise MachineTooSmall(
                f"one window of {config.train.context} tokens needs more than {_mib(free)} of GPU memory"
            )
        loop.halve()
    took = torch.cuda.max_memory_allocated(loop.device) - before
    return Fit(loop.micro_batch, f"{_of(loop, config)}: takes {_mib(took)} of {_mib(free)} that were free on the GPU")


def _goes_through(loop: InnerLoop) -> bool:
    try:
        loop.probe(loop.micro_batch)
    except torch.OutOfMemoryError:
        return False
    return True


def peak_growth(work: Callable[[], None], proc: Path = Path("/proc/self")) -> int:
    """Return the bytes by which this process's resident memory grew at most while `work` ran; 0 if the system does not
    tell."""
    before = _status(proc, "VmRSS")
    with contextlib.suppress(OSError):
        (proc / "clear_refs").write_text("5")  # resets the peak
    work()
    return max(0, _status(proc, "VmHWM") - before)


def _status(proc: Path, name: str) -> int:
    """Return a line of the process's status in bytes; 0 where there is none."""
    try:
        lines = (proc / "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


def _of(loop: InnerLoop, config: TrainerConfig) -> str:
    return f"{loop.micro_batch} of {config.train.batch} windows at once"


def _mib(nbytes: int) -> str:
    return f"{nbytes / MIB:.1f} MiB"
