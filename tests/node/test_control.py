import asyncio
import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import uvloop

from peer.errors import HomeBusy, HomeUnusable, NotRunning, PeerError, UsageError
from peer.node.control import MAX_CONNECTIONS, MAX_REPLY, MAX_REQUEST, ControlServer, send_command
from tests.support.refused_calls import command, needs_seccomp

LOOPS = {"asyncio": asyncio.run, "uvloop": uvloop.run}


@pytest.fixture(params=LOOPS)
def run(request):
    return LOOPS[request.param]


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "control.sock"


async def echo(command: str, request: dict) -> dict:
    return {"command": command, "request": request}


async def raw(path: Path, data: bytes, eof: bool = False) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(path), limit=2 * MAX_REPLY)
    try:
        writer.write(data)
        if eof:
            writer.write_eof()
        async with asyncio.timeout(60):
            return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def turn_until(condition) -> None:
    """Run the event loop until the condition holds. Fails after ten seconds."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


class Serving:
    def __init__(self, path: Path, handler=echo, deadline_s: float = 5.0) -> None:
        self.server = ControlServer(path, handler, deadline_s)

    async def __aenter__(self) -> ControlServer:
        await self.server.start()
        return self.server

    async def __aexit__(self, *error) -> None:
        await self.server.close()


def test_ask_and_answer(run, path):
    async def main():
        async with Serving(path):
            assert await send_command(path, "status", 90) == {"command": "status", "request": {"command": "status"}}
            reply = await send_command(path, "leave", 5, {"reason": "é", "command": "ignored"})
            assert reply == {"command": "leave", "request": {"command": "leave", "reason": "é"}}

    run(main())


def test_the_socket_is_for_the_owner_alone_and_goes_with_the_server(run, path):
    async def main():
        async with Serving(path):
            assert stat.S_IMODE(path.lstat().st_mode) == 0o600
            assert [p.name for p in path.parent.iterdir()] == ["control.sock"]
        assert list(path.parent.iterdir()) == []

    old = os.umask(0)
    try:
        run(main())
    finally:
        os.umask(old)


def test_nobody_answers(run, path):
    with pytest.raises(NotRunning, match="no daemon answers") as error:
        run(send_command(path, "status", 90))
    assert "peer join" in error.value.fix


def test_a_dead_process_left_its_socket(run, path):
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.listen()
    dead.close()
    with pytest.raises(NotRunning):
        run(send_command(path, "status", 90))

    async def main():
        async with Serving(path):
            assert (await send_command(path, "status", 90))["command"] == "status"

    run(main())


WITHOUT_CHMOD = """
import asyncio, os, pathlib, sys
from peer.errors import HomeUnusable
from peer.node.control import ControlServer, send_command

async def main(path):
    async def echo(command, request):
        return {"command": command}
    for umask in (0o077, 0o022):
        os.umask(umask)
        server = ControlServer(path, echo)
        try:
            await server.start()
            print((await send_command(path, "status", 90))["command"])
        except HomeUnusable as error:
            print(error.fix)
        await server.close()

