"""How much memory does a swap take on top of the daemon's state, and does any of it stay? Linux only.

Promise: none by number; `peer manifest show` prints a daemon's memory, and a swap may add little to it. Bounds: 64 MB
at the peak, 4 MB of drift over a hundred swaps. About two minutes.

    python -m benchmarks.swap_memory [--mb 256] [--codecs bf16,int8] [--repeats 5] [--small-mb 4] [--swaps 200]
                                     [--work whole|piled] [--json FILE] [--results]

Two processes run the daemon's own round over loopback TLS (`benchmarks.round_end`). It exchanges the snapshot in the
arena and takes the outer step there. Each holds the fragment's state: outer_momentum, two slots in the arena, one of
them outer_params, and the buffer for a partner's values. The peak is how far the resident size (VmHWM, reset for
each swap) rises above that of the first swap's beginning. Then many swaps of a small fragment give the drift: the slope
of the resident size. `--work piled`: half of the work counts, so that values are made as they are sent."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.lab.bench.pair import Found, pair
from peer.lab.bench.tables import Cell, slope

ROUND_END = "benchmarks.round_end"
PEAK_MB, DRIFT_MB = 64.0, 4.0
ABOUT = Benchmark(
    "swap_memory",
    "How much memory does a swap take on top of the daemon's state, and does any of it stay?",
    "bound; the memory that `peer manifest show` prints is not exceeded by much",
    smallest="--mb 1 --codecs bf16 --repeats 1 --small-mb 1 --swaps 4",
    is_long=True,
)
MB_PER_MIB = 2**20 / 1e6
SETTLING = 4
"""The first 1/SETTLING of the swaps is left out of the slope, because buffers first grow to their size."""


async def peaks(codec: str, elements: int, repeats: int, work: str) -> dict[str, float]:
    """Return the peaks of resident MB above the level before. The first swap of a process is reported apart."""
    async with pair(codec, elements, program=ROUND_END) as both:
        found: list[Found] = [await both.swap(work=work) for _ in range(repeats + 1)]
    state = found[0][0]["rss"] * MB_PER_MIB
    over = [
        max((end["peak"] - first["rss"]) * MB_PER_MIB for end, first in zip(turn, found[0], strict=True))
        for turn in found
    ]
    return {
        "first_mb": over[0],
        "last_mb": over[-1],
        "median_mb": statistics.median(over[1:]),
        "worst_mb": max(over),
        "process_before_mb": state,
        "values_mb": 4 * elements / 1e6,
        "seconds": statistics.median(max(end["seconds"] for end in turn) for turn in found[1:]),
    }


async def drift(codec: str, elements: int, swaps: int, work: str) -> dict[str, float]:
    """Return the drift of the resident size over many swaps: MB per hundred swaps, and from first to last."""
    async with pair(codec, elements, program=ROUND_END) as both:
        after = [[end["rss_after"] * MB_PER_MIB for end in await both.swap(work=work)] for _ in range(swaps)]
    late = after[swaps // SETTLING :]
    slopes = [100 * slope([turn[end] for turn in late]) for end in range(2)]
    return {
        "mb_per_100_swaps": max(slopes, key=abs),
        "after_first_mb": max(after[0]),
        "after_quarter_mb": max(late[0]),
        "after_last_mb": max(late[-1]),
        "swaps": swaps,
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--mb", type=float, default=256, help="million bytes of fp32")
    parser.add_argument("--codecs", default="bf16,int8,e3m0")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--small-mb", type=float, default=4)
    parser.add_argument("--swaps", type=int, default=200)
    parser.add_argument("--work", choices=("whole", "piled"), default="whole")
    given = parsed(parser, ABOUT)
    codecs: list[str] = given.codecs.split(",")
    large: dict[str, Any] = {
        codec: asyncio.run(peaks(codec, int(given.mb * 1e6 / 4), given.repeats, given.work)) for codec in codecs
    }
    elements = int(given.small_mb * 1e6 / 4)
    small = {codec: asyncio.run(drift(codec, elements, given.swaps, given.work)) for codec in codecs}
    heads = ["peak over state", "first MB", "last MB", "median MB", "worst MB", "process MB", "values MB", "seconds"]
    cells: list[list[Cell]] = [[codec, *row.values()] for codec, row in large.items()]
    peaked = Table(f"a fragment of {given.mb:g} MB", heads, cells)
    heads = ["resident size", "MB/100 swaps", "after the first", "after a quarter", "after the last", "swaps"]
    rows: list[list[Cell]] = [[codec, *row.values()] for codec, row in small.items()]
    figures = [Figure(f"peak, {codec}", "MB", row["worst_mb"], PEAK_MB) for codec, row in large.items()]
    figures += [
        Figure(f"drift, {codec}", "MB/100 swaps", one["mb_per_100_swaps"], DRIFT_MB) for codec, one in small.items()
    ]
    publish(given, ABOUT, figures, peaked, Table(f"a fragment of {given.small_mb:g} MB", heads, rows))


if __name__ == "__main__":
    main()
