"""Real causes of errors: the message names the user's own values, the exit code is that of the error, and no
half-written file remains."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from peer.clock.run_clock import RunClock
from peer.discovery.dht_node import process
from peer.discovery.dht_node.supervisor import SupervisorTimes
from peer.discovery.directory import DhtDirectory
from peer.errors import AddressError, DirectoryFailed, IdentityError, ManifestError, PeerError, SwarmUnreachable
from peer.identity import Identity, load_or_create
from peer.joining.context import JoinContext
from peer.joining.manifest import obtain_manifest
from peer.node.handler import RequestHandler
from peer.protocol.messages import PeerId, RunId
from peer.protocol.model.layout import Layout, TensorSpec
from peer.run.home import Home, write_whole
from peer.run.manifest import SignedManifest, default_text, sign_text, signature_path, store_signed, write_new
from peer.run.overrides import apply_overrides
from peer.run.schema import FORMAT
from peer.run.ticket import Ticket
from peer.trainer.arena import Arena, CounterFile
from peer.transport.grpc_transport import GrpcTransport

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
CLOCK = "import os, time\noff, real = float(os.environ['CLOCK_OFF']), time.time\ntime.time = lambda: real() + off\n"


def tree(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


class Command:
    """`peer …` as a process. It is started at once and read later, so that several run in parallel."""

    def __init__(self, *arguments: str, path: Path | None = None, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "peer", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment | ({"PYTHONPATH": str(path)} if path else {}),
        )

    def ended(self, code: int) -> str:
        """Return the error that the process printed before it exited with `code`."""
        out, err = self._process.communicate(timeout=180)
        assert self._process.returncode == code, (out, err)
        assert "Traceback" not in err, err
        assert f"see: peer help exit-codes {code}\n" in err
        assert "\n  why: " in err
        assert "\n  fix: " in err
        return err

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def commands(*started: Command) -> Iterator[None]:
    with ExitStack() as stack:
        for command in started:
            stack.callback(command.kill)
        yield


# -- before anything is started ----------------------------------------------------------------------------------------

BAD = """\
format = 1
nmae = "x"
[model]
hidden_size = 65
vocab_size = 100
[train]
context = 999
[wire]
min = 3
max = 2
[sync]
outer_momentum = 0.9
consensus = 0.7
sync_evry = 5
"""


@pytest.mark.processes
@pytest.mark.nightly
def test_tickets_and_manifests_that_cannot_be(tmp_path: Path) -> None:
    ticket = Ticket(b"r" * 32, (f"/ip4/127.0.0.1/tcp/9/p2p/{Identity.generate().peer_id}",)).encode()
    signed = sign_text(default_text(), Identity.generate(), tmp_path / "good.toml")
    tampered, newer, bad = (tmp_path / name for name in ("tampered.toml", "newer.toml", "bad.toml"))
    tampered.write_bytes(signed.raw.replace(b"seed = 0", b"seed = 1"))
    signature_path(tampered).write_bytes(signature_path(tmp_path / "good.toml").read_bytes())
    newer.write_bytes(signed.raw.replace(b"format = 4", b"format = 9"))
    bad.write_text(BAD)
    home = tmp_path / "home"
    at_home = ("--home", str(home))
    mistyped = ticket[:40] + ("a" if ticket[40] != "a" else "b") + ticket[41:]
    expected: list[tuple[Command, int, Sequence[str]]] = [
        (Command("join", ticket[:-9], *at_home), 21, ["truncated", f"its {len(ticket) - 9} char"]),
        (Command("id", "show", "--home", str(newer / "home")), 12, [f"{newer / 'home'}: Not a directory"]),
        (Command("join", mistyped, *at_home), 21, ["checksum does not match"]),
        (Command("join", str(newer), *at_home), 20, ["format 9", f"knows up to {FORMAT}", "peer help install update"]),
        (Command("manifest", "check", str(tampered), "--json"), 20, ["changed after", f"manifest sign {tampered}"]),
        (
            Command("manifest", "check", str(bad)),
            20,
            ["line 2, nmae: unknown key", "line 3, model: hidden_size must", "line 5, model.vocab_size: ",
             "line 7, train.context: ", "line 9, wire.min: ", "line 12, sync.outer_momentum: ",
             "line 14, sync.sync_evry: unknown key"],
        ),
    ]  # fmt: skip
    with commands(*(command for command, _, _ in expected)):
        for command, code, words in expected:
            said = command.ended(code)
            assert all(word in said for word in words), said
    assert not home.exists()


@pytest.mark.processes
def test_another_torch_or_a_broken_one_is_named_before_it_is_loaded(tmp_path: Path) -> None:
    other, broken = tmp_path / "other", tmp_path / "broken"
    (other / "torch-2.0.0.dist-info").mkdir(parents=True)
    (other / "torch-2.0.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.0.0\n")
    (broken / "torch").mkdir(parents=True)
    (broken / "torch" / "__init__.py").write_text("raise ImportError('libtorch.so: no such file')\n")
    ticket = Ticket(b"r" * 32, (f"/ip4/127.0.0.1/tcp/9/p2p/{Identity.generate().peer_id}",)).encode()
    arguments = ("join", ticket, "--home", str(tmp_path / "home"))
    first, second = Command(*arguments, path=other), Command(*arguments, path=broken)
    with commands(first, second):
        said = first.ended(14)
        assert "torch 2.0.0 is installed" in said
        assert "pip install --force-reinstall 'torch" in said
        assert "cannot be loaded: libtorch.so: no such file" in second.ended(14)
    assert not (tmp_path / "home").exists()


# -- daemons that cannot begin -----------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.nightly
def test_daemons_that_cannot_begin(tmp_path: Path) -> None:
    asyncio.run(_daemons_that_cannot_begin(tmp_path))


async def _daemons_that_cannot_begin(tmp_path: Path) -> None:
    """Start daemons with an unreachable bootstrap node, a wrong clock, and a model too large for this machine, in
    parallel."""
    huge = ["hidden_size=32768", "num_hidden_layers=64", "num_attention_heads=64", "num_key_value_heads=64"]
    settings = [*(f"model.{one}" for one in huge), f"limits.max_fragment_bytes={2**40}"]
    sign_text(apply_overrides(default_text(), settings), Identity.generate(), tmp_path / "huge.toml")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(CLOCK)
    directory = await a_directory(tmp_path / "node")
    nobody = f"/ip4/127.0.0.1/tcp/{free_port()}/p2p/{Identity.generate().peer_id}"
    tickets = [Ticket(b"r" * 32, (address,)).encode() for address in (nobody, directory.addresses()[0])]

    def join(what: str, home: str, path: Path | None = None, **environment: str) -> Command:
        where = ("--home", str(tmp_path / home), "--host-maddrs", LOOPBACK, "--wait", "2", "--device", "cpu")
        return Command("join", what, *where, path=path, **environment)

    unreachable, ahead = join(tickets[0], "u"), join(tickets[1], "c", tmp_path / "site", CLOCK_OFF="600")
    too_small = join(str(tmp_path / "huge.toml"), "m")
    try:
        with commands(unreachable, ahead, too_small):
            said = await asyncio.to_thread(unreachable.ended, 30)
            assert f"{nobody}\n    connection refused" in said
            assert "within 2 s" in said
            assert "clock is 600 s ahead of the clocks of the others" in await asyncio.to_thread(ahead.ended, 34)
            said = await asyncio.to_thread(too_small.ended, 13)
            assert "parameters (daemon " in said
            assert "are free here" in said
    finally:
        await directory.close()
    for home in ("u", "c", "m"):
        left = {name.rpartition("/")[2] for name in tree(tmp_path / home)}
        kept = {
            "lock",
            "identity.key",
            "identity.key.lock",
            "journal.jsonl",
            "directory.json",
            "ports.json",
            "peer.log",
        }
        assert left == kept, home


async def a_directory(folder: Path, *initial_peers: str, dial_s: float = 5.0) -> DhtDirectory:
    identity = load_or_create(folder / "key")
    return await DhtDirectory(
        identity=identity,
        identity_path=folder / "key",
        run_id=RunId(b"r" * 32),
        initial_peers=initial_peers,
        host_maddrs=[LOOPBACK],
        pace=SupervisorTimes(dial=dial_s, first_join=dial_s + 1),
    ).start()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.mark.processes
def test_each_address_has_its_own_reason_and_the_wait_ends(tmp_path: Path) -> None:
    asyncio.run(_each_address_has_its_own_reason(tmp_path))


async def _each_address_has_its_own_reason(tmp_path: Path) -> None:
    answering = await a_directory(tmp_path / "a")
    where, _, real = answering.addresses()[0].rpartition("/p2p/")
    others = [Identity.generate().peer_id for _ in range(3)]
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        wrong_key = f"{where}/p2p/{others[0]}"
        refused = f"/ip4/127.0.0.1/tcp/{free_port()}/p2p/{others[1]}"
        silent = f"/ip4/127.0.0.1/tcp/{deaf.getsockname()[1]}/p2p/{others[2]}"
        lost = await a_directory(tmp_path / "b", wrong_key, refused, silent, dial_s=1.0)
        said: list[str] = []
        identity, clock = Identity.generate(), RunClock()
        run = RunId(b"r" * 32)
        transport = GrpcTransport(identity, run, RequestHandler(), clock.now)
        context = JoinContext(
            run_id=run, me=PeerId("me"), directory=lost, transport=transport, clock=clock, say=said.append
        )
        try:
            with pytest.raises(SwarmUnreachable) as caught:
                await obtain_manifest(context, 1.5)
        finally:
            await lost.close()
            await answering.close()
    found = caught.value.found
    assert f"{wrong_key}\n    answers with another key: it is {real}" in found
    assert f"{refused}\n    connection refused" in found
    assert f"{silent}\n    no answer" in found
    for advice in ("ticket is out of date", "start the bootstrap node", "firewall"):
        assert advice in caught.value.fix
    assert "waiting for the manifest, at most 2 s" in said[0]


def test_an_occupied_port_is_named_and_a_foreign_host_too() -> None:
    asyncio.run(_an_occupied_port())


async def _an_occupied_port() -> None:
    clock = RunClock()
    transport = GrpcTransport(Identity.generate(), RunId(b"r" * 32), RequestHandler(), clock.now)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(AddressError, match=f"127.0.0.1:{port}: another program holds this port") as caught:
            await transport.start("127.0.0.1", port)
        assert f"--port than {port}" in caught.value.fix
    with pytest.raises(AddressError, match=r"192\.0\.2\.7"):
        await transport.start("192.0.2.7", 0)
    await transport.close()


@pytest.mark.processes
def test_a_p2pd_that_may_not_be_run_is_named_with_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "p2pd"
    binary.write_text("")
    binary.chmod(0o600)
    monkeypatch.setattr(process, "BINARY", binary)
    with pytest.raises(DirectoryFailed, match="may not be run") as caught:
        asyncio.run(a_directory(tmp_path / "home"))
    assert caught.value.fix == f"Run: chmod +x {binary}"


# -- a full disk -------------------------------------------------------------------------------------------------------


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a full disk: files can be created, but nothing can be written into them."""

    def no_space(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def no_bytes(path: Path, data: bytes) -> int:
        path.touch()
        return no_space()

    real = os.open

    def of_a_full_disk(path: Path, flags: int, *rest: int, **named: int) -> int:
        descriptor = real(path, flags, *rest, **named)
        if flags & os.O_ACCMODE != os.O_WRONLY:
            return descriptor
        os.close(descriptor)
        return real("/dev/full", os.O_WRONLY | os.O_CLOEXEC)

    monkeypatch.setattr(os, "open", of_a_full_disk)
    monkeypatch.setattr(os, "fsync", no_space)
    monkeypatch.setattr(os, "pwrite", no_space)
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    monkeypatch.setattr(Path, "write_bytes", no_bytes)


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, full: None) -> None:
    layout = Layout.whole([TensorSpec("a", (1000,))])
    operator, kept = Identity.generate(), tmp_path / "manifest.toml"
    attempts = [
        lambda: load_or_create(tmp_path / "identity.key"),
        lambda: write_whole(tmp_path / "ports.json", b"{}"),
        lambda: store_signed(kept, SignedManifest(b"raw", b"signature")),
        lambda: write_new(tmp_path / "run.toml", operator),
        lambda: Arena(tmp_path, layout, create=True),
        lambda: CounterFile(tmp_path, 1),
    ]
    for attempt in attempts:
        with pytest.raises(PeerError, match="No space left on device") as caught:
            attempt()
        assert str(tmp_path) in caught.value.found
        assert "Free" in caught.value.fix
        assert tree(tmp_path) == set()


