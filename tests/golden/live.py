"""Names that appear only when daemons run: in their status, in answers on the control socket, and in their homes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from safetensors import safe_open

from peer.cli.main import peer as command_line
from peer.errors import PartnerSilent
from peer.lab.localswarm.processes import ANYWHERE, Daemon, start_bootstrap, start_peer
from peer.membership.failure_detector import FailureDetector
from peer.membership.reputation import Reputation
from peer.membership.slow_peers import SlowPeerMonitor
from peer.node.control import MAX_CONNECTIONS, MAX_REQUEST, ControlServer, pause_or_resume
from peer.observe.progress import Waits
from peer.observe.status.codec import to_json
from peer.observe.status.value import Notice
from peer.protocol.messages import PeerId, PeerTimings, SwapReport, TransferTimings
from peer.protocol.policy.amendments import Change, RunPolicy
from peer.rounds.pause import LocalPause
from peer.run.home import Home
from peer.run.manifest import SignedManifest, default_text, load_signed, sign_text, signature_path
from peer.run.overrides import apply_overrides
from peer.run.statements.files import beside, write_statements
from peer.run.statements.kinds import AMENDMENT
from peer.run.statements.log import StatementLog
from tests.golden.names import identity
from tests.golden.shapes import Shape, both, differences, shape

MODEL = [
    "hidden_size=8",
    "intermediate_size=8",
    "num_hidden_layers=1",
    "num_attention_heads=1",
    "num_key_value_heads=1",
]
TRAIN = ["context=8", "batch=2", "total_rounds=1000000000", "eval_every=2", "eval_windows=4"]
SYNC = ["sync.clock=seconds", "sync_every=4"]
PATIENCE_S = 300.0
MAPS = {"rounds", "paths", "refusal_counts"}
"""Paths in a status whose keys are outcomes and codes, which are frozen elsewhere."""


@dataclass
class Seen:
    """The shapes that a swarm has shown so far."""

    status: dict[str, Shape] = field(default_factory=dict)
    """For each role."""
    control: dict[str, Shape] = field(default_factory=dict)
    """For each request."""
    home: dict[str, Shape] = field(default_factory=dict)
    """For each path below a home: the shape of a readable file."""

    def add(self, of: dict[str, Shape], name: str, found: Shape) -> None:
        of[name] = both(of.get(name, "null"), found)


# -- parts of a status that a healthy swarm does not show --------------------------------------------------------------


def troubles() -> dict[str, Any]:
    """Return the report of a peer in trouble, made by the production code."""
    partner = PeerId("partner")
    conduct = Reputation(lambda: 100.0, lambda event: None)
    for _ in range(50):
        conduct.penalize(partner, "checksum", "it did not match")
    conduct.refused("203.0.113.7", "no_token", "it said no Hello")
    watch = FailureDetector(lambda: 100.0)
    watch.failed(partner, "no answer", 10.0)
    waits = [Waits(lambda: 100.0), Waits(lambda: 100.0)]
    waits[0].update("reaching the run", 0.5, 120.0, "s")
    waits[1].update("fetching", 3, 5, "bytes")
    fine, stuck = SlowPeerMonitor(lambda: 100.0, lambda event: None), SlowPeerMonitor(lambda: 100.0, lambda event: None)
    for at in range(20):
        told = PeerTimings(100.0, 1.0, 5e6, 5e6)
        fine.exchanged(
            PeerId(f"p{at % 4}"), SwapReport(10**7, 10**7, 2.0, True, told, told, TransferTimings(1.0, 3.0, 5e6, 5e6))
        )
        stuck.failed(partner, PartnerSilent("it stopped", "silent"))
    found = to_json(conduct.report())
    assert all(found.values()), found
    assert stuck.found()
    assert to_json(fine.numbers()).keys() == {"sent", "received", "late_s"}, fine.numbers()
    wait = both(*(shape(to_json(one.report())) for one in waits))
    rest = LocalPause(now=lambda: 100.0)
    rest.pause(60.0)
    seconds = {"cut_off_s": "float"}  # present only while no peer answers at all
    return {
        "membership": both(shape(to_json(watch.report())), seconds),
        "diagnosis": [*map(both, shape(to_json(stuck.report())), [{"number": "float"}])],
        "exchanging": shape(to_json(fine.numbers())),
        "wait": wait,
        "machine": {"unfit": ["str"], "fixes": ["str"]},
        "admission": {"until": "str"},
        "paused": shape(to_json(rest.report())),
        **shape(found, MAPS),
    }


# -- a swarm -----------------------------------------------------------------------------------------------------------


@dataclass
class Swarm:
    """A bootstrap node and two peers in a folder. `kept`: a run folder written by `keep_run`, which the first peer
    resumes."""

    folder: Path
    preset: str
    kept: Path | None = None

    def __post_init__(self) -> None:
        self.bootstrap = Daemon("bootstrap", self.folder / "b")
        self.peers = [Daemon(f"peer {n}", self.folder / f"p{n}") for n in (1, 2)]
        self.manifest = self.folder / "run.toml"
        self.signed = self._signed()
        for daemon, number in ((self.bootstrap, 1), (self.peers[0], 2)):
            key = Home(daemon.home).identity
            key.touch(mode=0o600)
            key.write_bytes(identity(number).to_bytes())
        if self.kept is not None:
            self._take_up(self.kept)

    def _signed(self) -> SignedManifest:
        operator = identity(1)
        if self.kept is not None:
            for name, ours in (("manifest.toml", "run.toml"), ("manifest.toml.sig", "run.toml.sig")):
                shutil.copy(self.kept / name, self.folder / ours)
            shutil.copy(self.kept / "amendments.jsonl", beside(self.manifest, AMENDMENT))
            return load_signed(self.manifest)
        settings = [*MODEL, *TRAIN, *SYNC, f"preset={self.preset}"]
        signed = sign_text(apply_overrides(default_text(), settings), operator, self.manifest)
        log = StatementLog(signed.run_id, operator.peer_id)
        log.amend(operator, 0, Change.LR_SCALE, "a try", value=0.5)
        write_statements(beside(self.manifest, AMENDMENT), log.chain)
        return signed

    def _take_up(self, kept: Path) -> None:
        """Set the run's start to a recent time, so that a checkpoint of its first rounds is fresh."""
        shutil.copytree(kept, self.first_folder, dirs_exist_ok=True)
        for folder in (self.first_folder, Home(self.bootstrap.home).run(self.signed.run_id).path):
            (folder / "run_start").write_text(repr(time.time() - 60.0))

    @property
    def role(self) -> str:
        return "group" if "diloco" in self.preset else "pair"

    @property
    def first_folder(self) -> Path:
        """The run's folder in the home of the first peer."""
        return Home(self.peers[0].home).run(self.signed.run_id).path

    async def start(self) -> None:
        where = (*ANYWHERE, "--max-upload", "5e7")
        # The pair's run is continued later, so its node stores a state at once. For the group chance would decide.
        more = () if self.role == "pair" else ("--no-keep-latest",)
        ticket = await start_bootstrap(self.bootstrap, self.manifest, 2, where=where, more=more)
        hour = time.localtime().tm_hour
        quiet = f"{(hour + 11) % 24:02}:00-{(hour + 12) % 24:02}:00"
        limits = ("--max-upload", "5e7", "--max-download", "5e7", "--quiet-hours", quiet, "--trail")
        limits = (*limits, "--daily-upload", "50GB", "--monthly-upload", "500GB", "--keep-checkpoints", "1")
        for daemon in self.peers:
            await start_peer(
                daemon, ticket, threads=1, speed=0.2, min_peers=2, more=(*limits, "--checkpoint-every", "3")
            )

    async def stop(self) -> None:
        for daemon in (*self.peers, self.bootstrap):
            await daemon.stop(15.0)


