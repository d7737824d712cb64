"""Computing inside a user's training loop without a trace in it."""

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
    """Compute without gradients and autocast, and put back what the user's loop had: the state of the random generators
    of torch, numpy and Python, and of `model`'s modules the training flags and the buffers, bit for bit."""
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
            module._buffers.update(named)  # one that was replaced, not written to, is the former tensor again
        for live, value in values.values():
            live.copy_(value)
