"""Starts and controls two processes that swap a fragment as daemons do (`peer.lab.bench.daemon_process`)."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from peer.errors import UsageError
from peer.lab.bench.daemon_process import Setting
from peer.python_child import start_python

START_S, REPLY_S, END_S = 120.0, 300.0, 5.0
MAX_LINE = 2**26
"""Longest line in bytes. A reply lists every tick of the event loop."""

DAEMON_END = "peer.lab.bench.daemon_process"

Found = list[dict[str, Any]]
"""The reply of each end."""


class Pair:
    """The running ends of a swap benchmark. Made by `pair` or `group`."""

    def __init__(self, ends: list[asyncio.subprocess.Process]) -> None:
        self._ends = ends
        self._round = 0

    @property
    def pids(self) -> list[int]:
        return [end.pid for end in self._ends]

    async def swap(self, **how: str) -> Found:
        """Swap once, as the next round. `how`: further fields of the command. Raises UsageError if it failed."""
        self._round += 1
        return await self._both({"do": "swap", "round": self._round, **how})

    async def greet(self) -> None:
        """Connect all members of a group with each other."""
        await self._both({"do": "greet"})

    async def encode(self, seconds: float) -> Found:
        """Let the first end encode for `seconds` while the other is idle."""
        return [await self._one(0, {"do": "encode", "seconds": seconds})]

    async def idle(self, seconds: float) -> Found:
        return await self._both({"do": "idle", "seconds": seconds})

    async def _both(self, command: dict[str, Any]) -> Found:
        return list(await asyncio.gather(*(self._one(number, command) for number in range(len(self._ends)))))

    async def _one(self, number: int, command: dict[str, Any]) -> dict[str, Any]:
        await send_line(self._ends[number], command)
        found = await read_line(self._ends[number])
        if "failed" in found:
            raise UsageError(f"a swap failed: {found['failed']}", "Nothing can be measured so; try again.")
        return found


@asynccontextmanager
async def pair(
    codec: str,
    elements: int,
    cap: float = 0.0,
    *,
    far_nice: int = 0,
    seen_at: Callable[[int, str], Awaitable[str]] | None = None,
    program: str = DAEMON_END,
) -> AsyncIterator[Pair]:
    """Start two ends for a fragment of `elements` elements.

    cap: bytes per second each way; 0: none. far_nice: niceness of the second end, which stands for another machine.
    seen_at: returns the address at which the other end reaches an end, from its number and its listening address.
    program: the module that an end runs. Raises UsageError if an end does not start."""
    ends: list[asyncio.subprocess.Process] = []
    try:
        for rank in range(2):
            ends.append(await _start(program, Setting(rank, codec, elements, cap)))  # noqa: PERF401 - started: has to be ended
        if far_nice:
            os.setpriority(os.PRIO_PROCESS, ends[1].pid, far_nice)
        records = [await read_line(end, START_S) for end in ends]
        for number, record in enumerate(records):
            if seen_at is not None:
                record["endpoint"] = await seen_at(number, record["endpoint"])
            await send_line(ends[1 - number], record)
        yield Pair(ends)
    finally:
        await asyncio.gather(*(stop(end) for end in ends))


@asynccontextmanager
async def group(codec: str, elements: int, members: int, program: str) -> AsyncIterator[Pair]:
    """Start `members` ends that are all connected with each other, as `pair` does for two. A `swap` is a group
    round."""
    ends: list[asyncio.subprocess.Process] = []
    try:
        for rank in range(members):
            ends.append(await _start(program, Setting(rank, codec, elements)))  # noqa: PERF401 - as above
        records = [await read_line(end, START_S) for end in ends]
        for number, end in enumerate(ends):
            await send_line(end, {"others": records[:number] + records[number + 1 :]})
        met = Pair(ends)
        await met.greet()
        yield met
    finally:
        await asyncio.gather(*(stop(end) for end in ends))


async def _start(program: str, setting: Setting) -> asyncio.subprocess.Process:
    return await start_python(
        program,
        json.dumps(asdict(setting)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=MAX_LINE,
    )


# -- a process that is led by lines ----------------------------------------------------------------------------------


async def send_line(process: asyncio.subprocess.Process, what: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(what).encode() + b"\n")
    await process.stdin.drain()


async def read_line(process: asyncio.subprocess.Process, timeout_s: float = REPLY_S) -> dict[str, Any]:
    """Read one reply. Raises UsageError if the process ended or does not answer in time."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(timeout_s):
            line = await process.stdout.readline()
    except TimeoutError:
        raise UsageError(f"a process of the benchmark said nothing for {timeout_s:.0f} s") from None
    if not line:
        raise UsageError("a process of the benchmark gave up", "Its message is above.")
    said: dict[str, Any] = json.loads(line)
    return said


async def stop(process: asyncio.subprocess.Process) -> None:
    """Close the stdin of a process, and kill it if it does not end in time."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
