"""How much memory does a group's round take on top of the daemon's state, and does any of it stay? Linux only.

Promise: none by number; `peer manifest show` prints a daemon's memory, and a round may add little to it. Bound: 64 MB
at the peak. The drift is reported without a bound. About four minutes.

    python -m benchmarks.group_memory [--mb 256] [--codecs fp32,int4] [--members 3] [--repeats 5] [--work whole|piled]
                                      [--small-mb 4] [--rounds 100] [--json FILE] [--results]

As `benchmarks.swap_memory`, with three processes (`benchmarks.group_end`). Each is a member and the owner of a shard.
fp32 has results in fp32 as in the preset `diloco`, and int4 has results in fp16 as in `streaming-diloco`. The peak is
that of the member whose resident size rises most. Then many rounds of a small fragment give the drift.

fp32 cannot keep the bound at this size: an owner holds the other members' contributions until they are complete."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from benchmarks.swap_memory import MB_PER_MIB, PEAK_MB, SETTLING
from peer.lab.bench.pair import Found, group
from peer.lab.bench.tables import slope

GROUP_END = "benchmarks.group_end"
ABOUT = Benchmark(
    "group_memory",
    "How much memory does a group's round take on top of the daemon's state, and does any of it stay?",
    "bound; the memory that `peer manifest show` prints is not exceeded by much",
    smallest="--mb 1 --codecs fp32 --repeats 1 --small-mb 1 --rounds 4",
    is_long=True,
)


async def peaks(codec: str, elements: int, members: int, repeats: int, work: str) -> dict[str, float]:
    """Return the peak of resident MB above the level before the first round."""
    async with group(codec, elements, members, GROUP_END) as all_:
        found: list[Found] = [await all_.swap(work=work) for _ in range(repeats + 1)]
    state = [end["rss"] * MB_PER_MIB for end in found[0]]
    over = [max(end["peak"] * MB_PER_MIB - rss for end, rss in zip(turn, state, strict=True)) for turn in found]
    stays = max(end["rss_after"] * MB_PER_MIB - rss for end, rss in zip(found[-1], state, strict=True))
    return {
        "first_mb": over[0],
        "last_mb": over[-1],
        "median_mb": statistics.median(over[1:]),
        "worst_mb": max(over),
        "stays_mb": stays,
        "process_before_mb": max(state),
        "seconds": statistics.median(max(end["seconds"] for end in turn) for turn in found[1:]),
    }


async def drift(codec: str, elements: int, members: int, rounds: int, work: str) -> dict[str, float]:
    """Return the drift of the resident size over many rounds: MB per hundred rounds, and from first to last."""
    async with group(codec, elements, members, GROUP_END) as all_:
        after = [[end["rss_after"] * MB_PER_MIB for end in await all_.swap(work=work)] for _ in range(rounds)]
    late = after[rounds // SETTLING :]
    slopes = [100 * slope([turn[end] for turn in late]) for end in range(members)]
    return {
        "mb_per_100_rounds": max(slopes, key=abs),
        "after_first_mb": max(after[0]),
        "after_quarter_mb": max(late[0]),
        "after_last_mb": max(late[-1]),
        "rounds": rounds,
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--mb", type=float, default=256, help="million bytes of fp32")
    parser.add_argument("--codecs", default="fp32,int4")
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--small-mb", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--work", choices=("whole", "piled"), default="whole")
    given = parsed(parser, ABOUT)
    codecs: list[str] = given.codecs.split(",")
    members, elements = given.members, int(given.mb * 1e6 / 4)
    large: dict[str, Any] = {
        codec: asyncio.run(peaks(codec, elements, members, given.repeats, given.work)) for codec in codecs
    }
    heads = ["peak over state", "first MB", "last MB", "median MB", "worst MB", "stays MB", "process MB", "seconds"]
    rows = [[codec, *row.values()] for codec, row in large.items()]
    peaked = Table(f"a fragment of {given.mb:g} MB, a group of {members}", heads, rows)
    elements = int(given.small_mb * 1e6 / 4)
    small = {codec: asyncio.run(drift(codec, elements, members, given.rounds, given.work)) for codec in codecs}
    heads = ["resident size", "MB/100 rounds", "after the first", "after a quarter", "after the last", "rounds"]
    rows = [[codec, *row.values()] for codec, row in small.items()]
    figures = [Figure(f"peak, {codec}", "MB", row["worst_mb"], PEAK_MB) for codec, row in large.items()]
    figures += [Figure(f"drift, {codec}", "MB/100 rounds", one["mb_per_100_rounds"]) for codec, one in small.items()]
    publish(given, ABOUT, figures, peaked, Table(f"a fragment of {given.small_mb:g} MB", heads, rows))


if __name__ == "__main__":
    main()
