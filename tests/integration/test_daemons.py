"""Real processes on loopback: an operator's node and two peers under one fault after the other, with lost work counted.
The tests run in the order of the file on one shared swarm, and each leaves it intact."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import shutil
import signal
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from peer import identity as identities
from peer.errors import KeyInUse
from peer.lab.localswarm.processes import LOOPBACK, Daemon, start_bootstrap, start_peer
from peer.observe import events
from peer.observe.event_codec import read_lines
from peer.observe.metrics import METRICS
from peer.observe.run_metrics import RUN_METRICS
from peer.observe.totals import ledger, read_totals
from peer.run.home import Home
from peer.run.manifest import SignedManifest, default_text, load_signed, sign_text
from peer.run.memory import memory_need
from peer.run.overrides import apply_overrides
from peer.trainer.arena import read_counters
from tests.prometheus_text import Family, parse

pytestmark = pytest.mark.processes

SETTINGS = ["sync.clock=seconds", "sync_every=3", "total_rounds=100000", "eval_every=5", "eval_windows=16", "batch=2"]
ELEMENTS = 217_664
METRICS_PAGE = ("--metrics-port", "0")
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
STOPPED_S = 12.0
"""Four rounds."""


async def eventually(what: str, seconds: float, check: Callable[[], Awaitable[Any]]) -> Any:
    """Poll until `check` returns a true value, and return it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := await check():
            return found
        await asyncio.sleep(0.2)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