def test_a_full_disk_at_the_lock_is_told_and_lets_go_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path)
    with monkeypatch.context() as patch:

        def no_space(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(os, "pwrite", no_space)
        with pytest.raises(PeerError, match="No space left") as caught, home.lock():
            pass
        assert caught.value.exit_code == 12
    with home.lock():
        pass


def test_a_signature_that_cannot_be_kept_takes_its_manifest_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest without its signature would later be read as a tampered one."""

    def fails_at_signatures(real: Callable[..., int]) -> Callable[..., int]:
        def call(path: Path, *rest: Any, **named: Any) -> int:
            if ".sig" in str(path):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(path, *rest, **named)

        return call

    monkeypatch.setattr(os, "open", fails_at_signatures(os.open))
    monkeypatch.setattr(Path, "write_bytes", fails_at_signatures(Path.write_bytes))
    with pytest.raises(PeerError, match=r"manifest\.toml\.sig"):
        store_signed(tmp_path / "manifest.toml", SignedManifest(b"raw", b"signature"))
    with pytest.raises(ManifestError, match=r"run\.toml\.sig"):
        write_new(tmp_path / "run.toml", Identity.generate())
    assert tree(tmp_path) == set()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EROFS, "mounted read-only"),
        (errno.EACCES, "Give your user the right"),
        (errno.ENOSPC, "Free some space"),
    ],
)
def test_what_to_do_follows_from_what_the_system_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(IdentityError) as caught:
        load_or_create(tmp_path / "identity.key")
    assert words in caught.value.fix
    assert str(tmp_path) in caught.value.fix
