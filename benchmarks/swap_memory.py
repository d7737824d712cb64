"""What memory does a swap take beside the fragment itself, and does any of it stay?

    python -m benchmarks.swap_memory [--mb 256] [--codecs fp32,bf16] [--repeats 5] [--small-mb 4] [--swaps 200]
                                     [--json FILE]

Two processes with the daemon's own exchange over loopback TLS. Before a swap each holds its params and outer_params of
the fragment; counted is by how much its resident size rises above that at most (VmHWM, counted anew for each swap),
the partner's values that the exchange returns included. Wanted: at most 64 MB. Then many swaps of a smaller fragment:
the slope of the resident size, which should be flat. Linux only."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

from peer.bench.pair import Found, pair
from peer.bench.tables import options, slope, table, write

WANTED_MB = 64.0
MB_PER_MIB = 2**20 / 1e6
SETTLING = 4
"""This part of the swaps, a quarter, is left out of the slope: buffers grow to their size."""


async def peaks(codec: str, elements: int, repeats: int) -> dict[str, float]:
    """MB over what was resident before; the first swap of a process counts for itself."""
    async with pair(codec, elements) as both:
        found: list[Found] = [await both.swap() for _ in range(repeats + 1)]
    state = found[0][0]["rss"] * MB_PER_MIB
    over = [
        max((end["peak"] - first["rss"]) * MB_PER_MIB for end, first in zip(turn, found[0], strict=True))
        for turn in found
    ]
    return {
        "first_mb": over[0],
        "median_mb": statistics.median(over[1:]),
        "worst_mb": max(over),
        "process_before_mb": state,
        "values_mb": 4 * elements / 1e6,
        "seconds": statistics.median(max(end["seconds"] for end in turn) for turn in found[1:]),
    }


async def drift(codec: str, elements: int, swaps: int) -> dict[str, float]:
    """The resident size after each of many swaps: MB a hundred swaps, and first to last."""
    async with pair(codec, elements) as both:
        after = [[end["rss_after"] * MB_PER_MIB for end in await both.swap()] for _ in range(swaps)]
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
    parser.add_argument("--codecs", default="fp32,bf16,int8")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--small-mb", type=float, default=4)
    parser.add_argument("--swaps", type=int, default=200)
    given = parser.parse_args()
    codecs: list[str] = given.codecs.split(",")
    large: dict[str, Any] = {
        codec: asyncio.run(peaks(codec, int(given.mb * 1e6 / 4), given.repeats)) for codec in codecs
    }
    small = {codec: asyncio.run(drift(codec, int(given.small_mb * 1e6 / 4), given.swaps)) for codec in codecs[-2:]}
    heads = ["peak over state", "first MB", "median MB", "worst MB", "process MB", "values MB", "seconds"]
    print(f"a fragment of {given.mb:g} MB; wanted: {WANTED_MB:g}")
    print(table(heads, [[codec, *row.values()] for codec, row in large.items()]))
    heads = ["resident size", "MB/100 swaps", "after the first", "after a quarter", "after the last", "swaps"]
    print(f"a fragment of {given.small_mb:g} MB")
    print(table(heads, [[codec, *row.values()] for codec, row in small.items()]))
    write(
        given.json, {"mb": given.mb, "wanted_mb": WANTED_MB, "peaks": large, "small_mb": given.small_mb, "drift": small}
    )


if __name__ == "__main__":
    main()
