"""How long does a newcomer wait for its state, where one home is slow and three other donors are fast?

Bounds: with fast donors the newcomer has the state within a tenth of the time that the slow home alone takes, and its
reported progress never stands still for more than two seconds. Four minutes.

    python -m benchmarks.slow_home [--old DIR] [--mb 20] [--json FILE] [--results]

Each case is one process with five transports on loopback, with TLS and upload caps. A peer gives half of its upload cap
to joiners, and the rates below are that half. DIR is another checkout: its `peer` plays all cases next to ours, at the
same time. The caps leave the processor mostly idle."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

if __package__:  # not needed in a process of the other checkout
    from benchmarks.result import ROOT, Benchmark, Figure, Table, options, parsed, publish

    ABOUT = Benchmark(
        "slow_home",
        "How long does a newcomer wait for its state, where one home is slow and three other donors are fast?",
        "bound: a tenth of the slow home's time",
        smallest="--mb 2",
        is_long=True,
    )

HOME, FAST = 100e3, 2e6
"""Bytes per second that the slow and the fast donors give to joiners."""
SHARE = 0.5
"""Share of its upload cap that a donor gives to joiners."""
MOST, SILENT_S = 0.1, 2.0
LIMIT_S = 600.0
CASES = {
    "pairs, three nodes": ("pair", "serving"),
    "pairs, three peers": ("pair", "training"),
    "a group, three nodes": ("group", "serving"),
    "pairs, the home alone": ("pair", ""),
}


@dataclass
class Heard:
    """Records the newcomer's progress over time."""

    began: float
    done: float = 0.0
    at: float = 0.0
    longest: float = 0.0

    def tell(self, name: str, done: float, total: float | None, unit: str) -> None:
        now = time.monotonic() - self.began
        if unit == "bytes" and done > self.done:
            self.longest = max(self.longest, now - self.at)
            self.done, self.at = done, now


async def joined(topology: str, others: str, megabytes: float) -> dict[str, Any]:
    """Play one case in this process, with whatever `peer` is on its path."""
    import torch

    from peer.clock.run_clock import RunClock
    from peer.identity import Identity
    from peer.joining.context import JoinContext
    from peer.joining.fetch_terms import FetchTerms, RunKnowledge
    from peer.joining.state import obtain_state
    from peer.node.handler import DonatedState, RequestHandler
    from peer.outer.state import OuterState
    from peer.ports.directory import DialReport
    from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
    from peer.protocol.model.layout import Layout, TensorSpec
    from peer.state.checkpoint import CheckpointStore
    from peer.transport.config import RunTerms
    from peer.transport.grpc_transport import GrpcTransport
    from peer.transport.policy import TransportPolicy

    momentum, clock, run = topology == "group", RunClock(), RunId(b"r" * 32)
    tensors = round(megabytes * 1e6 / 4 / 2**17 / (2 if momentum else 1))
    layout = Layout.whole([TensorSpec(f"t{n}", (2**17,)) for n in range(tensors)])
    donors = [(HOME, Status.TRAINING, 40)]
    if others:
        donors += [(FAST, Status(others), 39)] * 3

    async def end(stack: AsyncExitStack, handler: Any, rate: float | None = None) -> tuple[Any, PeerId, str]:
        identity = Identity.generate()
        policy = TransportPolicy(max_upload=None if rate is None else rate / SHARE)
        transport = GrpcTransport(identity, run, handler, clock.now, policy)
        transport.begin_run(RunTerms(layout.digest(), 2**26, "bf16"))
        stack.push_async_callback(transport.close)
        return transport, PeerId(identity.peer_id), f"127.0.0.1:{await transport.start('127.0.0.1', 0)}"

    class Known:
        records: dict[PeerId, PeerRecord] = {}  # noqa: RUF012 - of this one call

        async def peers(self) -> dict[PeerId, PeerRecord]:
            return self.records

        def contact(self) -> DialReport:
            return DialReport()

    async with AsyncExitStack() as stack:
        for number, (rate, status, round_) in enumerate(donors):
            handler, generator = RequestHandler(), torch.Generator().manual_seed(0 if momentum else number)
            params, speed = (torch.randn(layout.elements, generator=generator) for _ in range(2))
            at = functools.partial(int, round_)
            state = DonatedState(OuterState(layout, params, speed), at, clock.now, momentum=momentum)
            handler.register(state=state)
            _, peer, address = await end(stack, handler, rate)
            record = PeerRecord(peer, run, (address,), True, 1, 1, round_, 1.0, status, clock.now(), 1e12)
            Known.records[peer] = record
        nodes = frozenset(peer for peer, record in Known.records.items() if record.status is Status.SERVING)
        transport, me, _ = await end(stack, RequestHandler())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peer-slow-home-")))
        context = JoinContext(
            run_id=run,
            me=me,
            directory=cast(Any, Known()),
            transport=transport,
            clock=clock,
            say=lambda line: None,
            rng=random.Random(0),
        )
        terms, heard = FetchTerms(momentum=momentum, knowledge=RunKnowledge(nodes=nodes)), Heard(time.monotonic())
        await obtain_state(context, layout, CheckpointStore(folder, 1), terms, progress=heard.tell)
        took = time.monotonic() - heard.began
        return {"seconds": took, "silent_s": heard.longest, "mb": transport.bytes_received / 1e6}


def begin(root: Path, case: str, megabytes: float) -> subprocess.Popen[str]:
    """Start one case with the program of a checkout."""
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", str(Path(__file__)), json.dumps([*CASES[case], megabytes])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd="/")


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--old", type=Path, metavar="DIR", help="another checkout, to compare with")
    parser.add_argument("--mb", type=float, default=20.0, help="megabytes of the state")
    given = parsed(parser, ABOUT)
    if given.mb < 2:
        parser.error("--mb: a state has at least 2 MB, so that a group's has a tensor of half a megabyte")
    roots = {"old": given.old.resolve()} if given.old else {}
    running = {
        (case, side): begin(root, case, given.mb) for case in CASES for side, root in (roots | {"new": ROOT}).items()
    }
    found: dict[tuple[str, str], dict[str, Any]] = {}
    try:
        for which, process in running.items():
            found[which] = json.loads(process.communicate(timeout=LIMIT_S)[0])
            print(*which, found[which], flush=True)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    new = {case: found[case, "new"] for case in CASES}
    fast = [new[case] for case in CASES if CASES[case][1]]
    alone = new["pairs, the home alone"]["seconds"]
    figures = [
        Figure("slowest with fast donors, of the home's time", "", max(one["seconds"] for one in fast) / alone, MOST),
        Figure("longest silence", "s", max(one["silent_s"] for one in new.values()), SILENT_S),
    ]
    rows = [[case, side, *found[case, side].values()] for case, side in running]
    heads = ["beside a slow home", "side", "seconds to the state", "longest silence, s", "MB received"]
    return 0 if publish(given, ABOUT, figures, Table(f"a state of {given.mb:g} MB", heads, rows)) else 1


if __name__ == "__main__":
    if __package__:
        sys.exit(main())
    print(json.dumps(asyncio.run(joined(*json.loads(sys.argv[1])))))
