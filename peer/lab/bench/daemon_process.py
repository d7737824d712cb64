"""One end of the swap benchmark: a process with the parts of a daemon that swap a fragment (`PairSwap`, bulk thread,
transport). It reads commands as lines of JSON from stdin, and measures itself while it executes them.
`peer.lab.bench.pair` starts two.

The process ends when its stdin does."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from peer.aio.threads import LowPriorityThread
from peer.clock.run_clock import RunClock
from peer.codec.registry import EVERY
from peer.errors import ExchangeError
from peer.exchange.buffers import Buffers
from peer.exchange.build import codec_of
from peer.exchange.pair.swap import PairSwap, PartnerTerms
from peer.identity import Identity
from peer.lab.bench.machine import forget_peak, resident
from peer.lab.bench.transport_process import Willing
from peer.methods.codec_specs import FORMS
from peer.node.process import freeze_gc, tune_malloc
from peer.protocol.messages import PeerId, PeerRecord, RoundKey, RunId, Status
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import TransportPolicy

RUN = RunId(b"D" * 32)
DIGEST = b"L" * 32
TICK_S = 0.001
WAIT_S = 60.0
AN_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of one end. `rank`: its number. `elements`: of the fragment. `cap`: bytes per second each way; 0:
    none."""

    rank: int
    codec: str
    elements: int
    cap: float = 0.0


class Ticker:
    """A task that sleeps for one millisecond at a time, and records by how many seconds it wakes late. Measures stalls
    of the event loop."""

    def __init__(self) -> None:
        self.late: list[float] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.late.clear()
        task = asyncio.create_task(self._tick())
        try:
            yield
            await asyncio.sleep(2 * TICK_S)  # so that a stall at the very end is recorded too
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _tick(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(TICK_S)
            self.late.append(max(0.0, time.perf_counter() - before - TICK_S))


class DaemonEnd:
    """One end of the swap benchmark: the transport, `PairSwap` and buffers of a daemon, measured for each command.

    Call `open` before use and `close` afterwards."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._identity, self._clock, self._bulk_thread = Identity.generate(), RunClock(), LowPriorityThread()
        self._willing = Willing()
        limit = setting.cap or None
        caps = TransportPolicy(max_upload=limit, max_download=limit)
        self._transport = GrpcTransport(self._identity, RUN, self._willing, self._clock.now, caps)
        self._transport.begin_run(RunTerms(DIGEST, FORMS[setting.codec].nbytes(setting.elements), setting.codec))
        self._pair_swap = PairSwap(
            self._transport, self._clock, codec_of(setting.codec, self._bulk_thread), self._bulk_thread, limit
        )
        self._outer = torch.randn(setting.elements, generator=torch.Generator().manual_seed(0))
        random = torch.Generator().manual_seed(1 + setting.rank)
        change = torch.randn(setting.elements, generator=random, out=self._place())
        self._own = change.mul_(0.05).add_(self._outer)
        self._buffers = Buffers(setting.elements, 1)
        with self._buffers.acquire() as buffer:
            buffer.fill_(0)  # touch all pages, so that the first swap causes no page faults
        self._ticker = Ticker()
        self._partner: PeerRecord
        self._works: dict[str, Callable[[dict[str, Any]], Coroutine[Any, Any, None]]] = {
            "swap": self._swap,
            "encode": self._encode,
            "idle": self._idle,
        }

    def _place(self) -> torch.Tensor:
        """Return memory for the own values."""
        return torch.empty(self._setting.elements)

    async def open(self) -> dict[str, Any]:
        """Listen on loopback. Return the facts that the other end needs: peer id and endpoint."""
        port = await self._transport.start("127.0.0.1", 0)
        return {"peer": self._identity.peer_id, "endpoint": f"127.0.0.1:{port}"}

    def set_partner(self, other: dict[str, Any]) -> None:
        """Set the partner from the facts that its `open` returned, with the address at which it can be reached."""
        now, where = self._clock.now(), (other["endpoint"],)
        self._partner = PeerRecord(
            PeerId(other["peer"]), RUN, where, True, 1, 1, 0, 0.0, Status.TRAINING, now, now + AN_HOUR_S
        )

    async def execute(self, command: dict[str, Any]) -> dict[str, Any]:
        """Execute one command. Return `seconds`, `cpu_s` (of the process), `late_ms` (of each tick of the event loop),
        `rss`, `peak` and `rss_after` (MiB). Raises ExchangeError."""
        before, cpu = resident(), time.process_time()
        forget_peak()
        async with self._ticker.running():
            began = time.perf_counter()
            await self._works[command["do"]](command)
            seconds = time.perf_counter() - began
        used = time.process_time() - cpu
        late = [round(1e3 * late, 3) for late in self._ticker.late]
        memory = {"rss": before, "peak": resident("VmHWM"), "rss_after": resident()}
        return {"seconds": seconds, "cpu_s": used, "late_ms": late, **memory}

    @property
    def _we_dial(self) -> bool:
        return self._identity.peer_id < self._partner.peer_id

    async def _swap(self, command: dict[str, Any]) -> None:
        key, dial = RoundKey(command["round"], 0), self._we_dial
        with self._buffers.acquire() as into:
            terms = PartnerTerms(self._partner, key, WAIT_S, dial, _alive)
            await self._pair_swap.swap(terms, self._own, self._outer, into)

    async def _encode(self, command: dict[str, Any]) -> None:
        """Encode repeatedly for the given seconds, in the bulk thread, as the daemon does."""
        until, codec = time.perf_counter() + command["seconds"], EVERY[self._setting.codec]
        while time.perf_counter() < until:
            await self._bulk_thread(lambda: codec.encode(self._own))

    async def _idle(self, command: dict[str, Any]) -> None:
        await asyncio.sleep(command["seconds"])

    async def close(self) -> None:
        await self._transport.close()
        self._bulk_thread.close()


async def _alive() -> bool:
    return True


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


async def _serve(kind: type[DaemonEnd]) -> None:
    end = kind(Setting(**json.loads(sys.argv[1])))
    try:
        say(await end.open())
        end.set_partner(json.loads(await asyncio.to_thread(sys.stdin.readline)))
        freeze_gc()
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                say(await end.execute(json.loads(line)))
            except ExchangeError as error:
                say({"failed": f"{type(error).__name__}: {error}"})
    finally:
        await end.close()


def main(kind: type[DaemonEnd] = DaemonEnd) -> None:
    """Run an end of this class."""
    tune_malloc()
    try:
        import uvloop
    except ImportError:
        run = asyncio.run
    else:
        run = uvloop.run
    run(_serve(kind))


if __name__ == "__main__":
    main()
