"""The speed of this machine in training, measured with a small model."""

from __future__ import annotations

import os

from peer.lab.bench.trainer import BURSTS, measure
from peer.lab.planning.pace import FLOPS
from peer.lab.planning.shape import settings_of, shape_for
from peer.run.manifest import default_text, derive
from peer.run.schema import parse_manifest

MOST_PARAMS = 5e6
"""Parameters of the measured model at most. A larger one would take minutes on a processor."""
CONTEXT, BATCH = 256, 2


def measured_flops(params: float) -> tuple[float, str]:
    """Train for some seconds; return the floating point operations a second that the training reaches here, 6 a
    parameter and token, and how that was found. Raises what the trainer refuses with."""
    model = shape_for(min(params, MOST_PARAMS), 256, CONTEXT)
    text = derive(default_text(), [*settings_of(model), f"train.context={CONTEXT}", f"train.batch={BATCH}"])
    threads = max(1, (os.cpu_count() or 2) - 1)
    found = measure(parse_manifest(text.encode()), BURSTS, threads=threads)
    rate, size = found["tokens_per_s"], found["parameters"]
    told = f"measured here: {rate:,.0f} tokens/s with {size:,} parameters on {found['device']}, {threads} threads"
    return FLOPS * size * rate, told
