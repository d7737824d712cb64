"""How fast does a joiner get a group's state, and what does it cost its donors?

    python benchmarks/state_transfer.py [--megabytes 200] [--mbit 50] [--out state-transfer.json]

Real processes, gRPC with TLS over loopback, three donors each allowed 50 Mbit/s for joiners. One is killed -9 in the
middle of the first fetch, the joiner at 60 % of a second one, and started again. A small trainer (torch, one
thread) runs all the time on the donors' machine; its step time while they give is compared with that after, which on
a shared machine differs by more than they cost: what they cost is told by `python -m benchmarks.donor_steps`. Linux."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, TextIO

import torch

from peer.aio.threads import LowPriorityThread
from peer.clock.run_clock import RunClock
from peer.identity import Identity
from peer.join.state import obtain_state
from peer.node.handler import RequestHandler
from peer.outer.state import OuterState
from peer.ports.directory import DialReport
from peer.protocol.messages import PeerId, PeerRecord, RunId, StateIndex, Status
from peer.protocol.model.layout import Layout, TensorSpec
from peer.state.checkpoint import CheckpointStore
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.server.state_uploads import SHARE

RUN = RunId(b"state transfer".ljust(32, b"."))
QUIET_S = 12.0
"""The trainer alone, before and after."""
WAIT_S = 180.0


def layout_of(megabytes: int) -> Layout:
    """Params of half of it, momentum of the other; tensors of several sizes, one of them an eighth of all."""
    elements = megabytes * 10**6 // 8
    sizes = [elements // 8, *[elements // 64] * 48]
    sizes += [(elements - sum(sizes)) // 16] * 16
    return Layout.whole([TensorSpec(f"t{number}", (size,)) for number, size in enumerate(sizes)])


def state_of(layout: Layout) -> OuterState:
    """The same in every process."""
    generator = torch.Generator().manual_seed(0)
    params, momentum = (torch.randn(layout.elements, generator=generator) for _ in range(2))
    return OuterState(layout, params, momentum)


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


# -- the processes ---------------------------------------------------------------------------------------------------


async def donate(options: argparse.Namespace) -> None:
    """Give until stdin ends; each line there is answered with the bytes sent and the processor time used, after
    "afresh" with the state to be copied again for the next joiner."""
    identity, clock, donor, copying = Identity.generate(), RunClock(), RequestHandler(), LowPriorityThread()
    layout = layout_of(options.megabytes)
    state = state_of(layout)
    donor.give(state, lambda: 7, clock.now, momentum=True, start=copying.start)
    cap = options.mbit * 1e6 / 8 / SHARE
    transport = GrpcTransport(identity, RUN, donor, clock.now, max_upload=cap)
    transport.set_layout(layout.digest(), 2**26)
    port = await transport.start("127.0.0.1", 0)
    tell(peer_id=identity.peer_id, port=port)
    while line := await asyncio.to_thread(sys.stdin.readline):
        if line.strip() == "afresh":
            donor.give(state, lambda: 7, clock.now, momentum=True, start=copying.start)
        tell(sent=transport.bytes_sent, cpu_s=time.process_time())
    await transport.close()
    copying.close()


class Named:
    """A directory of the donors given."""

    def __init__(self, donors: list[dict[str, Any]]) -> None:
        self._donors = donors

    async def peers(self) -> dict[PeerId, PeerRecord]:
        records = [self._record(PeerId(donor["peer_id"]), donor["port"]) for donor in self._donors]
        return {record.peer_id: record for record in records}

    @staticmethod
    def _record(peer: PeerId, port: int) -> PeerRecord:
        now, where = time.time(), (f"127.0.0.1:{port}",)
        return PeerRecord(peer, RUN, where, True, 1, 1, 7, 1.0, Status.TRAINING, now, now + 60)

    def contact(self) -> DialReport:
        return DialReport()

    async def announce(self, record: PeerRecord) -> None:
        return None

    async def withdraw(self) -> None:
        return None


class Counted(GrpcTransport):
    """Counts the pieces that came whole."""

    def __init__(self, *given: Any, **caps: Any) -> None:
        super().__init__(*given, **caps)
        self.whole: Counter[int] = Counter()

    async def fetch_piece(self, donor: PeerRecord, index: StateIndex, piece: int, timeout_s: float) -> bytes:
        data = await super().fetch_piece(donor, index, piece, timeout_s)
        self.whole[piece] += 1
        return data


async def join(options: argparse.Namespace) -> None:
    """Get the state, telling each piece, and compare it bit for bit."""
    layout, clock, bulk = layout_of(options.megabytes), RunClock(), LowPriorityThread()
    transport = Counted(Identity.generate(), RUN, RequestHandler(), clock.now)
    transport.set_layout(layout.digest(), 2**26)
    tell(begins=time.time())
    began, used = time.monotonic(), time.process_time()
    state = await obtain_state(
        RUN,
        layout,
        CheckpointStore(options.home / "checkpoints"),
        Named(json.loads(options.donors)),
        transport,
        clock,
        lambda text: tell(say=text),
        lambda name, done, total, unit: tell(name=name, done=done, total=total, unit=unit),
        momentum=True,
        folder=options.home / "transfer",
        offload=bulk,
    )
    wall_s, cpu_s = time.monotonic() - began, time.process_time() - used
    wanted = state_of(layout)
    same = torch.equal(state.outer.params, wanted.params) and torch.equal(state.outer.momentum, wanted.momentum)
    twice = sum(count - 1 for count in transport.whole.values())
    tell(
        wall_s=wall_s,
        cpu_s=cpu_s,
        same=same,
        why=state.why,
        fetched=state.nbytes,
        twice=twice,
        pieces=transport.whole.total(),
    )
    await transport.close()
    bulk.close()


def train(options: argparse.Namespace) -> None:
    """A small model's inner steps, for ever: prints when each ended, how long it took and how much of that it ran."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(512, 512), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers)
    optimizer, batch = torch.optim.AdamW(model.parameters()), torch.randn(128, 512)
    while True:
        began, ran = time.monotonic(), time.process_time()
        optimizer.zero_grad()
        (model(batch) - batch).square().mean().backward()
        optimizer.step()
        took, ran = time.monotonic() - began, time.process_time() - ran
        print(f"{time.time():.4f} {took:.6f} {ran:.6f}", flush=True)


