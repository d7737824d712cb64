"""The p2pd child process, which accepts connections of strangers: its privileges, and the effect of many sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from peer.discovery.dht_node.node import DhtNode, DhtNodeLimits, DhtNodeOptions
from peer.identity import Identity

pytestmark = pytest.mark.processes

if sys.platform != "linux":
    pytest.skip("/proc tells what a process may do", allow_module_level=True)

SOCKETS = 1100
"""More than the files that it was once given."""
NEEDED = 4 * SOCKETS
LISTEN = ["/ip4/127.0.0.1/tcp/0"]


@contextlib.asynccontextmanager
async def running(folder: Path, limits: DhtNodeLimits | None = None) -> AsyncIterator[DhtNode]:
    identity = Identity.generate()
    path = folder / "identity.key"
    path.write_bytes(identity.to_bytes())
    options = DhtNodeOptions(path, identity.public_key, limits=limits or DhtNodeLimits())
    async with asyncio.timeout(180):
        node = await DhtNode.start(options, LISTEN, None)
        try:
            yield node
        finally:
            await node.close()


def limit_of(proc: Path, name: str) -> list[str]:
    """Return the soft and hard value of a resource limit."""
    (line,) = [line for line in (proc / "limits").read_text().splitlines() if line.startswith(name)]
    return line[len(name) :].split()[:2]


def test_it_has_no_more_than_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN_OF_THE_VOLUNTEER", "secret")
    limits = DhtNodeLimits(files=300)

    async def main() -> None:
        async with running(tmp_path, limits) as node:
            proc = Path("/proc") / str(node.pid)
            environ = dict(entry.split("=", 1) for entry in (proc / "environ").read_text().split("\0") if entry)
            assert environ.pop("GOMEMLIMIT") == str(limits.heap)
            assert set(environ) <= {"GOLOG_LOG_LEVEL", "GOLOG_LOG_FMT"}
            status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
            assert status["NoNewPrivs"].strip() == "1"
            assert limit_of(proc, "Max data size") == [str(limits.data)] * 2
            assert limit_of(proc, "Max core file size") == ["0", "0"]
            assert limit_of(proc, "Max open files") == ["300", "300"]
            assert (proc / "fd" / "0").readlink() == Path("/dev/null")
            assert os.getsid(node.pid) == node.pid

    asyncio.run(main())


def test_a_limit_of_the_system_below_ours_is_the_one_that_counts(tmp_path: Path) -> None:
    """Run in a separate process, because a lowered limit cannot be raised again."""
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 256));"
        "from peer.discovery.dht_node.launch import files_granted;"
        "assert (files_granted(8192), files_granted(100)) == (256, 100)"
    )

    async def main() -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
        assert await process.wait() == 0

    asyncio.run(main())


@pytest.fixture
def _many_files() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < NEEDED:
        pytest.skip(f"this test needs {NEEDED} open files, and the system allows {hard}")
    if soft != resource.RLIM_INFINITY and soft < NEEDED:
        resource.setrlimit(resource.RLIMIT_NOFILE, (NEEDED, hard))


@pytest.mark.usefixtures("_many_files")
def test_a_thousand_raw_sockets_do_not_shut_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as node:
            port = int((await node.addresses())[0].split("/")[4])
            with contextlib.ExitStack() as stack:
                for number in range(SOCKETS):
                    stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5.0))
                    if number % 100 == 0:
                        await asyncio.sleep(0)
                while node.open_files() < SOCKETS:
                    await asyncio.sleep(0.01)
                await node.answers(5.0)
                newcomer = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5.0))
                assert await asyncio.to_thread(newcomer.recv, 20), "it greets a newcomer"
                assert node.resident_bytes() < DhtNodeLimits().memory

    asyncio.run(main())
