"""What does a relay see, and what does it cost? Linux, as root, with tcpdump.

Promises 9 (caps win) and 11 (no stranger decides). Bounds: a capture of whole swaps on the relay's interface shows no
payload and no word of the service. The fullest 2 s of what leaves on circuits are at most 1.02 of the cap. A relay
takes at most a tenth of a core at 1 MB/s.

    sudo python -m benchmarks.nat_capture secret|cap [--rate 1000000] [--homes 4] [--rounds N] [--sync-every 12]
                                          [--preset noloco] [--json [FILE]]

The homes' routers draw ports, so nothing is punched, and the bootstrap node is the only relay.

* `secret`: nothing is learned, so every payload holds the first parameters in fp32, which are known. Their 16-byte
  windows are searched in all streams at the relay. Two controls have to be found: the mark of circuits, and the same
  bytes sent over plain TCP. 2 minutes.
* `cap`: the relay has a cap, and the swaps want more. 3 minutes."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import math
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.capture import End, Packet, captured, packets, streams
from benchmarks.nat_network import home_site, inside, internet, open_site, why_not
from benchmarks.nat_swarm import PORT, NatSwarm, Run, complaints, json_option, processor_s, write
from peer.transport.relay.wire import MARK

UNLEARNED = ("optimizer.lr=1e-30", "optimizer.weight_decay=0.0", "sync.codec=fp32")
LARGE = ("model.hidden_size=256", "model.intermediate_size=704", "sync.codec=bf16")
"""3.5 MB a payload, half of that where a round exchanges half of the model."""
WORDS = (b"peer.v1", b"peer-token", b"grpc")
"""Name of the service. The head of each of its calls has it."""
WINDOW, ALIGNED = 16, 4
LEAST_DISTINCT = 5
"""Different bytes of a window that is searched: others would be found by chance."""
CONTROL_PORT = 4899
WINDOW_S, MOST_OF_THE_CAP = 2.0, 1.02
MOST_OF_A_CORE, RATE_OF_THE_BOUND = 0.1, 1e6
BUSY = 100_000
"""Bytes in a second: above, a relay is busy."""
KEPT = 160
"""Bytes of each packet for `cap`: all headers, and the mark."""
RELAY = open_site("relay", 1)


@contextlib.contextmanager
def relayed_swarm(given: argparse.Namespace, settings: tuple[str, ...]) -> Iterator[tuple[NatSwarm, dict[str, str]]]:
    """Homes that only the bootstrap node connects. With it comes the namespace of each host."""
    homes = [home_site(number, symmetric=True) for number in range(1, given.homes + 1)]
    with internet([RELAY, *homes]) as hosts, tempfile.TemporaryDirectory(prefix="peer-nat-") as folder:
        run = Run(given.preset, given.rounds, given.sync_every, settings)
        places = {site.name: hosts[f"{site.name}/{site.homes[0]}"] for site in homes}
        swarm = NatSwarm(Path(folder), run, {"relay": hosts["relay"]}, places)
        try:
            yield swarm, hosts
        except BaseException:
            print(swarm.words(), file=sys.stderr)
            raise


# -- secret ----------------------------------------------------------------------------------------------------------


def play_secret(given: argparse.Namespace) -> dict[str, Any]:
    with relayed_swarm(given, UNLEARNED) as (swarm, hosts):
        file = swarm.home / "capture"
        with captured(hosts["relay"], "wan", file):
            asyncio.run(swarm.play())
            outer = next(iter(swarm.accounts().values())).outer
            assert outer is not None, "no checkpoint"
            known = outer.numpy().tobytes()
            _send_plainly(hosts["relay"], hosts["home1/192.168.7.2"], known)
        report = swarm.report()
        ids = [daemon.peer_id.encode() for daemon in swarm.everybody.values()]
        seen = streams(packets(file))
    windows = windows_of(known)
    control = Counter[str]()
    service = Counter[str]()
    for (source, target), stream in seen.items():
        ports = {source[1], target[1]}
        if CONTROL_PORT in ports:
            control["windows of the payload"] += count(stream, windows)
        elif PORT in ports:
            control["marks of circuits"] += stream.startswith(MARK)
            service["bytes"] += len(stream)
            service["windows of the payload"] += count(stream, windows)
            service["peer ids"] += sum(map(stream.count, ids))
            for word in WORDS:
                service[word.decode()] += stream.count(word)
    wrong = complaints(report)
    wrong += [f"in the clear: {n} {what}" for what, n in service.items() if n and what not in ("bytes", "peer ids")]
    wrong += [f"control: no {what}" for what in ("windows of the payload", "marks of circuits") if not control[what]]
    return report | {"payload_bytes": len(known), "seen": service, "control": control, "complaints": wrong}


def windows_of(known: bytes) -> set[bytes]:
    """Return the windows of known plaintext that would hardly be found by chance."""
    cut = (known[place : place + WINDOW] for place in range(0, len(known) - WINDOW + 1, ALIGNED))
    return {window for window in cut if len(set(window)) >= LEAST_DISTINCT}


def count(stream: bytes, windows: set[bytes]) -> int:
    """Count the places of a stream at which one of these windows stands."""
    return sum(stream[place : place + WINDOW] in windows for place in range(len(stream) - WINDOW + 1))


def _send_plainly(relay: str, home: str, known: bytes) -> None:
    """Send what is known over plain TCP past the same capture: the search has to find it."""
    with inside(relay):
        server = socket.create_server((RELAY.public, CONTROL_PORT))
    with inside(home):
        sending = socket.create_connection((RELAY.public, CONTROL_PORT), timeout=10)
    with server, sending:
        taking, _ = server.accept()
        with taking:
            for start in range(0, len(known), 4096):
                sending.sendall(known[start : start + 4096])
                left = len(known[start : start + 4096])
                while left:
                    left -= len(taking.recv(left))


# -- cap -------------------------------------------------------------------------------------------------------------


def play_cap(given: argparse.Namespace) -> dict[str, Any]:
    used: list[tuple[float, float]] = []
    with relayed_swarm(given, LARGE) as (swarm, hosts):
        swarm.let("relay", "--relay", str(given.rate))
        for name in swarm.peers:
            swarm.let(name, "--step-seconds", "2.0")
        file = swarm.home / "capture"
        with captured(hosts["relay"], "wan", file, KEPT):
            asyncio.run(swarm.play(_watch_processor(swarm, used)))
        report, sent = swarm.report(), leaving_on_circuits(packets(file))
    fullest = fullest_window(sent, WINDOW_S) / WINDOW_S / given.rate
    idle, each = cost(used, sent)
    core = each / 1e9 * RATE_OF_THE_BOUND
    found = {
        "cap": given.rate,
        "relayed_bytes": sum(size for _, size in sent),
        "fullest_2s_of_cap": round(fullest, 4),
        "idle_part_of_a_core": round(idle, 4),
        "processor_s_per_gb": round(each, 1),
        "part_of_a_core_at_1_mb_s": round(core, 4),
    }
    wrong = complaints(report)
    wrong += ["nothing was relayed"] * (not sent)
    wrong += [f"the fullest 2 s are {fullest:.3f} of the cap"] * (fullest > MOST_OF_THE_CAP)
    wrong += [f"{core:.2f} of a core at 1 MB/s"] * (core > MOST_OF_A_CORE)
    return report | {"relaying": found, "complaints": wrong}


async def _watch_processor(swarm: NatSwarm, used: list[tuple[float, float]]) -> None:
    """Note when the relay's process has used how many processor seconds, from when everybody trains."""
    while True:
        used.append((time.time(), processor_s(swarm.nodes["relay"].pid)))
        await asyncio.sleep(1.0)