def children(pid: int) -> list[int]:
    """Return the direct children of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def exchanged(status: dict[str, Any] | None) -> int:
    return 0 if status is None else int(status.get("rounds", {}).get("exchanged", 0))


def imbalance(daemon: Daemon, signed: SignedManifest, elements: int) -> int:
    folder = Home(daemon.home).run(signed.run_id)
    counters = read_counters(folder.path, 1)
    book = ledger(read_totals(folder.journal), counters.tokens, counters.base, [elements])
    assert book.processed > 0
    return book.imbalance


async def trains_on(peers: list[Daemon]) -> None:
    """Wait until every peer has exchanged at least once more."""
    before = [exchanged(await daemon.status()) for daemon in peers]
    for daemon, count in zip(peers, before, strict=True):

        async def once_more(daemon: Daemon = daemon, count: int = count) -> bool:
            assert daemon.running, daemon.log_tail()
            return exchanged(await daemon.status()) > count

        await eventually(f"{daemon.name} exchanges", 180, once_more)


async def status_of(daemon: Daemon) -> dict[str, Any]:
    assert daemon.running, daemon.log_tail()
    return await daemon.status() or {}


# -- the swarm ---------------------------------------------------------------------------------------------------------


@dataclass
class SharedSwarm:
    """The node, the peers, and the event loop of their processes."""

    folder: Path
    node: Daemon
    peers: list[Daemon]
    signed: SignedManifest
    _runner: asyncio.Runner
    ticket: str = ""

    def play(self, scenario: Coroutine[Any, Any, None]) -> None:
        """Run a scenario. Beforehand all peers are up and exchange, also after a failed scenario."""
        self._runner.run(self._after(scenario))

    async def _after(self, scenario: Coroutine[Any, Any, None]) -> None:
        try:
            await self._whole()
        except BaseException:
            scenario.close()
            raise
        await scenario

    async def _whole(self) -> None:
        down = [daemon for daemon in self.peers if not daemon.running]
        if not self.node.running:
            self.ticket = await self.start_node()
        for daemon in down:
            await self.start(daemon)
        if down:
            await trains_on(self.peers)

    async def start_node(self) -> str:
        return await start_bootstrap(self.node, self.folder / "run.toml", 1, more=METRICS_PAGE)

    async def start(self, daemon: Daemon) -> None:
        await start_peer(daemon, self.ticket, threads=1, speed=0.2, min_peers=1, more=METRICS_PAGE)

    def journal(self, daemon: Daemon) -> list[events.Event]:
        lines = read_lines(Home(daemon.home).run(self.signed.run_id).journal)
        return [line[0] for line in lines if line is not None]

    async def stop(self) -> None:
        await asyncio.gather(*(daemon.stop(10.0) for daemon in (*self.peers, self.node)))


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedSwarm]:
    folder = tmp_path_factory.mktemp("s")
    node, peers = Daemon("bootstrap", folder / "b"), [Daemon(f"peer {n}", folder / f"p{n}") for n in (1, 2)]
    operator = identities.load_or_create(Home(node.home).identity)
    signed = sign_text(apply_overrides(default_text(), SETTINGS), operator, folder / "run.toml")
    with asyncio.Runner() as runner:
        made = SharedSwarm(folder, node, peers, signed, runner)
        yield made
        runner.run(made.stop())


# -- what they show ----------------------------------------------------------------------------------------------------


def get(url: str) -> tuple[str, str]:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


async def scrape(daemon: Daemon) -> dict[str, Family]:
    found = re.search(r"metrics: (http://127\.0\.0\.1:\d+)/metrics", daemon.log.read_text())
    assert found is not None
    assert (await asyncio.to_thread(get, f"{found[1]}/healthz"))[1] == "ok\n"
    kind, text = await asyncio.to_thread(get, f"{found[1]}/metrics")
    assert kind.startswith("text/plain; version=0.0.4")
    return parse(text)


class InTerminal:
    """`peer join` with a terminal as its output."""

    def __init__(self) -> None:
        self.shown = b""
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, home: Path, ticket: str) -> None:
        ours, theirs = pty.openpty()
        environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm", "COLUMNS": "100"}
        arguments = ["join", ticket, "--home", str(home), "--host-maddrs", LOOPBACK, "--threads", "1", "--yes"]
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "peer", *arguments, "--max-upload", "1e6"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env=environment,
        )
        os.close(theirs)
        self._terminal = ours
        asyncio.get_running_loop().add_reader(ours, self._read)

    def _read(self) -> None:
        try:
            self.shown += os.read(self._terminal, 65536)
        except OSError:  # the other end is closed
            asyncio.get_running_loop().remove_reader(self._terminal)

    async def stop(self, number: signal.Signals) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.process.wait()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._terminal)
        os.close(self._terminal)


async def metrics_and_a_terminal(swarm: SharedSwarm) -> None:
    plain, live = swarm.peers[0], InTerminal()
    try:
        await live.start(swarm.folder / "live", swarm.ticket)
        status = await status_of(plain)
        a_peer_tells_all(await scrape(plain), status)
        assert plain.process is not None
        told = memory_need(load_signed(swarm.folder / "run.toml").manifest).daemon
        assert 0.75 * told < own_memory(plain.process.pid) < 1.1 * told, "as `peer manifest show` tells"

        async def state_fetched() -> bool:
            return b"state: fetched from" in live.shown and b"nats a token" in live.shown

        await eventually("the third has its state", 180, state_fetched)
        a_bootstrap_node_tells_its_part(await scrape(swarm.node))
        assert await live.stop(signal.SIGINT) == 0
        the_terminal_was_used_and_given_back(live.shown.decode())
    finally:
        await live.stop(signal.SIGKILL)
        live.close()


def own_memory(pid: int) -> int:
    """Return the bytes of a process without the files that it maps."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(1024 * int(words[1]) for words in lines if words[0] in ("RssAnon:", "RssShmem:"))


def a_peer_tells_all(families: dict[str, Family], status: dict[str, Any]) -> None:
    assert {name: family.kind for name, family in families.items()} == {
        metric.name: "gauge" if metric.kind == "info" else metric.kind for metric in METRICS
    }
    silent = {name for name, family in families.items() if not family.samples}
    assert silent <= {"peer_network_cap_bytes_per_second", "peer_checkpoint_age_seconds"} | {
        "peer_checkpoint_duration_seconds",
        "peer_checkpoint_size_bytes",
        "peer_reachable",
        "peer_exchange_rate_bytes_per_second",  # absent until there were some exchanges
        "peer_trainer_late_seconds",
        "peer_upload_budget_bytes",  # absent without a budget
    }
    assert families["peer_status"].value(status="training") == 1
    assert families["peer_inner_steps_total"].value() >= status["steps"] > 0
    assert families["peer_rounds_total"].value(outcome="exchanged") >= status["rounds"]["exchanged"]
    duration = families["peer_exchange_duration_seconds"]
    assert duration.samples[f"{duration.name}_count", ""] == families["peer_rounds_total"].value(outcome="exchanged")
    tokens = {
        what: families[f"peer_tokens_{what}"].value() for what in ("applied_total", "dropped_total", "outstanding")
    }
    assert sum(tokens.values()) == pytest.approx(families["peer_tokens_processed_total"].value())
    for process in ("daemon", "trainer", "p2pd"):
        assert families["peer_process_resident_memory_bytes"].value(process=process) > 2**20, process
        assert families["peer_process_open_fds"].value(process=process) > 3, process
    assert families["peer_build_info"].samples
    assert 0 <= families["peer_event_loop_lag_seconds"].value() < 60


