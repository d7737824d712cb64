"""How much slower is a training loop with `peer.join` than without?

Bound: at most 1.02 times the processor time of the same loop without `peer.join`, at 22 and 110 million parameters.
About 80 minutes.

    python -m benchmarks.attached_hook [--sizes 22,110] [--rounds 3] [--sync-every 300] [--context 128] [--batch 4]
                                       [--threads 1] [--json FILE] [--results]

A real swarm: an operator's node, and two loops with a daemon each. The measured loop trains a Llama of transformers
with AdamW. In its process the same model trains beside it without `peer.join`, and their steps alternate. The ratio of
a round is that of the processor seconds of all their steps: snapshots, merges, checks of the partner's params and
evaluations are in it, and waiting is not. A figure is the median of whole rounds. The partner's loop keeps the params
that the exchanges give it. It stands for another machine.

With the run's data a loop checks its partners and evaluates. Without, it does neither: `unchecked`."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

import peer
from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from benchmarks.step_time import MODELS
from peer import identity as identities
from peer.lab.localswarm.processes import Daemon, start_bootstrap
from peer.python_child import start_python
from peer.run.home import Home
from peer.run.manifest import default_text, sign_text
from peer.run.overrides import apply_overrides

ABOUT = Benchmark(
    "attached_hook",
    "How much slower is a training loop with `peer.join` than without?",
    "bound; own loops",
    smallest="--sizes 0 --rounds 1 --sync-every 5",
    is_long=True,
)
AT_MOST = 1.02
TINY = MODELS[22].model_copy(update={"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 1})
PARTNER_STEP_S = 0.2
SAMPLE_S = 0.02
CHECKED = {"checked": "stdlib", "unchecked": "text"}
"""Variant -> kind of the run's data. With `text` no peer has texts, so that nothing is checked or evaluated."""


def make_model(size: int, context: int) -> nn.Module:
    """Return a Llama of `size` million parameters, as transformers makes it."""
    fields = MODELS.get(size, TINY).model_dump(exclude={"kind"}) | {"max_position_embeddings": context}
    config = AutoConfig.for_model("llama", **fields, tie_word_embeddings=True)
    model: nn.Module = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return model


class PeakMemory:
    """Tracks the largest RssAnon of a process in bytes: memory that it shares with no other."""

    def __init__(self, pid: Callable[[], int | str | None]) -> None:
        self._pid = pid
        self.peak = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_S):
            if (pid := self._pid()) is not None:
                self.peak = max(self.peak, private_bytes(pid))

    def stop(self) -> int:
        self._done.set()
        self._thread.join()
        return self.peak


