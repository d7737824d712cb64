"""The router of this network, controlled by UPnP IGD. Its answers are untrusted.

The package `miniupnpc` is used in a process of its own, because it blocks, its duration depends on the router, and it
parses foreign XML in C. The process is killed at its deadline, and its crashes do not affect the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard

from peer.aio.tasks import uninterrupted
from peer.installation import install_command
from peer.observe.formatting import harmless
from peer.protocol.swarm.nearness import address_of
from peer.protocol.swarm.port_lease import PortMapping, RouterRefusal
from peer.python_child import start_python

PROGRAM = "peer.transport.port_mapping.igd_child"
LIBRARY = "miniupnpc"
MOST_ANSWER_BYTES = 4096
MOST_WORDS = 200
"""Most characters of a router's message that are passed on."""
MAX_LEASE_S = 604800
"""Longest lease of UPnP in seconds (WANIPConnection:2, section 2.3.18)."""


class Router(Protocol):
    """A router that may open a port. The methods never raise, and return within their `timeout_s`."""

    async def open(
        self, ports: Sequence[int], inner: int, lease_s: float, timeout_s: float
    ) -> PortMapping | RouterRefusal:
        """Open, or renew, the first of these ports that is free, and forward it to our port `inner`."""

    async def close(self, port: int, inner: int, timeout_s: float) -> str:
        """Close a port if it leads to our port `inner`. Return why that failed; empty: it is closed."""


class IgdRouter:
    """The `Router` of this network that answers UPnP."""

    def __init__(self, hosts: Sequence[str] = ()) -> None:
        """`hosts`: IPv4 addresses on which we listen; empty: all addresses of this machine."""
        self._hosts = list(hosts)

    async def open(
        self, ports: Sequence[int], inner: int, lease_s: float, timeout_s: float
    ) -> PortMapping | RouterRefusal:
        job = {"do": "open", "ports": list(ports), "inner": inner, "hosts": self._hosts, "lease_s": round(lease_s)}
        answer = await _run_child(job, timeout_s)
        return answer if isinstance(answer, RouterRefusal) else mapping_of(answer)

    async def close(self, port: int, inner: int, timeout_s: float) -> str:
        job = {"do": "close", "ports": [port], "inner": inner, "hosts": self._hosts}
        answer = await _run_child(job, timeout_s)
        return answer.why if isinstance(answer, RouterRefusal) else ""


def missing_library_reason() -> str:
    """Return why this program cannot use UPnP; empty: it can."""
    if importlib.util.find_spec(LIBRARY) is not None:
        return ""
    how = install_command([LIBRARY])
    return f"the package {LIBRARY} is not installed ({how}; it needs a compiler where it has no wheel)"


def answer_of(raw: bytes) -> dict[str, Any] | RouterRefusal:
    """Decode the answer of the child process. Never raises."""
    if len(raw) > MOST_ANSWER_BYTES:
        return RouterRefusal("the router's answer is too long")
    try:
        answer = json.loads(raw)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        return RouterRefusal("the router's answer could not be read")
    if "refused" not in answer:
        return answer
    return RouterRefusal(clean(answer["refused"]), _address_of(answer) if "address" in answer else None)


def mapping_of(answer: dict[str, Any]) -> PortMapping | RouterRefusal:
    """Decode the port mapping in an answer. An invalid external address counts as not given."""
    port, lease_s = answer.get("port"), answer.get("lease_s")
    if not _is_within(port, 1, 65535) or not _is_within(lease_s, 0, MAX_LEASE_S):
        return RouterRefusal("the router named a port or a lease that does not exist")
    router = clean(answer.get("router"))
    return PortMapping(port=port, router=router, address=_address_of(answer), lease_s=float(lease_s))


def clean(words: object) -> str:
    """Return a router's message on one line, shortened, and without control characters."""
    return harmless(" ".join(str(words)[:MOST_WORDS].split()))[:MOST_WORDS]


def _address_of(answer: dict[str, Any]) -> str:
    address = address_of(str(answer.get("address"))[:MOST_WORDS])
    return str(address) if address is not None and address.version == 4 else ""


def _is_within(number: object, least: int, most: int) -> TypeGuard[int]:
    return isinstance(number, int) and not isinstance(number, bool) and least <= number <= most


async def _run_child(job: dict[str, Any], timeout_s: float) -> dict[str, Any] | RouterRefusal:
    """Run the child process for a job and return its answer. The process has ended afterwards, even after
    cancellation."""
    try:
        process = await start_python(
            PROGRAM,
            json.dumps(job | {"seconds": timeout_s}),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=os.environ | {"MALLOC_ARENA_MAX": "1"},
            start_new_session=True,  # shields it from Ctrl+C, because the port still has to be closed
        )
    except OSError as error:
        return RouterRefusal(f"no process to ask a router could be started: {error.strerror}")
    assert process.stdout is not None
    try:
        async with asyncio.timeout(timeout_s):
            raw = await _all_of(process.stdout)
            if len(raw) <= MOST_ANSWER_BYTES:
                await process.wait()
    except TimeoutError:
        return RouterRefusal(f"the router did not answer within {timeout_s:g} s")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await uninterrupted(_gone(process))
    return answer_of(raw)


async def _all_of(stream: asyncio.StreamReader) -> bytes:
    """Read to the end of the stream, at most one byte more than the longest answer."""
    try:
        return await stream.readexactly(MOST_ANSWER_BYTES + 1)
    except asyncio.IncompleteReadError as whole:
        return whole.partial


async def _gone(process: asyncio.subprocess.Process) -> None:
    """Wait until a process that ended or was killed is reaped."""
    assert process.stdout is not None
    while await process.stdout.read(MOST_ANSWER_BYTES):  # drained, because `wait` waits for the end of the pipe
        pass
    await process.wait()
