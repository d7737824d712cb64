"""How much slower is an inner step during an exchange?

Promise 7: the trainer does not wait. Bounds: inner steps are at most 3 % slower during swaps at 100 Mbit/s, and 15 % at
full speed. About three minutes, at nice 0 on a machine that does nothing else.

    python -m benchmarks.interference [--repeats 5] [--phase-s 4] [--mb 64] [--codec bf16] [--threads 1] [--json FILE]
                                      [--results]

A real trainer (child process, as the daemon starts it) trains all the time. Busy and quiet turns of other processes
alternate. A busy turn swaps at a cap of 100 Mbit/s each way, swaps as fast as loopback goes, or only encodes. A turn's
step time is compared with the mean of the quiet turns around it; medians. The far end of the swap stands for another
machine but runs here (at nice 19), so the figures are upper bounds.

The daemon's bulk thread sets its own niceness, which has to be above the trainer's: hence nice 0."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.clock.monotonic import boottime
from peer.codec.registry import EVERY
from peer.lab.bench.pair import Pair, pair
from peer.ports.trainer import WorkRequest
from peer.protocol.messages import RoundKey
from peer.run.manifest import default_text, derive
from peer.run.model_layout import layout_for
from peer.run.resolve import resolve
from peer.run.schema import Manifest, parse_manifest
from peer.run.sections import LlamaSection
from peer.trainer.client import TrainerClient
from peer.trainer.config import TrainerConfig
from peer.trainer.models.llama import first_params

CAP = 12.5e6
FAR_NICE = 19
WANTED = {"100 Mbit/s": 3.0, "full speed": 15.0}
"""Largest accepted slowdown in percent."""
ABOUT = Benchmark(
    "interference",
    "How much slower is an inner step during an exchange?",
    "7 (the trainer does not wait)",
    smallest="--repeats 1 --phase-s 0.5 --mb 1",
    is_long=True,
)
MODEL = (
    "model.hidden_size=256",
    "model.intermediate_size=704",
    "model.max_position_embeddings=128",
    "train.context=128",
    "train.batch=4",
)
"""Settings of a model with 3.2 million parameters, whose step takes about 0.1 s."""

Beside = Callable[[float], Awaitable[int]]
"""Work beside the trainer for at least this many seconds. Returns the number of swaps."""


async def train(trainer: TrainerClient, seconds: float) -> float:
    """Return the mean seconds of an inner step over `seconds`, as the trainer counts them."""
    before = trainer.counters()
    request = WorkRequest(RoundKey(0, 0), steps=None, until=boottime() + seconds, hold=True)
    await trainer.work(request)
    after = trainer.counters()
    return (after.seconds_training - before.seconds_training) / max(1, after.steps - before.steps)


def swapping(ends: Pair) -> Beside:
    async def beside(seconds: float) -> int:
        until, swaps = boottime() + seconds, 0
        while boottime() < until:
            await ends.swap()
            swaps += 1
        return swaps

    return beside


def encoding(ends: Pair) -> Beside:
    async def beside(seconds: float) -> int:
        await ends.encode(seconds)
        return 0

    return beside


async def phase(trainer: TrainerClient, beside: Beside | None, seconds: float) -> tuple[float, float]:
    """Return the step time in seconds, and the swaps per second."""
    if beside is None:
        return await train(trainer, seconds), 0.0
    began = boottime()
    step_s, swaps = await asyncio.gather(train(trainer, seconds), beside(seconds))
    return step_s, swaps / (boottime() - began)


async def measure(manifest: Manifest, given: Any) -> dict[str, Any]:
    assert isinstance(manifest.model, LlamaSection), manifest.model.kind
    layout, elements = layout_for(manifest.model, resolve(manifest.sync)), int(given.mb * 1e6 / 4)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peer-interference-")))
        trainer = TrainerClient(
            folder, layout, TrainerConfig.of(manifest, "bench", threads=given.threads, device="cpu")
        )
        stack.push_async_callback(trainer.stop)
        await trainer.start(first_params(manifest.model, 0, layout), 0, None)
        capped = await stack.enter_async_context(pair(given.codec, elements, CAP, far_nice=FAR_NICE))
        full = await stack.enter_async_context(pair(given.codec, elements, far_nice=FAR_NICE))
        for ends in (capped, full):
            await ends.swap()
        await train(trainer, given.phase_s)
        kinds = {"100 Mbit/s": swapping(capped), "full speed": swapping(full), "encoding only": encoding(full)}
        return await by_turns(trainer, kinds, given)


async def by_turns(trainer: TrainerClient, kinds: dict[str, Beside], given: Any) -> dict[str, Any]:
    quiet, rows = list[float](), {kind: {"more": list[float](), "rate": list[float]()} for kind in kinds}
    before, _ = await phase(trainer, None, given.phase_s)
    quiet.append(before)
    payload = EVERY[given.codec].nbytes(int(given.mb * 1e6 / 4))
    for _ in range(given.repeats):
        for kind, beside in kinds.items():
            step_s, swaps = await phase(trainer, beside, given.phase_s)
            after, _ = await phase(trainer, None, given.phase_s)
            rows[kind]["more"].append(100 * (2 * step_s / (before + after) - 1))
            rows[kind]["rate"].append(swaps * payload / 1e6)
            quiet.append(after)
            before = after
    return {"quiet_step_ms": [1e3 * step_s for step_s in quiet], "beside": rows}


def show(given: Any, found: dict[str, Any]) -> None:
    quiet = found["quiet_step_ms"]
    if found["nice"]:
        print(f"started at nice {found['nice']}: the bulk thread is not below the trainer, so this is no result")
    print(f"step alone: {statistics.median(quiet):.1f} ms (turns {min(quiet):.1f} to {max(quiet):.1f})")
    rows, figures = [], []
    for kind, row in found["beside"].items():
        more = row["more"]
        rate = statistics.median(row["rate"])
        rows.append([kind, statistics.median(more), min(more), max(more), rate, len(more)])
        figures.append(Figure(f"step more, {kind}", "%", statistics.median(more), WANTED.get(kind)))
    heads = ["", "step more %", "least", "most", "MB/s each way", "turns"]
    alone = f"step alone {statistics.median(quiet):.1f} ms; {given.codec}, {given.mb:g} MB"
    publish(given, ABOUT, figures, Table(alone, heads, rows))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--phase-s", type=float, default=4.0)
    parser.add_argument("--mb", type=float, default=64, help="million bytes of fp32")
    parser.add_argument("--codec", default="bf16")
    parser.add_argument("--threads", type=int, default=1, help="of the trainer")
    given = parsed(parser, ABOUT)
    manifest = parse_manifest(derive(default_text(), MODEL).encode())
    found = {"nice": os.getpriority(os.PRIO_PROCESS, 0), **asyncio.run(measure(manifest, given))}
    show(given, found)


if __name__ == "__main__":
    main()