asyncio.run(main(pathlib.Path(sys.argv[1])))
"""


@pytest.mark.processes
@needs_seccomp
def test_a_socket_that_the_umask_made_private_needs_no_chmod(path):
    program = command("chmod,fchmod,fchmodat,fchmodat2", sys.executable, "-c", WITHOUT_CHMOD, str(path))
    private, open_to_others = subprocess.check_output(program, text=True, timeout=120).splitlines()
    assert private == "status"
    assert "file system" in open_to_others
    assert "right to read" not in open_to_others


def test_a_living_process_is_left_alone(run, path):
    async def main():
        async with Serving(path):
            with pytest.raises(HomeBusy):
                await ControlServer(path, echo).start()
            assert (await send_command(path, "status", 90))["command"] == "status"

    run(main())


def test_a_living_process_with_a_full_queue_is_left_alone(path):
    with socket.socket(socket.AF_UNIX) as alive, socket.socket(socket.AF_UNIX) as waiting:
        alive.bind(str(path))
        alive.listen(0)
        waiting.connect(str(path))
        with pytest.raises(HomeBusy):
            asyncio.run(ControlServer(path, echo).start())
    assert path.exists()


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda p: p.symlink_to("/dev/null")])
def test_something_else_of_that_name_is_left_alone(path, make):
    make(path)
    with pytest.raises(HomeUnusable):
        asyncio.run(ControlServer(path, echo).start())
    assert path.is_symlink() or path.exists()


def test_no_folder(path):
    with pytest.raises(HomeUnusable):
        asyncio.run(ControlServer(path / "none" / "control.sock", echo).start())


def test_a_home_deeper_than_a_socket_address(run, tmp_path):
    deep = tmp_path / ("x" * 100) / "control.sock"
    deep.parent.mkdir()
    run(asyncio.sleep(0))  # libuv's first loop opens a pipe for signals, which stays open
    before = len(list(Path("/proc/self/fd").iterdir()))

    async def main():
        async with Serving(deep):
            assert (await send_command(deep, "status", 5))["command"] == "status"
            with pytest.raises(HomeBusy):
                await ControlServer(deep, echo).start()
        assert not deep.exists()

    run(main())
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_the_socket_of_a_successor_is_not_removed(run, path):
    async def main():
        server = ControlServer(path, echo)
        await server.start()
        path.unlink()
        async with Serving(path):
            await server.close()
            assert (await send_command(path, "status", 90))["command"] == "status"

    run(main())


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"\n", "bad_request"),
        (b"status\n", "bad_request"),
        (b"\xff\x00\n", "bad_request"),
        (b"[]\n", "bad_request"),
        (b"{}\n", "bad_request"),
        (b'{"command": 1}\n', "bad_request"),
        (b'{"command": ["status"]}\n', "bad_request"),
        (b'{"command": "explode"}\n', "unknown_command"),
        (b"[" * 60_000 + b"\n", "bad_request"),
        (b"x" * (MAX_REQUEST + 10) + b"\n", "too_large"),
        (b"x" * (3 * MAX_REQUEST), "too_large"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value[:12]!r}",
)
def test_garbage_gets_a_typed_error(run, path, line, code):
    asked = []

    async def handler(command, request):
        asked.append(command)
        return {}

    async def main():
        async with Serving(path, handler):
            try:
                reply = json.loads(await raw(path, line))
            except ConnectionResetError:
                # The daemon closed the socket before it had read all, which can drop its reply. It must still serve
                # the next command, which is checked below.
                assert code == "too_large"
                reply = {"error": code, "reason": "-"}
            assert reply["error"] == code
            assert reply["reason"]
            assert (await send_command(path, "status", 90)) == {}

    run(main())
    assert asked == ["status"]


def test_half_a_line_and_gone(run, path):
    async def main():
        async with Serving(path):
            assert json.loads(await raw(path, b'{"comm', eof=True))["error"] == "bad_request"
            assert json.loads(await raw(path, b"", eof=True))["error"] == "bad_request"

    run(main())


def test_a_silent_connection_is_closed_at_its_deadline(run, path):
    async def main():
        async with Serving(path, deadline_s=0.05):
            with contextlib.suppress(ConnectionResetError):
                assert await raw(path, b'{"command"') == b""
            assert (await send_command(path, "status", 90))["command"] == "status"

    run(main())


def test_connections_are_bounded(run, path):
    async def main():
        async with Serving(path) as server:
            held = [await asyncio.open_unix_connection(str(path)) for _ in range(MAX_CONNECTIONS)]
            await turn_until(lambda: len(server._serving) == MAX_CONNECTIONS)
            with pytest.raises(PeerError, match="too many"):
                await send_command(path, "status", 90)
            held[0][1].write(b'{"command": "status"}\n')
            assert json.loads(await held[0][0].read())["command"] == "status"
            await turn_until(lambda: len(server._serving) < MAX_CONNECTIONS)
            assert (await send_command(path, "status", 90))["command"] == "status"
            for _, writer in held:
                writer.close()
                await writer.wait_closed()

    run(main())


@pytest.mark.parametrize("under_way", [False, True])
def test_close_ends_connections_before_and_while_they_are_answered(run, path, under_way):
    begun, ended = [], []

    async def hangs(command, request):
        begun.append(command)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(command)
        return {}

    async def main():
        server = ControlServer(path, hangs)
        await server.start()
        asking = asyncio.create_task(send_command(path, "status", 90))
        await turn_until(lambda: bool(server._serving))
        if under_way:
            await turn_until(lambda: bool(begun))
        async with asyncio.timeout(90):
            await server.close()
            with pytest.raises(NotRunning):
                await asking
        await server.close()  # twice is no harm
        assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []

    run(main())
    assert ended == (["status"] if under_way else [])


def test_the_asker_does_not_wait_for_ever(run, path):
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    with listening, pytest.raises(NotRunning, match="does not answer in time"):
        run(send_command(path, "status", 0.05))


def answering(path: Path, data: bytes) -> threading.Thread:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()

    def serve():
        with listening:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                with contextlib.suppress(ConnectionError):
                    connection.sendall(data)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize("data", [b"", b"nonsense\n", b"[1]\n", b"{", b"x" * (2 * MAX_REPLY)])
def test_something_else_answers(run, path, data):
    thread = answering(path, data)
    with pytest.raises(NotRunning):
        run(send_command(path, "status", 90))
    thread.join(5)
    assert not thread.is_alive()


def test_a_reply_is_bounded(run, path):
    async def long(command, request):
        return {"x": "y" * (MAX_REPLY if command == "leave" else MAX_REPLY - 100)}

    async def main():
        async with Serving(path, long):
            assert len((await send_command(path, "status", 90))["x"]) == MAX_REPLY - 100
            with pytest.raises(PeerError, match="longer than"):
                await send_command(path, "leave", 5)

    run(main())


def test_errors_of_the_handler(run, path):
    reported = []

    async def fails(command, request):
        if command == "leave":
            raise UsageError("not now", "Wait.")
        raise ZeroDivisionError

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["exception"]))
        async with Serving(path, fails):
            with pytest.raises(PeerError, match="not now") as error:
                await send_command(path, "leave", 5)
            assert error.value.fix == "Wait."
            with pytest.raises(NotRunning):
                await send_command(path, "status", 90)

    run(main())
    assert [type(error) for error in reported] == [ZeroDivisionError]


AS_ANOTHER = """
import asyncio, os, pathlib, sys
from peer.errors import NotRunning
from peer.node.control import send_command
if os.geteuid() == 0:
    os.setresuid(54321, 54321, 54321)
try:
    asyncio.run(send_command(pathlib.Path(sys.argv[1]), "status", 3.0))
except NotRunning as error:
    print(error.found)
"""


@pytest.mark.processes
def test_a_home_that_cannot_be_entered_is_no_daemon(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0)
    command = [sys.executable, "-c", AS_ANOTHER, str(home / "control.sock")]
    told = subprocess.check_output(command, text=True, timeout=60)
    assert "may not look into it: whether a daemon runs there cannot be seen" in told
