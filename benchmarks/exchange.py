"""How long do two peers take to swap a fragment, compared with libraries that average it?

Promise 9, caps win: between two homes 0.98 of the cap is used. No window of two seconds holds more than the cap allows
in two seconds. Bounds over loopback: hivemind's fastest codec takes at least four times as long as bf16. At 256 MB,
e3m0 takes at most 0.5 times as long as gloo, int8 0.75 and bf16 1.4 times. Three minutes over loopback, three between
two homes.

    python -m benchmarks.exchange [--mb 16,64,256] [--codecs …] [--repeats 5] [--json FILE] [--results]
    python -m benchmarks.exchange --link home [--seconds 5] [--repeats 5] [--json FILE] [--results]

Over loopback: `peer bench exchange` (two processes, both ways at once, TLS, decoding and accumulating included) for
each codec. In the same processes gloo's all-reduce of the same fp32, in the clear, takes turns with it. Around every
codec hivemind's averager plays rounds, uncompressed and with float16, the fastest of its codecs that runs here. Its
results are checked. Figures are medians.

With `--link home` the daemon's own exchange runs over a paced link between two homes. It has 10 Mbit/s up and 100 down,
80 ms there and back, and an upload cap of 9 Mbit/s. Two cores cannot keep the bounds against gloo."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from benchmarks.homelink import Line, Link, fullest, rate_of, relay
from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.codec.registry import EVERY
from peer.errors import UsageError
from peer.lab.bench.exchange import measure as swap_of
from peer.lab.bench.pair import pair, read_line, send_line, stop
from peer.python_child import start_python

AVERAGERS = ("none", "float16")
RIGHT = 0.01
"""Largest accepted error of an average, relative to its norm."""
UP, DOWN, RTT_S = 10e6 / 8, 100e6 / 8, 0.080
CAP = 0.9 * UP
WINDOW_S = 2.0
USED, FULLEST = 0.98, 1.0
"""Bounds as shares of the cap: least use of the line, and most in the fullest window."""
HIVEMIND_OVER_BF16 = 4.0
TIMES_GLOO = {"e3m0": 0.5, "int8": 0.75, "bf16": 1.4}
AT_MB = 256.0
"""The size in MB to which the bounds of `TIMES_GLOO` apply."""
ABOUT = Benchmark(
    "exchange",
    "How long do two peers take to swap a fragment, compared with libraries that average it?",
    "bound; 9 (caps win) between two homes",
    smallest="--mb 1 --codecs bf16 --repeats 1",
    is_long=True,
)


# -- over loopback ---------------------------------------------------------------------------------------------------


class Averagers:
    """Two running processes with hivemind's averager."""

    def __init__(self, ends: list[asyncio.subprocess.Process]) -> None:
        self._ends = ends
        self.rounds: list[dict[str, float]] = []

    async def round(self) -> None:
        for end in self._ends:
            await send_line(end, {})
        found = await asyncio.gather(*(read_line(end) for end in self._ends))
        seconds, error = max(one["seconds"] for one in found), max(one["error"] for one in found)
        self.rounds.append({"seconds": seconds, "cpu_seconds": sum(one["cpu_s"] for one in found), "error": error})

    def row(self) -> dict[str, Any]:
        """Return the row of the table. The first round, in which the two find each other, is left out; so are rounds
        that averaged nothing, which are only counted."""
        right = [row for row in self.rounds[1:] if row["error"] <= RIGHT]
        wrong = len(self.rounds) - 1 - len(right)
        if not right:
            return {"note": f"no round of {wrong} averaged anything"}
        return {
            "seconds": statistics.median(row["seconds"] for row in right),
            "cpu_seconds": statistics.median(row["cpu_seconds"] for row in right),
            "turns": len(right),
            "wrong": wrong,
        }


@asynccontextmanager
async def averagers(codec: str, elements: int) -> AsyncIterator[Averagers]:
    """Start two averagers. Raises UsageError if hivemind does not start."""
    ends: list[asyncio.subprocess.Process] = []
    known: list[str] = []
    try:
        for rank in range(2):
            setting = {"rank": rank, "elements": elements, "codec": codec, "initial_peers": known}
            ends.append(
                await start_python(
                    "benchmarks.averager",
                    json.dumps(setting),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    env=os.environ | {"HIVEMIND_LOGLEVEL": "CRITICAL"},
                )
            )
            known = (await read_line(ends[-1], 120.0))["maddrs"]
        yield Averagers(ends)
    finally:
        await asyncio.gather(*(stop(end) for end in ends))