def a_bootstrap_node_tells_its_part(families: dict[str, Family]) -> None:
    assert set(families) == {metric.name for metric in METRICS if metric.bootstrap} | {one.name for one in RUN_METRICS}
    assert families["peer_status"].value(status="serving") == 1
    assert families["peer_network_bytes_total"].value(direction="sent") > 100_000, "it gave its state away"


def the_terminal_was_used_and_given_back(shown: str) -> None:
    assert "nats a token" in shown
    assert "tokens/s" in shown
    assert "of 1.00 MB/s" in shown
    assert "state: fetched from" in shown, "what is said scrolls above"
    assert HIDE in shown
    assert shown.rindex(SHOW) > shown.rindex(HIDE)
    assert "  left" in shown
    assert "Traceback" not in shown


def test_metrics_are_scraped_and_a_terminal_shows_the_live_view(swarm: SharedSwarm) -> None:
    swarm.play(metrics_and_a_terminal(swarm))


# -- a home on a second machine ----------------------------------------------------------------------------------------


async def a_copied_home(swarm: SharedSwarm) -> None:
    first, copy = swarm.peers[0], Daemon("copy", swarm.folder / "copy")
    copy.home.mkdir(mode=0o700)
    shutil.copy2(Home(first.home).identity, Home(copy.home).identity)

    async def known() -> bool:
        return bool((await status_of(first)).get("endpoints"))

    await eventually("the first has its place in the network", 180, known)
    try:
        await start_peer(copy, swarm.ticket, threads=1, speed=0.2, min_peers=1)
        async with asyncio.timeout(120):
            assert await copy.wait() == KeyInUse.exit_code, copy.log_tail()
    finally:
        await copy.stop(10.0)
    assert first.running
    said = copy.log_tail()
    assert "this key is in use on another machine since 20" in said
    assert f"make a new one with: peer id new --home {copy.home}" in said
    assert "Traceback" not in copy.log.read_text()
    assert [line["stops"] for line in key_shared(copy)] == [True]
    assert [line["stops"] for line in key_shared(first)] in ([False], [])