# -- the measurement -------------------------------------------------------------------------------------------------


class Process:
    """One of ours, with a pipe each way."""

    def __init__(self, role: str, options: argparse.Namespace, *more: str, cpus: set[int]) -> None:
        command = [sys.executable, __file__, "--role", role, "--megabytes", str(options.megabytes)]
        command += ["--mbit", str(options.mbit), *more]
        self.popen = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        os.sched_setaffinity(self.popen.pid, cpus & os.sched_getaffinity(0) or os.sched_getaffinity(0))

    def read(self) -> dict[str, Any]:
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        if not line:
            raise SystemExit(f"a process ended: {self.popen.wait(10)}")
        loaded: dict[str, Any] = json.loads(line)
        return loaded

    def stats(self, line: str = "") -> dict[str, Any]:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{line}\n")
        self.popen.stdin.flush()
        return self.read()

    def kill(self) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGKILL)
        self.popen.wait(60)


def donors_of(options: argparse.Namespace, running: list[Process]) -> tuple[list[Process], str]:
    """Three of them, ready; and how a joiner is told."""
    # The first is on the trainer's machine, which is all cores; the others only share the one that does not train.
    donors = [Process("donor", options, cpus={0, 1} if number == 0 else {1}) for number in range(3)]
    running.extend(donors)
    return donors, json.dumps([donor.read() for donor in donors])


