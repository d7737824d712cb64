"""Injects a fault plan into the real processes of a local swarm: by signals to processes that are verified to be ours,
by relays between the peers, by a limit on file sizes, and by a wrong wall clock. Every lasting fault is undone,
whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from peer.errors import UsageError
from peer.lab.localswarm.processes import Daemon
from peer.lab.localswarm.relay import LINK_RATE, Effect, Links, Relay, free_port, inside, outside
from peer.lab.localswarm.socket_owners import children, command_of, started_at
from peer.lab.sim.faults import Fault
from peer.whole_files import replace_file

NOT_REAL = {"loss_burst": "a relay carries streams, which lose no packets"}
"""Kinds of faults that only the simulator can have -> the reason."""
DISK_LEFT = 2**18
"""Largest file size in bytes while a disk is "full" (RLIMIT_FSIZE). Journals and small files can still be written,
while a checkpoint fails in the middle of a tensor, as on a nearly full disk."""
CLOCK = "wall-clock-offset"

if sys.platform == "linux":
    FREE = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


class SwarmControl(Protocol):
    """What `Chaos` needs to control the swarm. Peers are numbered from 1."""

    @property
    def daemons(self) -> Mapping[int, Daemon]: ...
    async def kill_peer(self, number: int) -> None: ...
    async def restart_peer(self, number: int) -> None: ...


@dataclass(slots=True)
class FaultRecord:
    """A fault of the plan that was due, and whether it took effect. Times in seconds since the epoch."""

    fault: Fault
    began: float
    until: float
    """End of a lasting fault. Equal to `began` for others."""
    missed_reason: str = ""
    """Why the fault had no effect. Empty: it took effect."""

    def mark_missed(self, why: str) -> None:
        """Mark the fault as without effect."""
        self.missed_reason = why


def check(faults: tuple[Fault, ...], peers: int) -> None:
    """Raise UsageError for faults that cannot be injected into real processes, and on systems other than Linux.
    `peers`: number of peers."""
    if not sys.platform.startswith("linux"):
        raise UsageError("--chaos needs Linux: /proc, prlimit and several loopback addresses", "Use Linux.")
    for fault in faults:
        if fault.kind in NOT_REAL:
            raise UsageError(f"{fault.kind} cannot be done to real processes: {NOT_REAL[fault.kind]}", "Leave it out.")
        if fault.at is None:
            raise UsageError(f"{fault} waits for an event: real processes take faults at times only", "Give it `at`.")
        if not all(0 <= number < peers for number in (fault.peer, *fault.others)):
            raise UsageError(f"{fault}: there are {peers} peers, counted from 0", "Use --peers of the plan.")


@dataclass(frozen=True, slots=True)
class NodePorts:
    """The fixed ports of one node, behind a relay that listens on the same ports. `exchange`: of the gRPC server.
    `directory`: of p2pd."""

    node: int
    exchange: int
    directory: int

    @classmethod
    def allocate(cls, node: int) -> NodePorts:
        """Choose free ports for a node."""
        return cls(node, free_port(inside(node)), free_port(inside(node)))

    @property
    def options(self) -> tuple[str, ...]:
        """Options that give a node these ports, for `peer join` and `peer bootstrap`."""
        listen, tell = (f"/ip4/{host}/tcp/{self.directory}" for host in (inside(self.node), outside(self.node)))
        return ("--host-maddrs", listen, "--announce-maddrs", tell, "--port", str(self.exchange))


class Chaos:
    """Carries out a fault plan on a local swarm of real processes.

    home: the swarm's folder. node_ports: the ports of each node; 0 is the bootstrap node. fault_records: the faults
    so far, including those that had no effect."""

    def __init__(self, faults: tuple[Fault, ...], peers: int, home: Path, say: Callable[[str], None]) -> None:
        check(faults, peers)
        self._faults, self._home, self._say = faults, home, say
        self.node_ports = {node: NodePorts.allocate(node) for node in range(peers + 1)}
        self._links = Links()
        self._control: SwarmControl | None = None
        self.fault_records: list[FaultRecord] = []

    @contextlib.asynccontextmanager
    async def relays(self, control: SwarmControl, bootstrap: Daemon) -> AsyncIterator[None]:
        """Run a relay in front of every node until the block ends."""
        self._control = control

        def processes() -> dict[int, int]:
            nodes = {0: bootstrap, **control.daemons}
            own = {d.process.pid: node for node, d in nodes.items() if d.running and d.process is not None}
            return own | {pid: own[parent] for pid, parent in children(own).items()}

        async with contextlib.AsyncExitStack() as stack:
            for ports in self.node_ports.values():
                relay = Relay(ports.node, (ports.exchange, ports.directory), self._links, processes)
                stack.push_async_callback(relay.close)
                await relay.start()
            yield

    def program(self, number: int) -> tuple[str, ...]:
        """Return the module and its arguments that run peer `number` in place of `peer`."""
        return ("peer.lab.localswarm.skewed_clock", str(self._clock_of(number)))

    def _clock_of(self, number: int) -> Path:
        return self._home / f"peer-{number}" / CLOCK

    async def run(self) -> None:
        """Inject all faults of the plan, with their times counted from now."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for fault in self._faults:
                assert fault.at is not None
                group.create_task(self._inject_later(fault, began + fault.at - time.monotonic()))

    async def _inject_later(self, fault: Fault, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))
        now = time.time()
        record = FaultRecord(fault, now, now + fault.seconds)
        self.fault_records.append(record)
        try:
            self._say(f"fault: {fault!r}")
            await self._inject(fault)
        except ProcessLookupError:
            record.mark_missed("its process was gone already")
        except _Missed as missed:
            record.mark_missed(str(missed))
        if record.missed_reason:
            self._say(f"it did not happen: {record.missed_reason}")

    async def _inject(self, fault: Fault) -> None:
        assert self._control is not None
        number = fault.peer + 1
        daemon = self._control.daemons[number]
        if daemon.running == (fault.kind in ("restart", "rejoin")):
            raise _Missed("the peer runs" if daemon.running else "the peer was dead")
        match fault.kind:
            case "kill":
                await self._control.kill_peer(number)
            case "restart" | "rejoin":
                if fault.kind == "rejoin":
                    _delete_checkpoints(daemon)
                await self._control.restart_peer(number)
            case "kill_trainer":
                os.kill(_child(daemon, "peer.trainer"), signal.SIGKILL)
            case "kill_helper":
                os.kill(_child(daemon, "p2pd"), signal.SIGKILL)
            case "stall" | "stall_trainer":
                await _stopped(_to_stop(fault, daemon), fault.seconds)
            case "disk_full":
                await _with_small_files([_pid(daemon), _child(daemon, "peer.trainer")], fault.seconds)
            case "clock_jump":
                await self._with_wrong_clock(number, fault.amount, fault.seconds)
            case _:
                await self._with_bad_links(_effect(fault), fault.seconds)

    async def _with_wrong_clock(self, number: int, offset_s: float, seconds: float) -> None:
        try:
            replace_file(self._clock_of(number), repr(offset_s).encode())
            await asyncio.sleep(seconds)
        finally:
            replace_file(self._clock_of(number), repr(0.0).encode())

    async def _with_bad_links(self, effect: Effect, seconds: float) -> None:
        self._links.begin(effect)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._links.end(effect)


