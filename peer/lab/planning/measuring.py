"""Measures how fast this machine trains, with a small model."""

from __future__ import annotations

import os

from peer.lab.bench.trainer import BURSTS, measure
from peer.lab.planning.pace import FLOPS
from peer.lab.planning.shape import settings_of, shape_for
from peer.run.manifest import default_text, derive
from peer.run.schema import parse_manifest

MOST_PARAMS = 5e6
"""Most parameters of the measured model. A larger one would take minutes on a CPU."""
CONTEXT, BATCH = 256, 2


def measured_flops(params: float) -> tuple[float, str]:
    """Train for some seconds. Return the floating point operations per second that training reaches here, counted as 6
    per parameter and token, and a sentence about the measurement. Raises the trainer's errors."""
    model = shape_for(min(params, MOST_PARAMS), 256, CONTEXT)
    text = derive(default_text(), [*settings_of(model), f"train.context={CONTEXT}", f"train.batch={BATCH}"])
    threads = max(1, (os.cpu_count() or 2) - 1)
    found = measure(parse_manifest(text.encode()), BURSTS, threads=threads)
    rate, size = found["tokens_per_s"], found["parameters"]
    told = f"measured here: {rate:,.0f} tokens/s with {size:,} parameters on {found['device']}, {threads} threads"
    return FLOPS * size * rate, told