async def watched(swarm: Swarm, frozen: Seen | None) -> Seen:
    """Run a swarm from start to end and return the shapes that it has shown. `frozen`: the expected shapes; watching
    ends when all were seen, or after a timeout."""
    notices = {"notices": [shape(to_json(Notice("slow", "slow", "the uplink is slow")))]}
    seen, first = Seen({swarm.role: troubles() | notices, "bootstrap": notices}), swarm.peers[0]
    try:
        await swarm.start()
        if frozen is None:
            await _until(lambda: _is_busy(swarm, seen), PATIENCE_S)
            for _ in range(100):  # late values are present by then
                await _look(swarm, seen)
                await asyncio.sleep(0.2)
        else:
            await _until(lambda: _has_shown(swarm, seen, frozen), PATIENCE_S)
        await _until(lambda: _have_exchanged(swarm), PATIENCE_S)
        await _until(lambda: _has_checkpoints(swarm), PATIENCE_S)
        await _converse(swarm, seen, first)
        _list_homes(swarm, seen)
        seen.add(seen.control, "leave", await _asked(first, {"command": "leave"}))
        async with asyncio.timeout(PATIENCE_S):
            assert await first.wait() == 0, first.log_tail()
        await _until(lambda: _homes_are(swarm, seen, frozen), 20.0)
    finally:
        await swarm.stop()
    seen.home = dict(sorted(seen.home.items()))
    return seen


