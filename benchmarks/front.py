"""What does the front cost, which ends TLS and walks HTTP/2 before gRPC sees a byte?

Bound: a swap takes at most 5 % more processor time than with the front before, which handed encrypted bytes to gRPC.

    python -m benchmarks.front [--mb 64] [--repeats 4] [--turns 5] [--before COMMIT] [--json FILE] [--results]

Two processes swap a bf16 fragment over loopback (`peer.lab.bench.transport_process`), three ways by turns: without a
front, where callers reach gRPC itself; with the front of `--before`, by default the last commit before this one; and
with the front as it is. The first two run the program of that commit, from a work tree that is removed at the end.
Figures are medians of the processor seconds of both processes, over all turns. About four minutes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.result import ROOT, Benchmark, Figure, Table, options, parsed, publish
from peer.errors import UsageError

ABOUT = Benchmark(
    "front",
    "What does the front cost, which ends TLS and walks HTTP/2 before gRPC sees a byte?",
    "6 (every length is bounded before it is trusted), at 5 % of a swap's processor time",
    smallest="--mb 1 --repeats 2 --turns 1",
    is_long=True,
)
BEFORE = "9f1cf83"
"""The last commit whose front spliced encrypted bytes."""
MOST_MORE = 1.05
WAYS = ("without", "before", "now")


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Make a work tree of a commit, with the kernels that were built here. Raises UsageError."""
    with tempfile.TemporaryDirectory(prefix="peer-bench-") as folder:
        tree = Path(folder) / "before"
        git = ["git", "-C", str(ROOT), "worktree"]
        made = subprocess.run([*git, "add", "--detach", str(tree), commit], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise UsageError(
                f"no work tree of {commit}: {made.stderr.strip()}", "Run it in a clone with the whole history."
            )
        try:
            for kernels in (ROOT / "peer/codec").glob("_kernels*.so"):
                shutil.copy(kernels, tree / "peer/codec")
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], capture_output=True, check=False)


def swap(tree: Path, elements: int, repeats: int, *, direct: bool = False) -> tuple[float, float]:
    """Swap a fragment between two processes that run the program of a work tree. `direct`: without its front.

    Return medians of the seconds of the slower process, and of the processor seconds of both."""
    module = [str(Path(__file__).resolve()), "direct"] if direct else ["-m", "peer.lab.bench.transport_process"]
    ends = [
        subprocess.Popen(
            [sys.executable, "-P", *module, str(rank), "bf16", str(elements), str(repeats), "", "0.0"],
            env=os.environ | {"PYTHONPATH": str(tree)},
            cwd=tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        records = [_line(end) for end in ends]
        for end, record in zip(ends, reversed(records), strict=True):
            assert end.stdin is not None
            end.stdin.write(json.dumps(record) + "\n")
            end.stdin.flush()
        found = [_line(end) for end in ends]
    finally:
        for end in ends:
            end.kill()
            end.communicate()
    seconds = zip(*(one["seconds"]["swap"] for one in found), strict=True)
    cpu = zip(*(one["cpu"]["swap"] for one in found), strict=True)
    return statistics.median(map(max, seconds)), statistics.median(map(sum, cpu))


def _line(end: subprocess.Popen[str]) -> dict[str, Any]:
    assert end.stdout is not None
    line = end.stdout.readline()
    if not line:
        raise UsageError("an end of the benchmark gave up", "Its message is above.")
    said: dict[str, Any] = json.loads(line)
    return said


def direct() -> None:
    """Run an end of a swap whose callers connect to gRPC directly. For programs whose front passes encrypted bytes on
    to gRPC."""
    import grpc

    from peer.lab.bench import transport_process
    from peer.transport import tls
    from peer.transport.front.callers import CallerTable
    from peer.transport.server import listener

    async def start(self: Any, host: str, port: int, *more_hosts: str) -> int:
        self._server = grpc.aio.server(options=listener.SERVER_OPTIONS, maximum_concurrent_rpcs=listener.MAX_CALLS)
        self._server.add_generic_rpc_handlers((self._handlers(),))
        credentials = tls.server_credentials(self._config.identity)  # type: ignore[attr-defined]
        bound: int = self._server.add_secure_port(f"{host}:{port}", credentials)
        await self._server.start()
        return bound

    listener.ExchangeServer.start = start  # type: ignore[attr-defined]
    CallerTable.origin = lambda self, seen_as: seen_as  # type: ignore[method-assign]
    del sys.argv[1]
    transport_process.main()


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--mb", type=float, default=64.0, help="million bytes of fp32")
    parser.add_argument("--repeats", type=int, default=4, help="swaps of each turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--before", default=BEFORE, metavar="COMMIT")
    given = parsed(parser, ABOUT)
    elements = int(given.mb * 1e6 / 4)
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    with checkout(given.before) as tree:
        for turn in range(given.turns):
            order = WAYS if turn % 2 == 0 else WAYS[::-1]
            for way in order:
                here = ROOT if way == "now" else tree
                found[way].append(swap(here, elements, given.repeats, direct=way == "without"))
                print(f"turn {turn + 1}, {way}: {found[way][-1][1]:.3f} processor seconds a swap", flush=True)
    seconds, cpu = ({way: statistics.median(one[place] for one in found[way]) for way in WAYS} for place in (0, 1))
    figures = [
        Figure("processor time of a swap over that before", "", cpu["now"] / cpu["before"], at_most=MOST_MORE),
        Figure("processor time of a swap over that without a front", "", cpu["now"] / cpu["without"]),
    ]
    rows = [(way, cpu[way], cpu[way] / given.mb * 1000 / 2, seconds[way]) for way in WAYS]
    heads = ("front", "processor seconds of a swap", "of a GB of fp32 each way", "seconds")
    return 0 if publish(given, ABOUT, figures, Table(f"{given.mb:g} MB of fp32 each way, bf16", heads, rows)) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["direct"]:
        direct()
    else:
        sys.exit(main())
