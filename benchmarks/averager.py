"""One of two processes that average a tensor with hivemind's `DecentralizedAverager` as it ships. It runs in its own
process because it forks, and imports nothing of `peer`. `benchmarks.exchange` controls it with lines of JSON.

    {"elements": …, "codec": "none" or "float16", "initial_peers": […], "rank": 0 or 1}"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

MATCHMAKING_S = 1.0
STEP_S = 120.0


def family() -> set[int]:
    """Return the pids of this process and its descendants: the averager, the DHT, the helper in Go."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def cpu_s() -> float:
    """Return the processor seconds used so far by this process and its descendants."""
    total = 0
    for pid in family():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def compression(name: str) -> Any:
    from hivemind import compression as ways

    known = {"none": "NoCompression", "float16": "Float16Compression", "uniform8": "Uniform8BitQuantization"}
    return getattr(ways, known[name])()


def values_of(rank: int, elements: int) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(rank))


def serve(setting: dict[str, Any]) -> None:
    """Run a round for each line of stdin. Checks the result, because the averager also reports success when it averaged
    nothing."""
    import hivemind
    from hivemind.averaging import DecentralizedAverager

    rank, elements = setting["rank"], setting["elements"]
    own, mean = values_of(rank, elements), (values_of(0, elements) + values_of(1, elements)) / 2
    where = {"host_maddrs": ["/ip4/127.0.0.1/tcp/0"], "use_relay": False, "nat_port_map": False}
    dht = hivemind.DHT(initial_peers=setting["initial_peers"], start=True, **where)
    averager = DecentralizedAverager(
        [own.clone()],
        dht,
        start=True,
        prefix=f"bench_{setting['codec']}",
        target_group_size=2,
        min_matchmaking_time=MATCHMAKING_S,
        compression=compression(setting["codec"]),
    )
    try:
        say({"maddrs": [str(maddr) for maddr in dht.get_visible_maddrs()]})
        while sys.stdin.readline():
            with averager.get_tensors() as tensors:
                tensors[0].copy_(own)
            before, began = cpu_s(), time.perf_counter()
            averager.step(timeout=STEP_S)
            seconds, cpu = time.perf_counter() - began, cpu_s() - before
            with averager.get_tensors() as tensors:
                error = float((tensors[0] - mean).norm() / mean.norm())
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            say({"seconds": seconds, "cpu_s": cpu, "error": error, "peak_mib": peak})
    finally:
        averager.shutdown()
        dht.shutdown()


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    serve(json.loads(sys.argv[1]))


if __name__ == "__main__":
    main()
