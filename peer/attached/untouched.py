"""Computes inside a user's training loop without changing the loop's state."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from peer.attached.params import Named


@contextlib.contextmanager
def untouched(model: Named | None = None) -> Iterator[None]:
    """Context without gradients and autocast, which restores the user's state at its end.

    Restored are the random generators of torch, numpy and Python, and if `model` is a module, the training flags and
    buffers of all its modules, bit for bit."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with contextlib.ExitStack() as stack:
        stack.callback(np.random.set_state, of_numpy)
        stack.callback(random.setstate, of_python)
        stack.enter_context(torch.random.fork_rng(devices))
        stack.enter_context(torch.no_grad())
        for kind in ("cpu", *(["cuda"] if devices else [])):
            stack.enter_context(torch.autocast(kind, enabled=False))
        if isinstance(model, nn.Module):
            stack.enter_context(_restored_modules(model))
        yield


@contextlib.contextmanager
def _restored_modules(model: nn.Module) -> Iterator[None]:
    modules = list(model.modules())
    flags = [module.training for module in modules]
    buffers = [dict(module._buffers) for module in modules]
    values = {id(one): (one, one.clone()) for named in buffers for one in named.values() if one is not None}
    try:
        yield
    finally:
        for module, training, named in zip(modules, flags, buffers, strict=True):
            module.training = training
            module._buffers.clear()
            module._buffers.update(named)  # also restores buffers that were replaced by other tensors
        for live, value in values.values():
            live.copy_(value)