async def _is_busy(swarm: Swarm, seen: Seen) -> bool:
    await _look(swarm, seen)
    status = seen.status[swarm.role]
    return "peers" in status and status.get("val_loss", "null") != "null"


async def _has_shown(swarm: Swarm, seen: Seen, frozen: Seen) -> bool:
    """Return whether all expected names were seen, or a name that is not frozen."""
    await _look(swarm, seen)
    found = [line for name in frozen.status for line in differences(frozen.status[name], seen.status.get(name))]
    return not found or any(line.endswith("is new") for line in found)


async def _homes_are(swarm: Swarm, seen: Seen, frozen: Seen | None) -> bool:
    _list_homes(swarm, seen)
    return frozen is None or not differences(frozen.home, dict(sorted(seen.home.items())))


async def _have_exchanged(swarm: Swarm) -> bool:
    statuses = [await daemon.status() for daemon in swarm.peers]
    return all(status is not None and status.get("rounds", {}).get("exchanged", 0) >= 2 for status in statuses)


async def _look(swarm: Swarm, seen: Seen) -> None:
    for name, daemon in (*((swarm.role, peer) for peer in swarm.peers), ("bootstrap", swarm.bootstrap)):
        assert daemon.running, daemon.log_tail()
        if (status := await daemon.status()) is not None:
            seen.add(seen.status, name, shape(status, MAPS))


async def _until(done: Callable[[], Awaitable[bool]], seconds: float) -> bool:
    """Wait for a condition; return whether it became true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if await done():
            return True
        await asyncio.sleep(0.1)
    return False


async def _has_checkpoints(swarm: Swarm) -> bool:
    folders = [Home(daemon.home).run(swarm.signed.run_id).checkpoints for daemon in swarm.peers]
    return all(any(folder.glob("checkpoint-*")) for folder in folders)


# -- the control socket ------------------------------------------------------------------------------------------------


async def _asked(daemon: Daemon, request: Any) -> Shape:
    """Return the answer to a raw request."""
    reply = await _raw(Home(daemon.home).control_socket, json.dumps(request).encode() + b"\n")
    return {"request": shape(request), "answer": shape(reply)}


async def _raw(path: Path, line: bytes) -> Any:
    reader, writer = await asyncio.open_unix_connection(str(path), limit=2**21)
    try:
        writer.write(line)
        return json.loads(await reader.readline())
    finally:
        writer.close()


async def _converse(swarm: Swarm, seen: Seen, first: Daemon) -> None:
    """Send every request that a person can make to a daemon, except to leave. A pause leaves a file behind."""
    pause: dict[str, Any] = {"command": "pause", "for_s": None}
    for request in (pause, {"command": "resume"}, {**pause, "for_s": 3600.0}):
        seen.add(seen.control, str(request["command"]), await _asked(first, request))
    seen.add(seen.control, "an error", await _asked(swarm.bootstrap, {"command": "pause"}))


def commands_asked(folder: Path) -> dict[str, Shape]:
    """Return what each command of the command line writes to the socket."""
    asked: dict[str, Shape] = {}

    async def handle(command: str, request: dict[str, Any]) -> dict[str, Any]:
        asked[command] = shape(request)
        return {"paused": {"now": "no"}, "paused_by_the_operator": None}

    async def serve() -> None:
        server = ControlServer(Home(folder).control_socket, handle)
        await server.start()
        for arguments in (["status", "--json"], ["leave"], ["pause", "--for", "1h"], ["resume"]):
            call = [*arguments, "--home", str(folder)]
            result = await asyncio.to_thread(CliRunner().invoke, command_line, call, catch_exceptions=False)
            assert result.exit_code == 0, result.output
        await server.close()

    asyncio.run(serve())
    return asked


def paused_by_both() -> Shape:
    """Return the answer to a pause while the operator has also paused the run."""
    policy = RunPolicy(paused="for a while")
    return shape(pause_or_resume("pause", {"for_s": 60.0}, LocalPause(now=lambda: 100.0), policy, lambda line: None))


def control_codes(folder: Path) -> dict[str, Any]:
    """Return the codes and keys with which the control socket refuses malformed requests."""

    async def handle(command: str, request: dict[str, Any]) -> dict[str, Any]:
        return {"large": "x" * 2**21}

    async def serve() -> dict[str, Any]:
        path = Home(folder).control_socket
        server = ControlServer(path, handle)
        await server.start()
        found = {
            "no JSON": await _raw(path, b"hello\n"),
            "no object": await _raw(path, b"[]\n"),
            "no such command": await _raw(path, b'{"command": "dance"}\n'),
            "a long request": await _raw(path, b"x" * (MAX_REQUEST + 9) + b"\n"),
            "a long answer": await _raw(path, b'{"command": "status"}\n'),
        }
        idle = [await asyncio.open_unix_connection(str(path)) for _ in range(MAX_CONNECTIONS)]
        await asyncio.sleep(0.1)
        found["a crowd"] = await _raw(path, b'{"command": "status"}\n')
        for _, writer in idle:
            writer.close()
        await server.close()
        return found

    return {what: {**reply, "reason": "a sentence"} for what, reply in asyncio.run(serve()).items()}


# -- homes -------------------------------------------------------------------------------------------------------------

_SKIPPED = re.compile(r"(daemon\.log|ticket|\..*)")
"""Temporary files, which appear and disappear, and the swarm's log and ticket."""
_VARIABLE = ((re.compile(r"runs/[0-9a-f]{16}"), "runs/RUN"), (re.compile(r"checkpoint-\d+"), "checkpoint-N"))
_ADDRESSES = {"listened"}
_FROZEN_APART = {"run_view.json"}
"""Files whose contents depend on the duration of a swarm. `tests.golden.names` freezes them."""


