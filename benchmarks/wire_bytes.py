"""What crosses the wire, counted by the kernel: a swarm of real processes for each preset, in a network namespace of
its own whose loopback carries nothing else (Linux, root).

    python benchmarks/wire_bytes.py [--presets noloco,streaming-diloco] [--rounds 4] [--seconds 24] [--json FILE]

What --json FILE holds already is not measured again.

Prints for every preset the bytes that left a peer in the rounds it exchanged, headers of TCP and IP included, over the
payload's exact size (by the codecs and the cut) and over what `peer manifest show` predicts; besides, the traffic of a
swarm that never exchanges, which is subtracted, and the most memory a daemon held over that of one with a tiny model,
beside the prediction. The model has 4.9 million parameters and the trainers work for a twentieth of the time."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from peer.codec.registry import EVERY
from peer.lab.localswarm.plan import SwarmPlan
from peer.lab.localswarm.run import Swarm
from peer.observe.event_codec import read_lines
from peer.observe.events import Event, RoundEnded, TrainingBegan
from peer.ports.trainer import Counters
from peer.protocol.group.shards import ALIGN, cut
from peer.protocol.model.layout import Layout
from peer.run.codec_specs import FORMS
from peer.run.home import Home
from peer.run.manifest import default_text, derive, load_signed, parse_manifest
from peer.run.method import Method
from peer.run.model_layout import layout_for
from peer.run.presets import PRESETS, resolve
from peer.trainer.arena import read_counters

PEERS = 4
SPEED = 0.05
MODEL = ("model.hidden_size=256", "model.intermediate_size=704", "model.num_hidden_layers=6")
LITTLE = ("train.batch=1", "train.context=16", "train.eval_windows=1", "train.eval_every=1000")
SAMPLE_S = 0.25
BASE = "none, tiny model"
STALE = "the group builds on another state"
"""How the reason begins of a member that fetches the group's state."""


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes are sums over the peers, sent."""

    exchanged: int
    """Rounds of all peers."""
    seconds: float
    wire: int
    """All that passed."""
    exact: int
    """Payload, by the codecs and the cut."""
    predicted: float
    """By `peer manifest show`."""
    exchange_s: float
    """Longest."""
    waited: float
    """Part of the trainers' time."""
    memory: int
    """The most that a daemon held, the largest of the peers."""
    memory_predicted: int