def private_bytes(pid: int | str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


@dataclass
class Measured:
    """The measurements for one model size and kind of data."""

    parameters: int
    plain_s: list[float] = field(default_factory=list)
    """Processor seconds of the plain steps of each round."""
    attached_s: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    wait_s: list[float] = field(default_factory=list)
    """Seconds of each round that the optimizer's steps waited, beyond their processor time."""
    own_bytes: int = 0
    """Peak memory of the process before `join`."""
    joined_bytes: int = 0
    daemon_bytes: int = 0
    exchanged: int = 0

    @property
    def ratios(self) -> list[float]:
        return [ours / plain for ours, plain in zip(self.attached_s, self.plain_s, strict=True)]


class PlainLoop:
    """A training loop as in examples/own_loop.py, on random bytes."""

    def __init__(self, model: nn.Module, given: argparse.Namespace) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        self._shape = given.batch, given.context
        self.loss = 0.0

    def step(self) -> None:
        tokens: Tensor = torch.randint(0, 256, self._shape)
        loss = self.model(input_ids=tokens, labels=tokens).loss
        self.loss = loss.item()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def measure(ticket: str, home: Path, size: int, given: argparse.Namespace) -> Measured:
    """Alternate steps of both loops until `--rounds` whole rounds are over, not counting the first."""
    torch.manual_seed(0)
    plain, attached = (PlainLoop(make_model(size, given.context), given) for _ in range(2))
    found = Measured(sum(tensor.numel() for tensor in plain.model.parameters()))
    memory = PeakMemory(lambda: "self")
    for loop in (plain, attached, plain, attached):
        loop.step()
    found.own_bytes = memory.stop()
    chosen = peer.JoinOptions(agreed=True, host_maddrs=("/ip4/127.0.0.1/tcp/0",), port_mapping=False, lan=False)
    memory = PeakMemory(lambda: "self")
    with peer.join(ticket, attached.model, attached.optimizer, home=home, options=chosen, on_error=print) as swarm:
        daemon = PeakMemory(lambda: swarm._trainer.pid)
        try:
            play(swarm, plain, attached, given.rounds, found)
        finally:
            found.daemon_bytes, found.joined_bytes = daemon.stop(), memory.stop()
        progress = swarm.status().progress
        found.exchanged = 0 if progress is None else progress.rounds.get("exchanged", 0)
    return found


def play(swarm: peer.Swarm, plain: PlainLoop, attached: PlainLoop, rounds: int, found: Measured) -> None:
    first = swarm.round + 1
    plain_s = attached_s = wait_s = 0.0
    steps = 0
    while swarm.round < first + rounds and not swarm.over:
        place = swarm.round
        began = time.process_time()
        plain.step()
        middle, wall = time.process_time(), time.perf_counter()
        attached.step()
        ended, wall_s = time.process_time(), time.perf_counter() - wall
        plain_s, attached_s, steps = plain_s + middle - began, attached_s + ended - middle, steps + 1
        wait_s += max(0.0, wall_s - (ended - middle))
        if swarm.round != place:
            if place >= first:
                found.plain_s.append(plain_s)
                found.attached_s.append(attached_s)
                found.steps.append(steps)
                found.wait_s.append(wait_s)
            print(f"round {place}: {steps} steps, {attached_s / plain_s:.4f}", file=sys.stderr, flush=True)
            plain_s = attached_s = wait_s = 0.0
            steps = 0


def accompany(ticket: str, home: Path, size: int, context: int) -> None:
    """Run the partner's loop until the run is over."""
    torch.set_num_threads(1)
    model = make_model(size, context)
    chosen = peer.JoinOptions(agreed=True, host_maddrs=("/ip4/127.0.0.1/tcp/0",), port_mapping=False, lan=False)
    with peer.join(ticket, model, None, home=home, options=chosen, on_error=print) as swarm:
        while not swarm.over:
            time.sleep(PARTNER_STEP_S)
            swarm.step(tokens=context)


async def swarm_of_two(size: int, data: str, given: argparse.Namespace) -> Measured:
    with tempfile.TemporaryDirectory(prefix="peer-hook-") as folder:
        path, node = Path(folder) / "run.toml", Daemon("node", Path(folder) / "node")
        llama = MODELS.get(size, TINY)
        names = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads"
        settings = [f"model.{name}={getattr(llama, name)}" for name in names.split()]
        settings += [f"model.max_position_embeddings={given.context}", f"train.context={given.context}"]
        settings += [f"train.batch={given.batch}", f"sync_every={given.sync_every}", f"data.kind={data}"]
        settings += ["total_rounds=1000", f"eval_windows={given.eval_windows}"]
        key = identities.load_or_create(Home(node.home).identity)
        sign_text(apply_overrides(default_text(), settings), key, path)
        ticket = await start_bootstrap(node, path, min_peers=2)
        words = [
            "--partner",
            ticket,
            str(Path(folder) / "partner"),
            "--sizes",
            str(size),
            "--context",
            str(given.context),
        ]
        (Path(folder) / "partner").mkdir()
        (Path(folder) / "own").mkdir()
        partner = await start_python("benchmarks.attached_hook", *words)
        try:
            return await asyncio.to_thread(measure, ticket, Path(folder) / "own", size, given)
        finally:
            partner.terminate()
            await partner.wait()
            await node.stop(30.0)


def row_of(size: int, name: str, found: Measured) -> Sequence[str | float | int]:
    mib = 2.0**20
    ours = sum(found.attached_s) / max(1, sum(found.steps))
    plain = sum(found.plain_s) / max(1, sum(found.steps))
    counts = len(found.steps), statistics.median(found.steps or [0]), found.exchanged
    times = plain, ours, min(found.ratios, default=0.0), max(found.ratios, default=0.0)
    memory = 8 * found.parameters / mib, (found.joined_bytes - found.own_bytes) / mib, found.daemon_bytes / mib
    return [size, name, *counts, *times, statistics.median(found.wait_s or [0.0]), *memory]


HEADS = (
    *("million", "data", "rounds", "steps a round", "exchanged", "plain step, CPU s", "attached, CPU s", "least ratio"),
    *("largest", "waited, s a round", "arena MiB", "more in the process, MiB", "daemon MiB"),
)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--sizes", default="22,110", help="million parameters; 0: a tiny one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sync-every", type=int, default=300, help="seconds of a round")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--eval-windows", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--partner", nargs=2, metavar=("TICKET", "HOME"), help=argparse.SUPPRESS)
    given = parsed(parser, ABOUT)
    if given.partner:
        accompany(given.partner[0], Path(given.partner[1]), int(given.sizes), given.context)
        return
    torch.set_num_threads(given.threads)
    figures, rows = [], []
    for size, (name, data) in itertools.product(map(int, given.sizes.split(",")), CHECKED.items()):
        found = asyncio.run(swarm_of_two(size, data, given))
        ratio = statistics.median(found.ratios) if found.ratios else None
        figures.append(Figure(f"step over that of a plain loop, {size} M, {name}", "times", ratio, AT_MOST))
        rows.append(row_of(size, name, found))
    title = f"rounds of {given.sync_every} s, {given.batch} windows of {given.context} tokens, {given.threads} threads"
    publish(given, ABOUT, figures, Table(title, HEADS, rows))


if __name__ == "__main__":
    main()