def _list_homes(swarm: Swarm, seen: Seen) -> None:
    for role, daemon in (*(("peer", peer) for peer in swarm.peers), ("bootstrap", swarm.bootstrap)):
        for path in _all_in(daemon.home):
            name = str(path.relative_to(daemon.home))
            if not any(_SKIPPED.fullmatch(part) for part in Path(name).parts):
                for pattern, word in _VARIABLE:
                    name = pattern.sub(word, name)
                with contextlib.suppress(FileNotFoundError):  # a checkpoint removed in favour of the next one
                    seen.add(seen.home, f"{role}: {name}", _content(path))


def _all_in(home: Path) -> list[Path]:
    """Return the files below a folder, ignoring those that are removed meanwhile."""
    return [Path(folder, name) for folder, folders, files in os.walk(home) for name in (*folders, *files)]


def _content(path: Path) -> Shape:
    mode = path.stat().st_mode  # raises for a removed file, where `is_file` would return False
    if stat.S_ISDIR(mode):
        return "folder"
    if stat.S_ISSOCK(mode):
        return "socket"
    if path.suffix == ".safetensors":
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in sorted(file.keys())}
            return {name: f"{part.get_dtype()} x {len(part.get_shape())}" for name, part in slices.items()}
    if path.parent.name == "artifacts":  # its lock is empty, and the rest are files of others
        return "file"
    if path.name in _FROZEN_APART:
        return "file"
    if path.suffix == ".json" or path.name in ("run_start", "run_round", "lock", "identity.key.lock"):
        return shape(json.loads(path.read_text()), _ADDRESSES)
    if path.name == "trail.log":
        return " ".join("int" if word.isdecimal() else "hex" for word in path.read_text().split("\n")[0].split()[:4])
    if path.name == "amendments.jsonl":
        return shape([json.loads(line) for line in path.read_text().splitlines()])
    return "file"


# -- a run to keep -----------------------------------------------------------------------------------------------------

KEPT = ("manifest.toml", "manifest.toml.sig", "amendments.jsonl", "journal.jsonl", "counters.bin")


def keep_run(swarm: Swarm, target: Path) -> None:
    """Copy a peer's run folder: its newest checkpoint, its complete journal, its counters."""
    folder = swarm.first_folder
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in KEPT:
        shutil.copy(folder / name, target / name)
    newest = max((folder / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    shutil.copytree(newest, target / "checkpoints" / newest.name)
    assert signature_path(target / "manifest.toml").exists()
