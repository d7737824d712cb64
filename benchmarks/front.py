"""What does the accepting front cost a swap?

Promise: none. Every byte of a call passes the front of the peer that was called, between its own socket and
that of gRPC. About two minutes.

    python -m benchmarks.front [--mb 256] [--repeats 9] [--codec bf16] [--json FILE] [--results]

Two processes run the daemon's own swap over loopback TLS (`benchmarks.front_end`). They call each other by turns
through the front and past it. Before each measured swap an unmeasured one makes the connection. Processor seconds are
those of both processes. Figures are medians, and ratios are of neighbouring turns."""

from __future__ import annotations

import asyncio
import statistics

from benchmarks.result import Benchmark, Figure, Table, options, publish
from peer.lab.bench.pair import Pair, pair
from peer.run.codec_specs import FORMS

FRONT_END = "benchmarks.front_end"
ABOUT = Benchmark(
    "front", "What does the accepting front cost a swap?", "none; it tells the price of counting callers before TLS"
)
WAYS = ("past", "front")


async def one(both: Pair, via: str) -> dict[str, float]:
    await both.swap(via=via)
    found = await both.swap(via=via)
    return {
        "seconds": max(end["seconds"] for end in found),
        "cpu_s": sum(end["cpu_s"] for end in found),
        "stall_ms": max(max(end["late_ms"]) for end in found),
    }


async def measure(codec: str, elements: int, repeats: int) -> dict[str, list[dict[str, float]]]:
    """The turns of each way. The way that begins changes with every turn."""
    turns: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    async with pair(codec, elements, program=FRONT_END) as both:
        for number in range(repeats):
            for way in WAYS if number % 2 else reversed(WAYS):
                turns[way].append(await one(both, way))
    return turns


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--mb", type=float, default=256, help="million bytes of fp32")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--codec", default="bf16")
    given = parser.parse_args()
    elements = int(given.mb * 1e6 / 4)
    spliced = 2 * FORMS[given.codec].nbytes(elements) / 1e9
    turns = asyncio.run(measure(given.codec, elements, given.repeats))
    middle = {
        way: {what: statistics.median(turn[what] for turn in turns[way]) for what in turns[way][0]} for way in WAYS
    }
    pairs = list(zip(turns["past"], turns["front"], strict=True))
    extra = statistics.median(front["cpu_s"] - past["cpu_s"] for past, front in pairs)
    figures = [
        Figure("seconds of a swap, times without the front", "", _ratio(pairs, "seconds")),
        Figure("processor seconds of a swap, times without the front", "", _ratio(pairs, "cpu_s")),
        Figure("processor seconds of the front", "s/GB", extra / spliced),
    ]
    rows = [[way, *middle[way].values(), spliced / middle[way]["seconds"]] for way in WAYS]
    heads = ["", "seconds", "CPU s of both", "longest stall, ms", "GB/s, both ways"]
    publish(given, ABOUT, figures, Table(f"{given.codec}, {given.mb:g} MB of fp32 each way", heads, rows))


def _ratio(pairs: list[tuple[dict[str, float], dict[str, float]]], what: str) -> float:
    return statistics.median(front[what] / past[what] for past, front in pairs)


if __name__ == "__main__":
    main()