async def one_size(mb: float, codecs: list[str], repeats: int) -> dict[str, Any]:
    """Measure one size. Return name -> row."""
    rows: dict[str, Any] = {}
    gloo: list[tuple[float, float]] = []
    async with AsyncExitStack() as stack:
        others = {}
        for name in AVERAGERS:
            try:
                others[name] = await stack.enter_async_context(averagers(name, int(mb * 1e6 / 4)))
                await others[name].round()
            except UsageError as error:
                others.pop(name, None)
                rows[f"hivemind {name}"] = {"note": f"does not run: {error}"}
        for codec in codecs:
            await _around(others, max(1, -(-repeats // (len(codecs) + 1))))
            found = await asyncio.to_thread(swap_of, codec, mb, "gloo", repeats)
            gloo.append((found["gloo_seconds"], found["gloo_cpu_seconds"]))
            rows[codec] = found | {"ratio": found["seconds"] / found["gloo_seconds"], "turns": repeats}
        await _around(others, max(1, -(-repeats // (len(codecs) + 1))))
    seconds, cpu = (statistics.median(one) for one in zip(*gloo, strict=True))
    rows["gloo fp32, in the clear"] = {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "ratio": 1.0,
        "turns": len(gloo) * repeats,
    }
    for name, other in others.items():
        row = other.row()
        rows[f"hivemind {name}"] = row | ({"ratio": row["seconds"] / seconds} if "seconds" in row else {})
    return rows


async def _around(others: dict[str, Averagers], rounds: int) -> None:
    for other in others.values():
        for _ in range(rounds):
            await other.round()


def cells(mb: float, rows: dict[str, Any]) -> Table:
    heads = ["", "seconds", "CPU s of both", "times gloo", "turns", "note"]
    keys = ("seconds", "cpu_seconds", "ratio", "turns", "note")
    return Table(f"{mb:g} MB of fp32 each way", heads, [[name, *map(row.get, keys)] for name, row in rows.items()])


def loopback(given: argparse.Namespace) -> None:
    figures, tables = list[Figure](), list[Table]()
    for mb in (float(size) for size in given.mb.split(",")):
        rows = asyncio.run(one_size(mb, given.codecs.split(","), given.repeats))
        tables.append(cells(mb, rows))
        for codec in filter(rows.__contains__, TIMES_GLOO):
            most = TIMES_GLOO[codec] if mb == AT_MB else None
            figures.append(Figure(f"{codec}, {mb:g} MB, times gloo", "", rows[codec]["ratio"], most))
        if "bf16" in rows and "seconds" in (hivemind := rows["hivemind float16"]):
            over = hivemind["seconds"] / rows["bf16"]["seconds"]
            figures.append(Figure(f"hivemind float16, {mb:g} MB, times bf16", "", over, None, HIVEMIND_OVER_BF16))
    publish(given, ABOUT, figures, *tables)


# -- between two homes -----------------------------------------------------------------------------------------------


async def home(codec: str, seconds: float, repeats: int) -> dict[str, float]:
    """Measure swaps between two homes. Return medians over the turns of the worse direction, and the worst fullest
    window."""
    elements = max(2**18, int(seconds * CAP / EVERY[codec].nbytes(2**20) * 2**20))
    line = Line(min(UP, DOWN), RTT_S / 2)
    ways = Link(line), Link(line)  # from the first home and from the second
    async with AsyncExitStack() as stack:

        async def behind(number: int, endpoint: str) -> str:
            there, back = (ways[1], ways[0]) if number == 0 else (ways[0], ways[1])
            return await stack.enter_async_context(relay(endpoint, there, back))

        both = await stack.enter_async_context(pair(codec, elements, CAP, seen_at=behind))
        turns = []
        for _ in range(repeats + 1):
            for way in ways:
                way.passed.clear()
            found = await both.swap()
            turns.append(
                [_share(way, EVERY[codec].nbytes(elements), end) for way, end in zip(ways, found, strict=True)]
            )
    warm = turns[1:]
    return {
        "payload_mb": EVERY[codec].nbytes(elements) / 1e6,
        "seconds": statistics.median(max(way["seconds"] for way in turn) for turn in warm),
        "used_on_the_line": statistics.median(min(way["line"] for way in turn) for turn in warm),
        "used_by_payload": statistics.median(min(way["payload"] for way in turn) for turn in warm),
        "used_of_swap": statistics.median(min(way["whole"] for way in turn) for turn in warm),
        "fullest_window": max(way["fullest"] for turn in warm for way in turn),
    }


def _share(way: Link, payload: int, end: dict[str, Any]) -> dict[str, float]:
    """Return rates as shares of the cap: of all bytes while they flow (with TLS and HTTP/2), of the payload in them, of
    the payload over the swap's whole time, and of the fullest window."""
    line, total = rate_of(way.passed) / CAP, sum(nbytes for _, nbytes in way.passed)
    return {
        "seconds": end["seconds"],
        "line": line,
        "payload": line * payload / total,
        "whole": payload / end["seconds"] / CAP,
        "fullest": fullest(way.passed, WINDOW_S) / (WINDOW_S * CAP),
    }


def homes(given: argparse.Namespace) -> None:
    rows = {codec: asyncio.run(home(codec, given.seconds, given.repeats)) for codec in given.codecs.split(",")}
    line = f"10 Mbit/s up, 100 down, {1e3 * RTT_S:.0f} ms; upload cap {CAP * 8 / 1e6:g} Mbit/s; {given.repeats} turns"
    heads = [
        "",
        "payload MB",
        "seconds",
        "cap used on the line",
        "by the payload",
        "of the whole swap",
        "fullest 2 s / cap",
    ]
    figures = []
    for codec, row in rows.items():
        figures.append(Figure(f"{codec}: cap used on the line", "", row["used_on_the_line"], None, USED))
        figures.append(Figure(f"{codec}: fullest 2 s, of the cap", "", row["fullest_window"], FULLEST))
    table = Table(line, heads, [[codec, *row.values()] for codec, row in rows.items()])
    publish(given, ABOUT, figures, table, variant="home")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--mb", default="16,64,256", help="million bytes of fp32, several with commas")
    parser.add_argument("--codecs", default=",".join(EVERY))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--link", choices=["loopback", "home"], default="loopback")
    parser.add_argument("--seconds", type=float, default=5.0, help="of the payload at the cap, with --link home")
    given = parsed(parser, ABOUT)
    (homes if given.link == "home" else loopback)(given)


if __name__ == "__main__":
    main()
