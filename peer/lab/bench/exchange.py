"""Measures a swap of a whole fragment between two processes of this machine: both ways at once, over gRPC with TLS,
including decoding and accumulating. Optionally alternates with gloo's all-reduce of the same fp32 values,
unencrypted."""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path
from typing import Any

from peer.codec.registry import EVERY
from peer.errors import UsageError
from peer.python_child import popen_python
from peer.user_folders import temporary_folder

REPEATS = 5
TIMEOUT_S = 600.0


def measure(codec: str, mb: float, against: str = "", repeats: int = REPEATS, cap: float = 0.0) -> dict[str, Any]:
    """Return the medians over `repeats` of the seconds until both ends have everything, and of the processor seconds of
    both processes together. mb: million bytes of fp32. against: "" or "gloo". cap: bytes per second each way; 0: none.

    Raises UsageError."""
    if codec not in EVERY:
        raise UsageError(f"there is no codec {codec!r}", f"Known: {', '.join(sorted(EVERY))}.")
    if not 0.1 <= mb <= 2048:
        raise UsageError(f"--mb {mb:g} cannot be measured", "Give 0.1 to 2048.")
    if against not in ("", "gloo"):
        raise UsageError(f"--against {against!r} is not known", "Known: gloo.")
    with temporary_folder("peer-bench-") as folder:
        store = str(Path(folder) / "store") if against else ""
        results = _both([codec, str(int(mb * 1e6 / 4)), str(repeats), store, str(cap)])
    found: dict[str, Any] = {"codec": codec, "mb": mb, "repeats": repeats}
    for what, names in (("swap", ("seconds", "cpu_seconds")), ("gloo", ("gloo_seconds", "gloo_cpu_seconds"))):
        if what in results[0]["seconds"]:
            found[names[0]] = statistics.median(map(max, _turns(results, "seconds", what)))
            found[names[1]] = statistics.median(map(sum, _turns(results, "cpu", what)))
    found["peak_mib"] = max(result["peak_mib"] for result in results)
    return found


def _turns(results: list[dict[str, Any]], kind: str, what: str) -> list[tuple[float, ...]]:
    """Return for each repetition the measurements of both ends."""
    return list(zip(*(result[kind][what] for result in results), strict=True))


def _both(arguments: list[str]) -> list[dict[str, Any]]:
    """Start both ends, send each the other's record, and return their results."""
    ends = [
        popen_python(
            "peer.lab.bench.transport_process",
            str(rank),
            *arguments,
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
        return [_line(end) for end in ends]
    finally:
        for end in ends:
            end.kill()
            end.communicate()


def _line(end: subprocess.Popen[str]) -> dict[str, Any]:
    assert end.stdout is not None
    line = end.stdout.readline()
    if not line:
        raise UsageError("an end of the benchmark gave up", "Its message is above.")
    said: dict[str, Any] = json.loads(line)
    return said