def cost(used: Sequence[tuple[float, float]], sent: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Return the part of a core that the process takes in seconds without a relayed byte, and the processor seconds of
    a relayed gigabyte in busy seconds, with all that the process did then."""
    seconds = [
        (end - begin, after - before, sum(size for at, size in sent if begin <= at < end))
        for (begin, before), (end, after) in itertools.pairwise(used)
        if sent and begin > sent[0][0]
    ]
    busy, idle = [one for one in seconds if one[2] > BUSY], [one for one in seconds if not one[2]]
    rate = sum(spent for _, spent, _ in idle) / sum(length for length, _, _ in idle) if idle else math.nan
    return rate, sum(spent for _, spent, _ in busy) / sum(size for *_, size in busy) * 1e9 if busy else math.nan


def leaving_on_circuits(found: Iterable[Packet]) -> list[tuple[float, int]]:
    """Return (when, bytes) of what a relay sends on connections that began with the mark of a circuit."""
    circuits: set[End] = set()
    sent = []
    for packet in found:
        if packet.target == (RELAY.public, PORT):
            if packet.opens:
                circuits.discard(packet.source)
            elif packet.payload.startswith(MARK):
                circuits.add(packet.source)
        elif packet.source == (RELAY.public, PORT) and packet.target in circuits and packet.size > 0:
            sent.append((packet.at, packet.size))
    return sent


def fullest_window(sent: Sequence[tuple[float, int]], seconds: float) -> int:
    """Return the most bytes of any span of this length."""
    most = inside_it = first = 0
    for at, size in sent:
        inside_it += size
        while sent[first][0] <= at - seconds:
            inside_it -= sent[first][1]
            first += 1
        most = max(most, inside_it)
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["secret", "cap"])
    parser.add_argument("--rate", type=int, default=1_000_000, help="of the relay, bytes a second")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--homes", type=int, default=4)
    parser.add_argument("--preset", default="noloco")
    parser.add_argument("--sync-every", type=float, default=12.0)
    json_option(parser)
    given = parser.parse_args()
    if reason := why_not("tcpdump"):
        sys.exit(reason)
    report = (play_secret if given.what == "secret" else play_cap)(given)
    print("; ".join(report["complaints"]) or "as it should be", file=sys.stderr)
    write(report, given.json)
    sys.exit(bool(report["complaints"]))


if __name__ == "__main__":
    main()