class Watch:
    """Samples the namespace's loopback and the daemons' memory."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.samples: list[tuple[float, int]] = []
        self.memory: dict[str, int] = {}

    async def run(self) -> None:
        while True:
            self.samples.append((time.time(), loopback_bytes()))
            self._look_around()
            await asyncio.sleep(SAMPLE_S)

    def _look_around(self) -> None:
        for status in Path("/proc").glob("[0-9]*/status"):
            self._look(status)

    def _look(self, status: Path) -> None:
        """A process may end while it is looked at."""
        try:
            words = status.with_name("cmdline").read_bytes().split(b"\0")
            home = words[words.index(b"--home") + 1].decode() if b"join" in words and b"--home" in words else ""
            if home.startswith(f"{self.home}/peer-"):
                facts = dict(line.split(":", 1) for line in status.read_text().splitlines())
                self.memory[home] = max(self.memory.get(home, 0), int(facts["VmHWM"].split()[0]) * 1024)
        except (OSError, KeyError):
            return

    def between(self, began: float, ended: float) -> int:
        inside = [nbytes for at, nbytes in self.samples if began <= at <= ended]
        return inside[-1] - inside[0]


def loopback_bytes() -> int:
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[0])
    raise AssertionError("every namespace has a loopback")


def exact_bytes(method: Method, layout: Layout, event: RoundEnded) -> float:
    """A peer's part of what the round moved; in groups the mean over its members, and the state that a member fetches
    who missed a round."""
    elements = layout.fragment_elements(event.fragment)
    if event.outcome != "exchanged":
        fetched = method.topology == "group" and event.reason.startswith(STALE)
        return 2 * 4 * elements if fetched else 0
    if method.topology == "pair":
        return method.vectors * EVERY[method.codec].nbytes(elements)
    members = ["us", *event.partner.split()]
    codec, result = EVERY[method.codec], EVERY[method.result_codec]
    align = max(ALIGN, FORMS[codec.name].chunk, FORMS[result.name].chunk)
    shards = cut(b"any", members, elements, align)  # type: ignore[arg-type]
    total = sum(codec.nbytes(shard.elements) + result.nbytes(shard.elements) for shard in shards)
    return (len(members) - 1) * total / len(members)


def predicted_cost(manifest: Path) -> dict[str, Any]:
    show = [sys.executable, "-m", "peer", "manifest", "show", str(manifest), "--json"]
    found: dict[str, Any] = json.loads(subprocess.run(show, check=True, capture_output=True).stdout)["cost"]
    return found


async def watched(plan: SwarmPlan) -> Watch:
    watch = Watch(plan.home)
    watching = asyncio.create_task(watch.run())
    try:
        await Swarm(plan, lambda line: None).run()
    finally:
        watching.cancel()
        await asyncio.wait({watching})
    return watch


def measure(preset: str, model: tuple[str, ...], given: argparse.Namespace, home: Path) -> Row:
    settings = [*model, *LITTLE, f"sync.preset={preset}", "sync.clock=seconds", f"sync.sync_every={given.seconds}"]
    if PRESETS[preset].topology == "group":
        settings.append(f"sync.max_group={PEERS}")
    text = derive(default_text(), settings)
    rounds = given.rounds * resolve(parse_manifest(text.encode()).sync).fragments
    text = derive(default_text(), [*settings, f"train.total_rounds={rounds}"])
    speeds = dict.fromkeys(range(1, PEERS + 1), SPEED)
    plan = SwarmPlan(peers=PEERS, manifest=text, minutes=None, kills=(), joins=(), speeds=speeds, home=home, seed=0)
    watch = asyncio.run(watched(plan))
    signed = load_signed(home / "run.toml")
    folders = [Home(home / f"peer-{number}").run(signed.run_id) for number in range(1, PEERS + 1)]
    journals = [[line for line in read_lines(folder.journal) if line is not None] for folder in folders]
    method = resolve(signed.manifest.sync)
    counters = [read_counters(folder.path, method.fragments) for folder in folders]
    layout = layout_for(signed.manifest.model, method)
    return row(method, layout, journals, counters, watch, predicted_cost(home / "run.toml"))


def row(
    method: Method,
    layout: Layout,
    journals: list[list[tuple[Event, float]]],
    counters: list[Counters],
    watch: Watch,
    cost: dict[str, Any],
) -> Row:
    lines = [line for journal in journals for line in journal]
    began = max(at for event, at in lines if isinstance(event, TrainingBegan))
    ends = [(event, at) for event, at in lines if isinstance(event, RoundEnded)]
    ended = max(at for _, at in ends) + 2 * SAMPLE_S
    exchanged = [event for event, _ in ends if event.outcome == "exchanged"]
    waited = sum(c.seconds_waiting for c in counters)
    return Row(
        exchanged=len(exchanged),
        seconds=ended - began,
        wire=watch.between(began, ended),
        exact=round(sum(exact_bytes(method, layout, event) for event, _ in ends)),
        predicted=sum(cost["fragment_bytes"][event.fragment] for event in exchanged),
        exchange_s=max((event.seconds for event in exchanged), default=0.0),
        waited=waited / ((ended - began) * PEERS),
        memory=max(watch.memory.values()),
        memory_predicted=cost["memory_bytes"],
    )


def show(rows: dict[str, Row]) -> None:
    base, idle = rows[BASE], rows["none"]
    idle_rate = idle.wire / idle.seconds
    print(f"without exchanges {idle_rate / PEERS:,.0f} bytes a second and peer leave\n")
    columns = f"{'rounds':>7}{'payload MB':>12}{'wire/exact':>12}{'wire/shown':>12}{'waited':>8}"
    print(f"{'preset':<18}{columns}{'memory over base':>18}{'shown':>10}")
    for preset, one in rows.items():
        if preset == BASE:
            continue
        net = one.wire - idle_rate * one.seconds
        ratios = f"{net / one.exact:>12.4f}{net / one.predicted:>12.4f}" if one.exact else f"{'-':>12}{'-':>12}"
        over = (one.memory - base.memory) / 2**20
        print(
            f"{preset:<18}{one.exchanged:>7}{one.exact / 1e6:>12.1f}{ratios}{one.waited:>8.1%}"
            f"{over:>14.0f} MiB{one.memory_predicted / 2**20:>6.0f} MiB"
        )


def alone() -> None:
    """Go on in a network namespace of our own."""
    if os.environ.get("WIRE_BYTES_ALONE") == "1":
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return
    command = ["unshare", "--net", sys.executable, *sys.argv]
    os.execvpe(command[0], command, {**os.environ, "WIRE_BYTES_ALONE": "1"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", default="noloco,streaming-noloco,diloco,streaming-diloco")
    parser.add_argument("--rounds", type=int, default=4, help="of every fragment")
    parser.add_argument("--seconds", type=float, default=24.0, help="sync_every")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    alone()
    kept = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    rows = {name: Row(**one) for name, one in kept.items()}
    with tempfile.TemporaryDirectory(prefix="peer-wire-") as folder:
        for name in (BASE, "none", *given.presets.split(",")):
            if name in rows:
                continue
            preset, model = ("none", ()) if name == BASE else (name, MODEL)
            rows[name] = measure(preset, model, given, Path(folder) / name.replace(", ", "-").replace(" ", "-"))
            print(name, rows[name], flush=True)
            if given.json:
                given.json.write_text(json.dumps({name: asdict(one) for name, one in rows.items()}))
    show(rows)


if __name__ == "__main__":
    main()
