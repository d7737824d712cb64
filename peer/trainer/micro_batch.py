"""Choice of the micro-batch: the number of windows that go through the model at once, and how to save memory.

The choice fits an estimate and one measured step to the free memory, so that a run whose batch suits large machines
neither exhausts the memory of a small one nor makes it swap."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from peer.errors import MachineTooSmall
from peer.observe.formatting import amount
from peer.run.activations import LOGIT_BYTES, largest_micro_batch, recomputed_bytes, window_bytes
from peer.trainer.config import TrainerConfig
from peer.trainer.inner_loop import InnerLoop
from peer.trainer.memory_limit import GPU_SHARE


@dataclass(frozen=True, slots=True)
class MicroBatchChoice:
    """The micro-batch of this machine."""

    micro_batch: int
    """Windows that go through the model at once."""
    reason: str
    """Reason of the choice, for a person."""


@dataclass(frozen=True, slots=True)
class _MemoryPlan:
    """A combination of the options of `InnerLoop.save_memory`, and the memory that it needs."""

    chunked: bool
    recomputed: bool
    window: int
    """Estimated bytes that one window takes."""

    def __str__(self) -> str:
        names = ["the loss in chunks"] * self.chunked + ["layers computed again for the gradient"] * self.recomputed
        return f", {' and '.join(names)}, as memory is short" if names else ""


def choose_micro_batch(loop: InnerLoop, config: TrainerConfig) -> MicroBatchChoice:
    """Choose, try and set the loop's micro-batch. Leaves no gradient, and does not change the parameters.

    To save memory, it first puts fewer windows through the model at once. If not even one window fits, it computes the
    loss in chunks (for models whose logits take most of the memory), and finally recomputes the layers' activations in
    the backward pass. Raises MachineTooSmall when one window still does not fit into an accelerator's memory."""
    if config.micro_batch is not None:
        loop.set_micro_batch(min(config.micro_batch, config.train.batch))
        return MicroBatchChoice(loop.micro_batch, f"{_of(loop, config)}: asked for")
    on_device = loop.device.type == "cuda"
    return _fit_device(loop, config) if on_device else _fit_main_memory(loop, config)


def _memory_plans(loop: InnerLoop, config: TrainerConfig) -> list[_MemoryPlan]:
    """Return the plans that this model supports, the fastest first."""
    context, network = config.train.context, loop.network
    logits = LOGIT_BYTES * network.vocab_size * context
    window = max(logits, window_bytes(config.model, context))
    layers = window - logits
    # the head's gradient, which exists beside the sum of gradients
    head = 4 * network.head_weight.numel() if network.splits else 0
    few_logits = LOGIT_BYTES * network.vocab_size * min(context, loop.chunk) if network.splits else logits
    plans = [_MemoryPlan(False, False, window)]
    if network.splits and logits > layers and few_logits < logits:
        plans.append(_MemoryPlan(True, False, layers + few_logits + head))
    if network.recomputes:
        kept = recomputed_bytes(layers, network.layers)
        # the loss is also chunked if the model supports that
        plans.append(_MemoryPlan(network.splits, True, kept + few_logits + head))
    return plans


def _fit_main_memory(loop: InnerLoop, config: TrainerConfig) -> MicroBatchChoice:
    """Choose from estimates and the measured growth of one window.

    More windows are not tried, because the system kills a process that runs out of main memory instead of raising an
    error."""
    free = config.activation_bytes
    if free is None:
        return MicroBatchChoice(loop.micro_batch, f"{_of(loop, config)}: free memory is not told here")
    plans = _memory_plans(loop, config)
    for plan in plans:
        window = plan.window
        if window > free and plan is not plans[-1]:
            continue
        loop.save_memory(chunked=plan.chunked, recomputed=plan.recomputed)
        window = max(window, peak_growth(lambda: loop.probe(1)))
        if window <= free:
            break
    loop.set_micro_batch(largest_micro_batch(config.train.batch, window, free))
    how = "measured" if window > plan.window else "estimated"
    memory = f"a window takes {amount(window, 'bytes')}, {how}; {amount(free, 'bytes')} are free for them"
    return MicroBatchChoice(loop.micro_batch, f"{_of(loop, config)}{plan}: {memory}")


def _fit_device(loop: InnerLoop, config: TrainerConfig) -> MicroBatchChoice:
    """Try the estimated micro-batch and halve it until it fits: a full accelerator only raises an error."""
    free = int(GPU_SHARE * torch.cuda.mem_get_info(loop.device)[0])
    before = torch.cuda.memory_allocated(loop.device)
    plans = _memory_plans(loop, config)
    for plan in plans:
        if plan.window > free and plan is not plans[-1]:
            continue
        loop.save_memory(chunked=plan.chunked, recomputed=plan.recomputed)
        loop.set_micro_batch(largest_micro_batch(config.train.batch, plan.window, free))
        torch.cuda.reset_peak_memory_stats(loop.device)
        if _goes_through(loop):
            took = torch.cuda.max_memory_allocated(loop.device) - before
            memory = f"takes {amount(took, 'bytes')} of {amount(free, 'bytes')} that were free on the GPU"
            return MicroBatchChoice(loop.micro_batch, f"{_of(loop, config)}{plan}: {memory}")
    free_here = amount(free, "bytes")
    raise MachineTooSmall(f"one window of {config.train.context} tokens needs more than {free_here} of GPU memory")


def _goes_through(loop: InnerLoop) -> bool:
    """Halve the micro-batch until it fits into the accelerator. Return False when a single window does not fit."""
    while True:
        try:
            loop.probe(loop.micro_batch)
        except torch.OutOfMemoryError:
            if loop.micro_batch == 1:
                return False
        else:
            return True
        loop.halve()


def peak_growth(work: Callable[[], None], proc: Path = Path("/proc/self")) -> int:
    """Return by how many bytes this process's resident memory grew at its peak while `work` ran.

    0 if the system has no such count in /proc."""
    before = _status(proc, "VmRSS")
    with contextlib.suppress(OSError):
        (proc / "clear_refs").write_text("5")  # resets the peak
    work()
    return max(0, _status(proc, "VmHWM") - before)


def _status(proc: Path, name: str) -> int:
    """Return a value of this process's /proc status in bytes. 0 if it is missing."""
    try:
        lines = (proc / "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


def _of(loop: InnerLoop, config: TrainerConfig) -> str:
    return f"{loop.micro_batch} of {config.train.batch} windows at once"