class _Missed(Exception):
    """A fault had no effect."""


def _effect(fault: Fault) -> Effect:
    me, others = fault.peer + 1, {number + 1 for number in fault.others}

    def between(a: int | None, b: int | None) -> bool:
        return (a == me and b in others) or (b == me and a in others)

    match fault.kind:
        case "cut":
            return Effect(between, silent=True)
        case "sever":
            return Effect(between, silent=True, broken=True)
        case "cut_one_way":
            return Effect(lambda sender, receiver: sender == me and receiver in others, silent=True)
        case "partition":
            side = {me, *others}
            return Effect(lambda sender, receiver: (sender in side) != (receiver in side), silent=True)
        case "slow_link":
            return Effect(lambda sender, receiver: me in (sender, receiver), rate=fault.amount * LINK_RATE)
        case "lag":
            return Effect(lambda sender, receiver: me in (sender, receiver), delay_s=fault.amount)
    raise AssertionError(fault.kind)


def _to_stop(fault: Fault, daemon: Daemon) -> list[int]:
    trainer = fault.kind == "stall_trainer" or fault.amount == 1
    pids = [_pid(daemon)] if fault.kind == "stall" else []
    return [*pids, *([_child(daemon, "peer.trainer")] if trainer else [])]


async def _stopped(pids: list[int], seconds: float) -> None:
    # the start time, unlike the command line, is known before the process has loaded its program
    started = {pid: started_at(pid) for pid in pids}
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
    finally:
        for pid in pids:
            if started_at(pid) == started[pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


async def _with_small_files(pids: list[int], seconds: float) -> None:
    assert sys.platform == "linux"
    try:
        for pid in pids:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (DISK_LEFT, resource.RLIM_INFINITY))
        await asyncio.sleep(seconds)
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, FREE)


def _pid(daemon: Daemon) -> int:
    assert daemon.process is not None
    return daemon.process.pid


def _child(daemon: Daemon, name: str) -> int:
    """Return the pid of the daemon's child with `name` in its command line. Raises _Missed."""
    for pid in children([_pid(daemon)]):
        if name in command_of(pid):
            return pid
    raise _Missed(f"it had no {name} at that moment")


def _delete_checkpoints(daemon: Daemon) -> None:
    """Delete a peer's checkpoints, so that it has to fetch the state from a donor. Journal and counters stay."""
    for folder in daemon.home.glob("runs/*/checkpoints"):
        shutil.rmtree(folder)
