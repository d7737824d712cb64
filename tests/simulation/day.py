"""A day of heavy churn on home links: peers stay for 40 minutes on average, and the fastest machine is twenty times as
fast as the slowest. Rounds last ten minutes. The model has 2.5 million parameters: in bf16, 4.2 s of a home's uplink.

    peer simulate --peers 256 --hours 24 --churn 1.5 --speeds 20 --link home --sync-every 600 --parameters 2500000"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from peer.lab.sim.report import Report
from peer.lab.sim.run import SimulationSettings, simulate
from peer.run.manifest import default_text, derive
from tests.support.invariants import Witness

PEERS, HOURS, CHURN, SYNC_EVERY_S = 256, 24.0, 1.5, 600.0
SIDE_BY_SIDE = 2
SEED_DEADLINE_S = 4 * 3600.0


@dataclass(frozen=True)
class Day:
    seed: int
    report: Report
    broken: list[str]
    processor_s: float

    def __str__(self) -> str:
        report, faults = self.report, sum(self.report.faults.values())
        share = 0.0 if report.participation is None else report.participation
        rounds = f"{share:.2%} of {report.live_due} due exchanged, {report.live_missed} missed, {report.solo} solo"
        verdict = f"BROKEN {len(self.broken)}" if self.broken else "kept"
        head = f"seed {self.seed}: {verdict}, {rounds}, ledger {report.ledger_imbalance}, {faults} faults"
        return "\n".join([f"{head}, {self.processor_s:.0f} s of processor", *(f"  {one}" for one in self.broken[:20])])


def play_day(
    seed: int, peers: int = PEERS, hours: float = HOURS, churn: float = CHURN, sync_every: float = SYNC_EVERY_S
) -> Day:
    settings = [f"seed={seed}", "sync.preset=noloco", "sync.clock=seconds", f"sync.sync_every={sync_every}"]
    simulation = SimulationSettings(
        peers=peers,
        manifest=derive(default_text(), settings),
        hours=hours,
        link="home",
        churn=churn,
        speeds=20.0,
        step_seconds=2.0,
        parameters=2_500_000,
    )
    witnesses = list[Witness]()
    began = time.process_time()
    report = simulate(simulation, lambda swarm: witnesses.append(Witness(swarm)))
    return Day(seed, report, witnesses[0].broken(), time.process_time() - began)


def play_days(seeds: Iterable[int], peers: int, hours: float) -> int:
    """Play each seed in a process of its own, so that its memory is freed, and print a line as each ends. Return the
    number of seeds that broke a promise."""

    def one(seed: int) -> tuple[int, str]:
        command = [sys.executable, "-m", "tests.simulation", "--day", "--seed", str(seed)]
        command += ["--peers", str(peers), "--hours", str(hours)]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=SEED_DEADLINE_S, check=False)
        except subprocess.TimeoutExpired:
            return 1, f"seed {seed}: not done after {SEED_DEADLINE_S:.0f} s"
        crashed = f"seed {seed}: ended with {ended.returncode}\n{ended.stderr[-2000:]}"
        return ended.returncode, ended.stdout.strip() or crashed

    bad = 0
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for future in as_completed([pool.submit(one, seed) for seed in seeds]):
            code, line = future.result()
            bad += code != 0
            print(line, flush=True)
    return bad