def joining(options: argparse.Namespace, told: str, home: Path, running: list[Process]) -> Process:
    joiner = Process("joiner", options, "--donors", told, "--home", str(home), cpus={1})
    running.append(joiner)
    return joiner


def until(joiner: Process, part: float) -> dict[str, Any]:
    """Read what a joiner tells until it has this part of the state (or all, if that comes first)."""
    deadline, seen = time.monotonic() + WAIT_S, dict[str, Any]()
    while time.monotonic() < deadline:
        told = joiner.read()
        seen |= told
        if "wall_s" in told or (told.get("unit") == "bytes" and told["done"] >= part * told["total"]):
            return seen
    raise SystemExit("the joiner did not get there in time")


def donor_killed(options: argparse.Namespace, folder: Path, running: list[Process]) -> dict[str, Any]:
    """Three donors, one killed in the middle."""
    donors, told = donors_of(options, running)
    before = donors[0].stats()
    joiner = joining(options, told, folder / "one", running)
    begins = joiner.read()["begins"]
    half = until(joiner, 0.5)
    total, done, killed_s = half["total"], half["done"], time.time() - begins
    donors[2].kill()
    result = until(joiner, 2.0)
    after = donors[0].stats()
    rate = options.mbit * 1e6 / 8
    # What came while three gave would have taken them so long at least, the rest the two that were left.
    ideal_s = done / (3 * rate) + (total - done) / (2 * rate)
    for donor in donors:
        donor.kill()
    return {
        **{name: result[name] for name in ("wall_s", "same", "twice", "pieces", "why")},
        "bytes": total,
        "killed_s": killed_s,
        "allowed_s": ideal_s,
        "factor": result["wall_s"] / ideal_s,
        "all_three_s": total / (3 * rate),
        "donor_cpu_s_per_100_mb": (after["cpu_s"] - before["cpu_s"]) / (after["sent"] - before["sent"]) * 1e8,
        "joiner_cpu_s_per_100_mb": result["cpu_s"] / total * 1e8,
        "load": os.getloadavg()[0],
        "window": (begins, begins + result["wall_s"]),
    }


def joiner_killed(options: argparse.Namespace, folder: Path, running: list[Process]) -> dict[str, Any]:
    """The joiner is killed at 60 % and started again."""
    donors, told = donors_of(options, running)
    joiner = joining(options, told, folder / "two", running)
    total = until(joiner, 0.6)["total"]
    joiner.kill()
    here = sum(f.stat().st_size for f in (folder / "two" / "transfer").rglob("*-*-*") if f.is_file())
    result = until(joining(options, told, folder / "two", running), 2.0)
    sent = sum(donor.stats()["sent"] for donor in donors)
    for donor in donors:
        donor.kill()
    return {
        "same": result["same"],
        "on_disk": here / total,
        "fetched_after": result["fetched"] / total,
        "again": sent / total - 1,
        "cleared": not (folder / "two" / "transfer").exists(),
    }


Step = tuple[float, float, float]
"""When it ended, seconds it took, and of these those in which it had its processor."""


def steps_of(text: str) -> list[Step]:
    rows = (line.split() for line in text.splitlines() if line.count(" ") == 2)
    return [(float(at), float(took), float(ran)) for at, took, ran in rows]