def key_shared(daemon: Daemon) -> list[dict[str, Any]]:
    path = next((daemon.home / "runs").glob("*/journal.jsonl"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["kind"] == "key_shared"]


@pytest.mark.nightly
def test_the_daemon_of_a_copied_home_stops_and_the_first_goes_on(swarm: SharedSwarm) -> None:
    swarm.play(a_copied_home(swarm))


# -- deaths ------------------------------------------------------------------------------------------------------------


async def a_killed_helper_costs_no_round(swarm: SharedSwarm) -> None:
    victim = swarm.peers[0]
    await trains_on(swarm.peers)
    before = await status_of(victim)
    seen = len(swarm.journal(victim))
    os.kill(before["directory"]["pid"], signal.SIGKILL)

    async def joined_again() -> bool:
        now = (await status_of(victim))["directory"]
        return bool(now["losses"] == 1 and now["state"] == "joined")

    await eventually("the helper is back among the others", 60, joined_again)
    after = await status_of(victim)
    assert after["directory"]["pid"] != before["directory"]["pid"]
    assert "signal 9 (SIGKILL)" in after["directory"]["last_loss"]
    await trains_on(swarm.peers)
    since = swarm.journal(victim)[seen:]
    assert [event.cause for event in since if isinstance(event, events.HelperEnded)] == [
        after["directory"]["last_loss"]
    ]
    (back,) = [event for event in since if isinstance(event, events.HelperBack)]
    assert 0 < back.seconds < 60  # how fast depends on what else the machine does, so this is no promise
    outcomes = [event.outcome for event in since if isinstance(event, events.RoundEnded)]
    assert outcomes == ["exchanged"] * len(outcomes), outcomes
    assert not [event for event in since if isinstance(event, events.RoundMissed)]


@pytest.mark.nightly
def test_a_killed_helper_costs_no_round(swarm: SharedSwarm) -> None:
    swarm.play(a_killed_helper_costs_no_round(swarm))


async def a_killed_trainer_comes_back(swarm: SharedSwarm) -> None:
    daemon = swarm.peers[0]
    first = await status_of(daemon)
    os.kill(first["trainer_pid"], signal.SIGKILL)

    async def another() -> bool:
        return (await status_of(daemon)).get("trainer_pid") not in (None, first["trainer_pid"])

    await eventually("the trainer is back", 90, another)
    await trains_on([daemon])


@pytest.mark.nightly
def test_a_killed_trainer_comes_back(swarm: SharedSwarm) -> None:
    swarm.play(a_killed_trainer_comes_back(swarm))


async def a_node_and_a_peer_die(swarm: SharedSwarm) -> None:
    """The peer resumes while the node is dead, and the restarted node is found at its former address."""
    victim = swarm.peers[1]
    folder = next((victim.home / "runs").iterdir())

    async def has_checkpoint() -> bool:
        return any((folder / "checkpoints").glob("checkpoint-*"))

    await eventually("a checkpoint", 120, has_checkpoint)
    assert victim.process is not None
    orphans = children(victim.process.pid)
    assert len(orphans) == 2, "the trainer and the DHT helper"
    for dead in (swarm.node, victim):
        dead.kill()
        await dead.wait()

    async def none_left() -> bool:
        return not any(alive(pid) for pid in orphans)

    await eventually("no child is left", 60, none_left)
    await swarm.start(victim)
    await trains_on(swarm.peers)
    assert "resumed from own checkpoint" in victim.log.read_text()
    await eventually("they forget the bootstrap node", 60, lambda: have_neighbours(1, *swarm.peers))
    assert await swarm.start_node() == swarm.ticket, "it listens where it did"
    await eventually("all see it again, and it them", 60, lambda: have_neighbours(2, swarm.node, *swarm.peers))


async def have_neighbours(count: int, *daemons: Daemon) -> bool:
    reports = [await status_of(daemon) for daemon in daemons]
    return all(report.get("neighbours") == count for report in reports)


def test_a_killed_daemon_leaves_nothing_and_resumes_without_a_node(swarm: SharedSwarm) -> None:
    swarm.play(a_node_and_a_peer_die(swarm))


# -- sleep and leave ---------------------------------------------------------------------------------------------------


async def a_sleeper(swarm: SharedSwarm) -> None:
    """A daemon that is stopped as by a closed lid detects that at once, and exchanges again."""
    sleeper = swarm.peers[0]
    seen = len(swarm.journal(sleeper))
    await trains_on([sleeper])
    assert sleeper.process is not None
    await stopped(sleeper.process.pid)
    await trains_on([sleeper])

    def told() -> list[events.Event]:
        return swarm.journal(sleeper)[seen:]

    async def is_told() -> bool:
        kinds = {type(event) for event in told()}
        return {events.Woke, events.Skipped} <= kinds

    await eventually("the sleep is in the journal", 60, is_told)
    woke = next(event for event in told() if isinstance(event, events.Woke))
    assert abs(woke.seconds - STOPPED_S) < 5.0
    assert woke.suspended_s < 1.0, "the machine was awake"
    skipped = next(event for event in told() if isinstance(event, events.Skipped))
    assert skipped.reason.startswith("was stopped for ")
    assert skipped.to_round - skipped.from_round >= 3


async def stopped(pid: int) -> None:
    """Send SIGSTOP, wait for the length of the fault, and send SIGCONT in any case."""
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(STOPPED_S)
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.nightly
def test_a_daemon_that_was_stopped_says_so_and_goes_on(swarm: SharedSwarm) -> None:
    swarm.play(a_sleeper(swarm))


async def all_leave(swarm: SharedSwarm) -> None:
    """All peers leave on Ctrl+C, and their ledgers balance."""
    await trains_on(swarm.peers)
    for daemon in swarm.peers:
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert await daemon.wait() == 0, daemon.log_tail()
        assert time.monotonic() - began < 30, "seconds, also beside busy loops"
    for daemon in swarm.peers:
        assert imbalance(daemon, swarm.signed, ELEMENTS) == 0, daemon.name


def test_whoever_leaves_is_gone_cleanly_and_nothing_is_lost(swarm: SharedSwarm) -> None:
    swarm.play(all_leave(swarm))
