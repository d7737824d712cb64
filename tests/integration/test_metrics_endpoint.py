"""Real daemons: metrics are scraped over HTTP, and the live view is drawn into a real (pseudo) terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from peer import identity as identities
from peer.lab.localswarm.processes import LOOPBACK, Daemon, start_bootstrap, start_peer
from peer.observe.metrics import METRICS
from peer.observe.run_metrics import RUN_METRICS
from peer.run.home import Home
from peer.run.manifest import default_text, load_signed, sign_text
from peer.run.memory import need_of
from peer.run.overrides import apply_overrides
from tests.integration.test_daemons import SETTINGS, eventually, exchanged
from tests.prometheus_text import Family, parse

METRICS_PAGE = ("--metrics-port", "0")
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


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
    """`peer join` with a terminal for its output."""

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


async def scenario(home: Path) -> None:
    bootstrap, plain = Daemon("bootstrap", home / "b"), Daemon("peer 1", home / "p1")
    operator = identities.load_or_create(Home(bootstrap.home).identity)
    sign_text(apply_overrides(default_text(), SETTINGS), operator, home / "run.toml")
    live = InTerminal()
    try:
        ticket = await start_bootstrap(bootstrap, home / "run.toml", 1, more=METRICS_PAGE)
        await start_peer(plain, ticket, threads=1, speed=0.2, min_peers=1, more=METRICS_PAGE)
        await live.start(home / "p2", ticket)

        async def has_exchanged() -> dict[str, Any] | None:
            status = await plain.status()
            return status if exchanged(status) > 0 else None

        status = await eventually("an exchange", 180, has_exchanged)
        a_peer_tells_all(await scrape(plain), status)
        assert plain.process is not None
        told = need_of(load_signed(home / "run.toml").manifest).daemon
        assert 0.75 * told < own_memory(plain.process.pid) < 1.1 * told, "as `peer manifest show` tells"
        a_bootstrap_node_tells_its_part(await scrape(bootstrap))
        assert await live.stop(signal.SIGINT) == 0
        the_terminal_was_used_and_given_back(live.shown.decode())
    finally:
        await live.stop(signal.SIGKILL)
        live.close()
        for daemon in (plain, bootstrap):
            await daemon.stop(10.0)


def own_memory(pid: int) -> int:
    """Bytes of a process's own, without the files that it maps."""
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
        "peer_exchange_rate_bytes_per_second",  # until there were some exchanges
        "peer_trainer_late_seconds",
        "peer_upload_budget_bytes",  # without a budget
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


def test_metrics_are_scraped_and_a_terminal_shows_the_live_view(tmp_path: Path) -> None:
    asyncio.run(scenario(tmp_path))
