"""How long does the daemon's event loop stand still during a swap of a large fragment?

Promise 5: control beats bulk, for a loop that stands still answers no call. Bound: the event loop stands still for at
most 20 ms. About a minute.

    python -m benchmarks.loop_stalls [--mb 256] [--codecs bf16,int8] [--repeats 5] [--json FILE] [--results]

Two processes run the daemon's own exchange, bulk thread and transport, over loopback TLS. The loop asks to be woken
every millisecond. A stall is by how much later it was. Turns with a swap and turns without one alternate, for a busy
machine holds up a process that sleeps, too."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.lab.bench.pair import Found, pair
from peer.lab.bench.tables import percentile

WANTED_MS = 20.0
ABOUT = Benchmark(
    "loop_stalls",
    "How long does the daemon's event loop stand still during a swap of a large fragment?",
    "5 (control beats bulk)",
    smallest="--mb 1 --codecs bf16 --repeats 1",
)


def row(found: list[Found]) -> dict[str, float]:
    """Summarize both ends over all turns, in ms. `worst_median`: median over turns of the worst stall, because another
    program may disturb one turn."""
    worst = [max(max(end["late_ms"]) for end in turn) for turn in found]
    late = [late for turn in found for end in turn for late in end["late_ms"]]
    seconds = statistics.median(max(end["seconds"] for end in turn) for turn in found)
    return {
        "p50_ms": percentile(late, 0.5),
        "p99_ms": percentile(late, 0.99),
        "worst_ms": max(worst),
        "worst_median_ms": statistics.median(worst),
        "over_wanted": float(sum(late > WANTED_MS for late in late)),
        "seconds": seconds,
    }


async def measure(codec: str, elements: int, repeats: int) -> dict[str, dict[str, float]]:
    """Return the rows `swap` and `idle`."""
    swaps, idles = list[Found](), list[Found]()
    async with pair(codec, elements) as both:
        await both.swap()
        for _ in range(repeats):
            swaps.append(await both.swap())
            idles.append(await both.idle(max(end["seconds"] for end in swaps[-1])))
    return {"swap": row(swaps), "idle": row(idles)}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--mb", type=float, default=256, help="million bytes of fp32")
    parser.add_argument("--codecs", default="bf16,int8")
    parser.add_argument("--repeats", type=int, default=5)
    given = parsed(parser, ABOUT)
    found: dict[str, Any] = {}
    for codec in given.codecs.split(","):
        found[codec] = asyncio.run(measure(codec, int(given.mb * 1e6 / 4), given.repeats))
    rows = [[f"{codec} {what}", *row.values()] for codec, both in found.items() for what, row in both.items()]
    heads = ["", "p50 ms", "p99 ms", "worst ms", "median of worst ms", f"times over {WANTED_MS:g} ms", "seconds"]
    figures = [
        Figure(f"worst stall, {name}", "ms", both["swap"]["worst_ms"], WANTED_MS) for name, both in found.items()
    ]
    publish(given, ABOUT, figures, Table(f"{given.mb:g} MB of fp32, {given.repeats} turns", heads, rows))


if __name__ == "__main__":
    main()
