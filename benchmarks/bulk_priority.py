"""How long does a round's heavy work wait for a processor, and what does it cost the trainer, by the priority of its
thread? Beside busy loops of ordinary programs.

A trainer (a process of its own that multiplies matrices), `--busy` loops at nice 0, and a thread that does a round's
encoding, averaging and decoding twice a second, at each niceness in turn, over and over. A round counts from when it
was due. Waiting: that time without the thread's own processor time, as a share of it. Steps: median of the trainer's
meanwhile, as a ratio to those without any such work.

    python -m benchmarks.bulk_priority [--busy 4] [--elements 250000]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import threading
import time
from collections import defaultdict
from multiprocessing.connection import Connection

import torch

from peer.codec.registry import EVERY
from peer.outer.robust_mean import weighted_mean

PHASE_S = 3.0
CYCLES = 2
PAUSE_S = 0.5
NICE: tuple[int | None, ...] = (None, 19, 5, 0)
"""None: no heavy work at all."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--busy", type=int, default=4)
    parser.add_argument("--elements", type=int, default=250_000)
    given = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    others = [spawn.Process(target=_spin, daemon=True) for _ in range(given.busy)]
    others.append(spawn.Process(target=_train, args=(theirs,), daemon=True))
    for other in others:
        other.start()
    try:
        assert ours.poll(120.0), "the trainer did not start"
        ours.recv()
        _report(given.elements, *_measure(ours, given.elements))
    finally:
        for other in others:
            other.kill()
            other.join()


def _measure(
    trainer: Connection, elements: int
) -> tuple[dict[int | None, list[tuple[float, float]]], dict[int | None, list[float]]]:
    """By niceness: (wall, processor) seconds of each round's work, and the trainer's median step in each phase."""
    work: dict[int | None, list[tuple[float, float]]] = defaultdict(list)
    steps: dict[int | None, list[float]] = defaultdict(list)
    for _ in range(CYCLES):
        for nice in NICE:
            trainer.send("begin")
            if nice is None:
                time.sleep(PHASE_S)
            else:
                thread = threading.Thread(target=_rounds, args=(nice, elements, work[nice]))
                thread.start()
                thread.join()
            trainer.send("end")
            assert trainer.poll(60.0), "the trainer is gone"
            steps[nice].append(trainer.recv())
    return work, steps


def _rounds(nice: int, elements: int, into: list[tuple[float, float]]) -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
    up, down, values = EVERY["int4"], EVERY["fp16"], torch.randn(elements)
    torch.set_num_threads(1)
    due = time.perf_counter()
    until = due + PHASE_S
    while due < until:
        own = time.thread_time()
        payload = up.encode(values.clone())
        mean = weighted_mean([up.decode(payload, elements) for _ in range(2)], [1, 1])
        down.decode(down.encode(mean), elements)
        done = time.perf_counter()
        into.append((done - due, time.thread_time() - own))
        due = max(done, due + PAUSE_S)
        time.sleep(max(0.0, due - time.perf_counter()))


def _report(
    elements: int, work: dict[int | None, list[tuple[float, float]]], steps: dict[int | None, list[float]]
) -> None:
    alone = statistics.median(steps[None])
    print(f"{elements} elements; the trainer's step without heavy work: {1e3 * alone:.1f} ms")
    print(f"{'nice':>5} {'rounds':>7} {'ms median':>10} {'ms worst':>9} {'ms of cpu':>10} {'waiting':>8} {'step':>6}")
    for nice in NICE[1:]:
        walls, owns = zip(*work[nice], strict=True)
        waiting = 1 - sum(owns) / sum(walls)
        ratio = statistics.median(steps[nice]) / alone
        numbers = (
            f"{1e3 * statistics.median(walls):>10.1f} {1e3 * max(walls):>9.1f} {1e3 * statistics.median(owns):>10.1f}"
        )
        print(f"{nice:>5} {len(walls):>7} {numbers} {waiting:>8.0%} {ratio:>6.2f}")


def _train(commands: Connection) -> None:
    torch.set_num_threads(1)
    weights = torch.randn(384, 384)
    commands.send("ready")
    while commands.recv() == "begin":
        steps = []
        while not commands.poll():
            began = time.perf_counter()
            for _ in range(4):
                weights @ weights
            steps.append(time.perf_counter() - began)
        commands.recv()
        commands.send(statistics.median(steps))


def _spin() -> None:
    while True:
        pass


if __name__ == "__main__":
    main()