def trainer_beside(log: TextIO) -> subprocess.Popen[bytes]:
    """On the first of our processors, writing its steps there."""
    command = [sys.executable, str(Path(__file__).resolve()), "--role", "trainer"]
    trainer = subprocess.Popen(command, stdout=log, env=os.environ | {"OMP_NUM_THREADS": "1"})
    os.sched_setaffinity(trainer.pid, {min(os.sched_getaffinity(0))})
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--mbit", type=float, default=50.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--role", choices=["donor", "joiner", "trainer"], help=argparse.SUPPRESS)
    parser.add_argument("--donors", help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "donor":
        asyncio.run(donate(options))
    elif options.role == "joiner":
        asyncio.run(join(options))
    elif options.role == "trainer":
        train(options)
    else:
        measure(options)


def within(steps: list[Step], begins: float, ends: float) -> list[Step]:
    return [step for step in steps if begins <= step[0] <= ends]


def median_ms(steps: list[Step]) -> float:
    return 1e3 * statistics.median(took for _, took, _ in steps)


def not_run_percent(steps: list[Step]) -> float:
    """Of their time, in which somebody else had the processor."""
    return 100 * (1 - sum(ran for _, _, ran in steps) / sum(took for _, took, _ in steps))


def measure(options: argparse.Namespace) -> None:
    running: list[Process] = []
    with tempfile.TemporaryDirectory(prefix="peer-transfer-") as name:
        steps = Path(name) / "steps"
        with steps.open("w") as log:
            trainer = trainer_beside(log)
            try:
                one = donor_killed(options, Path(name), running)
                time.sleep(QUIET_S)
                two = joiner_killed(options, Path(name), running)
                time.sleep(QUIET_S)
            finally:
                trainer.kill()
                trainer.wait(60)
                for process in running:
                    process.kill()
        taken = steps_of(steps.read_text())
    begins, ends = one.pop("window")
    during = within(taken, begins, ends)
    alone = within(taken, ends + 1, ends + QUIET_S - 1) + within(taken, taken[-1][0] - QUIET_S + 1, taken[-1][0])
    step = {"alone_ms": median_ms(alone), "giving_ms": median_ms(during)}
    step["more_percent"] = 100 * (step["giving_ms"] / step["alone_ms"] - 1)
    step["not_run_percent"] = not_run_percent(during)
    show(one, two, step)
    if options.out:
        report = {"donor_killed": one, "joiner_killed": two, "step": step}
        options.out.write_text(json.dumps(report, indent=2) + "\n")


def show(one: dict[str, Any], two: dict[str, Any], step: dict[str, float]) -> None:
    print(f"{one['bytes'] / 1e6:.0f} MB of state in {one['pieces']} pieces, three donors, one killed at half")
    print(f"{'wall':<44}{one['wall_s']:>9.2f} s")
    print(f"{'bytes / rates allowed while they lived':<44}{one['allowed_s']:>9.2f} s")
    print(f"{'factor (at most 1.25)':<44}{one['factor']:>9.3f}")
    print(f"{'bytes / rates of all three':<44}{one['all_three_s']:>9.2f} s")
    print(f"{'pieces that came twice':<44}{one['twice']:>9}")
    print(f"{'bit for bit the donors state':<44}{one['same']!s:>9}")
    print(f"{'processor time of a donor for 100 MB':<44}{one['donor_cpu_s_per_100_mb']:>9.2f} s")
    print(f"{'processor time of the joiner for 100 MB':<44}{one['joiner_cpu_s_per_100_mb']:>9.2f} s")
    print(f"{'load of the machine, of ' + str(os.cpu_count()) + ' cores':<44}{one['load']:>9.1f}")
    print(f"{'step time, donor gives / does not':<44}{step['giving_ms']:>9.2f} / {step['alone_ms']:.2f} ms")
    print(f"{'the same as a difference, with the drift':<44}{step['more_percent']:>+9.2f} %")
    print(f"{'the trainer waited for its processor':<44}{step['not_run_percent']:>9.2f} %")
    print("the joiner killed -9 at 60 %, and started again")
    print(f"{'on disk then':<44}{100 * two['on_disk']:>9.1f} %")
    print(f"{'fetched after':<44}{100 * two['fetched_after']:>9.1f} %")
    print(f"{'sent by donors beyond the state (at most 5)':<44}{100 * two['again']:>9.1f} %")
    print(f"{'bit for bit; disk cleared':<44}{two['same'] and two['cleared']!s:>9}")


if __name__ == "__main__":
    main()
