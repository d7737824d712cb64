"""How little time can a swap over TLS take on this machine, whatever carries it?

Promise: none; the figures say how far `times gloo` of `benchmarks.exchange` can fall. About two minutes.

    python -m benchmarks.exchange_floor [--mb 256] [--repeats 5] [--json FILE] [--results]

Our kernels work with blocking sockets, with TLS 1.3 or in the clear. Each direction has a socket, and a thread for each
end of it. There is no gRPC, no event loop, no frame, no check, and nothing that bounds what a stranger may send. gloo's
all-reduce of the same fp32 takes turns with it."""

from __future__ import annotations

import datetime
import json
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.result import Benchmark, Figure, Table, options, publish
from peer.codec.plain import TILE, Codec
from peer.codec.registry import EVERY
from peer.codec.stream import Adding, Encoding
from peer.identity import Identity
from peer.lab.bench.transport_process import Turns
from peer.node.process import tune
from peer.python_child import popen_python
from peer.transport.tls import leaf_for

CODECS = ("e3m0", "int8", "bf16")
ABOUT = Benchmark(
    "exchange_floor",
    "How little time can a swap over TLS take on this machine, whatever carries it?",
    "yardstick of `exchange`",
)
WRITE = 2**20
"""About so many bytes are encoded and sent at once."""


class Wire:
    """One end: what it sends goes over `out`, what comes over `back`."""

    def __init__(self, out: socket.socket, back: socket.socket) -> None:
        self.out, self.back = out, back

    def swap(self, source: Encoding, sink: Adding) -> None:
        sender = threading.Thread(target=self._send, args=(source,))
        sender.start()
        self._receive(source.grain, sink)
        sender.join()

    def _send(self, source: Encoding) -> None:
        step = max(1, WRITE // source.grain) * source.grain
        for offset in range(0, source.nbytes, step):
            self.out.sendall(source.read(offset, min(step, source.nbytes - offset)))

    def _receive(self, grain: int, sink: Adding) -> None:
        step = max(1, WRITE // grain) * grain
        buffer = memoryview(bytearray(step))
        for offset in range(0, sink.nbytes, step):
            part, here = buffer[: min(step, sink.nbytes - offset)], 0
            while here < len(part):
                here += self.back.recv_into(part[here:])
            sink.write(offset, part)  # type: ignore[arg-type]


def end(rank: int, elements: int, repeats: int, folder: Path) -> dict[str, Any]:
    """One process."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
    wires = {"clear": Wire(*_sockets(rank, folder / "clear")), "tls": Wire(*_secured(rank, folder))}
    own = torch.randn(elements, generator=torch.Generator().manual_seed(rank))
    into, turns = own.clone(), Turns()

    def timed(name: str, work: Callable[[], Any]) -> None:
        dist.barrier()
        over = turns.begin()
        work()
        over(name)

    for _ in range(repeats + 1):
        timed("gloo", lambda: dist.all_reduce(into))
        for codec in (EVERY[name] for name in CODECS):
            for name, wire in wires.items():
                timed(f"{codec.name} {name}", partial(_swap, wire, codec, own, into))
        into.copy_(own)
    dist.destroy_process_group()
    return {"seconds": turns.seconds, "cpu": turns.cpu}


def _swap(wire: Wire, codec: Codec, own: torch.Tensor, into: torch.Tensor) -> None:
    wire.swap(Encoding(codec, own), Adding(codec, into, 0.5))


def _sockets(rank: int, where: Path) -> tuple[socket.socket, socket.socket]:
    """(out, back) on loopback; `where` tells the other the port."""
    if rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            where.write_text(str(listening.getsockname()[1]))
            dist.barrier()
            return listening.accept()[0], listening.accept()[0]
    dist.barrier()
    address = "127.0.0.1", int(where.read_text())
    back = socket.create_connection(address)
    return socket.create_connection(address), back


def _secured(rank: int, folder: Path) -> list[ssl.SSLSocket]:
    plain = _sockets(rank, folder / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if rank == 0 else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if rank == 0:
        key, leaf = leaf_for(Identity.generate(), datetime.datetime.now(datetime.UTC))
        (folder / "key.pem").write_bytes(key + leaf)
        context.load_cert_chain(folder / "key.pem")
    else:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # two ends of one program
    shaken = {each: context.wrap_socket(each, server_side=rank == 0) for each in (plain if rank == 0 else plain[::-1])}
    return [shaken[each] for each in plain]


def measure(mb: float, repeats: int) -> list[dict[str, Any]]:
    """A row for each codec and wire: seconds, CPU seconds of both, times gloo's."""
    elements = int(mb * 1e6 / 4) // TILE * TILE
    with tempfile.TemporaryDirectory(prefix="peer-bench-") as folder:
        arguments = [str(elements), str(repeats), folder]
        end = ("benchmarks.exchange_floor", "--end")
        ends = [popen_python(*end, str(rank), *arguments, stdout=subprocess.PIPE) for rank in range(2)]
        found = [json.loads(each.communicate(timeout=600)[0]) for each in ends]

    def median(kind: str, what: str, both: Callable[..., float]) -> float:
        return statistics.median(map(both, *(one[kind][what][1:] for one in found)))

    gloo = median("seconds", "gloo", max), median("cpu", "gloo", lambda *each: sum(each))
    rows = []
    for what in found[0]["seconds"]:
        seconds, cpu = median("seconds", what, max), median("cpu", what, lambda *each: sum(each))
        rows.append({"what": what, "s": seconds, "cpu_s": cpu, "gloo": seconds / gloo[0], "gloo_cpu": cpu / gloo[1]})
    return rows


def main() -> None:
    if "--end" in sys.argv:
        rank, elements, repeats, folder = sys.argv[sys.argv.index("--end") + 1 :]
        tune()
        torch.set_num_threads(1)
        print(json.dumps(end(int(rank), int(elements), int(repeats), Path(folder))), flush=True)
        return
    parser = options(__doc__)
    parser.add_argument("--mb", type=float, default=256.0)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    rows = measure(given.mb, given.repeats)
    heads = ("", "s", "CPU s", "times gloo", "times its CPU")
    figures = [Figure(f"{row['what']}, times gloo", "", row["gloo"]) for row in rows]
    publish(given, ABOUT, figures, Table(f"{given.mb:g} MB of fp32", heads, [list(row.values()) for row in rows]))


if __name__ == "__main__":
    main()
