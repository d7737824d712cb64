"""Measures the speed of a codec on one thread, compared with a copy of the same memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from peer.codec.kernels import IMPLEMENTATION, REASON, Native
from peer.codec.registry import EVERY
from peer.errors import UsageError
from peer.node.process import tune_malloc

MB = 1e6
LEAST_MB, MOST_MB = 1, 4096
REPETITIONS = 9


def measure(name: str, mb: float, repetitions: int = REPETITIONS) -> dict[str, Any]:
    """Measure GB of fp32 per second for encode, decode and axpy (decode and accumulate) of `mb` million bytes of
    normally distributed values, and for a plain copy. All write into memory that has been used before. The measurements
    alternate, so that all see the same state of the machine. Raises UsageError."""
    if name not in EVERY:
        raise UsageError(f"there is no codec {name!r}", f"Known: {', '.join(sorted(EVERY))}.")
    if not LEAST_MB <= mb <= MOST_MB:
        raise UsageError(f"--mb {mb:g} cannot be measured", f"Give {LEAST_MB} to {MOST_MB}.")
    tune_malloc()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rates = _rates(name, int(mb * MB / 4), repetitions)
    finally:
        torch.set_num_threads(before)
    native = isinstance(EVERY[name], Native)
    return {**rates, "implementation": IMPLEMENTATION if native else "torch", "reason": REASON}


def _rates(name: str, elements: int, repetitions: int) -> dict[str, float]:
    codec, values = EVERY[name], torch.randn(elements, generator=torch.Generator().manual_seed(0))
    into, copy = torch.zeros(elements), np.zeros(elements, dtype=np.float32)
    payload = codec.encode(values)
    work: dict[str, Callable[[], object]] = {
        "encode_gbs": lambda: codec.encode(values),
        "decode_gbs": lambda: codec.decode_into(payload, into),
        "axpy_gbs": lambda: codec.add(payload, into, 0.5),
        "memcpy_gbs": lambda: np.copyto(copy, values.numpy()),
    }
    seconds: dict[str, list[float]] = {what: [] for what in work}
    for number in range(repetitions + 1):
        for what, call in work.items():
            took = seconds_of(call)
            if number:  # the first warms up
                seconds[what].append(took)
    return {what: 4 * elements / 1e9 / statistics.median(took) for what, took in seconds.items()}


def seconds_of(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
