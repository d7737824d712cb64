"""Does anything grow? A bootstrap node and four peers for hours; every five minutes one peer is killed (SIGKILL) and
one joins, now a fresh one, now the killed one again. Sampled every `--sample` seconds, per process kind: resident
memory, open files, threads, bytes on disk, journal size. Prints the slope of each (Theil-Sen, the first `--warmup`
minutes left out) for every process that lived long enough, and its first and last tenth.

    python benchmarks/soak.py --hours 2 --json soak.json
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from peer import __version__
from peer.identity import load_or_create
from peer.lab.localswarm.processes import Daemon, start_bootstrap, start_peer
from peer.run.manifest import write_new

SETTINGS = ["sync.clock=seconds", "sync.sync_every=10", "train.total_rounds=100000", "train.eval_every=20"]


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    owner: str
    kind: str
    pid: int
    rss_mb: float
    files: int
    threads: int
    disk_mb: float
    journal_mb: float


def children() -> dict[int, list[int]]:
    """Parent pid to child pids, of the whole machine."""
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            found.setdefault(int(fields[1]), []).append(int(entry.name))
    return found


def describe(pid: int) -> tuple[str, float, int, int]:
    """(command line, resident MB, open files, threads)."""
    proc = Path("/proc") / str(pid)
    command = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line)
    rss = int(status.get("VmRSS", "0 kB").split()[0]) / 1024
    return command, rss, len(os.listdir(proc / "fd")), int(status["Threads"])  # noqa: PTH208


def kind_of(command: str) -> str:
    if "p2pd" in command:
        return "p2pd"
    return "trainer" if "peer.trainer" in command or "spawn" in command else "daemon"


def size_mb(home: Path, pattern: str) -> float:
    total = 0
    for path in home.rglob(pattern):
        try:
            total += path.stat().st_blocks * 512 if path.is_file() else 0
        except OSError:
            continue
    return total / 1e6


def sample(daemons: list[Daemon], began: float) -> list[Sample]:
    tree, taken = children(), []
    for daemon in daemons:
        if not daemon.running or daemon.process is None:
            continue
        disk, journal = size_mb(daemon.home, "*"), size_mb(daemon.home, "journal*")
        pids = [daemon.process.pid]
        for pid in pids:
            pids += tree.get(pid, [])
        for pid in pids:
            try:
                command, rss, files, threads = describe(pid)
            except (OSError, KeyError):
                continue
            at = round(time.monotonic() - began, 1)
            taken.append(Sample(at, daemon.name, kind_of(command), pid, rss, files, threads, disk, journal))
    return taken


def slope_per_hour(points: list[tuple[float, float]]) -> float:
    """Theil-Sen over at most 200 of the points."""
    thinned = points[:: max(1, len(points) // 200)]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(thinned, 2) if b[0] > a[0]]
    return statistics.median(slopes) * 3600 if slopes else 0.0


def report(samples: list[Sample], warmup_s: float) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    processes: dict[tuple[str, str, int], list[Sample]] = {}
    for one in samples:
        processes.setdefault((one.owner, one.kind, one.pid), []).append(one)
    for (owner, kind, pid), series in sorted(processes.items()):
        steady = [s for s in series if s.at_s >= max(warmup_s, series[0].at_s + min(warmup_s, 120.0))]
        if len(steady) < 30:
            continue
        tenth = max(1, len(steady) // 10)
        for what in ("rss_mb", "files", "threads", "disk_mb", "journal_mb"):
            if kind != "daemon" and what in ("disk_mb", "journal_mb"):
                continue
            points = [(s.at_s, float(getattr(s, what))) for s in steady]
            values = [value for _, value in points]
            rows.append(
                {
                    "process": f"{owner}/{kind}/{pid}",
                    "what": what,
                    "minutes": round((steady[-1].at_s - steady[0].at_s) / 60, 1),
                    "first": round(statistics.median(values[:tenth]), 3),
                    "last": round(statistics.median(values[-tenth:]), 3),
                    "max": round(max(values), 3),
                    "per_hour": round(slope_per_hour(points), 3),
                }
            )
    return rows


def show(rows: list[dict[str, object]]) -> None:
    print(f"{'process':34} {'what':11} {'minutes':>7} {'first':>9} {'last':>9} {'max':>9} {'per hour':>9}")
    for row in rows:
        print("{process:34} {what:11} {minutes:7} {first:9} {last:9} {max:9} {per_hour:9}".format(**row))


async def soak(home: Path, hours: float, fault_every_s: float, sample_s: float, speed: float, out: Path | None) -> None:
    manifest = home / "run.toml"
    write_new(manifest, load_or_create(home / "operator.key"), SETTINGS)
    bootstrap = Daemon("bootstrap", home / "bootstrap")
    ticket = await start_bootstrap(bootstrap, manifest, 4)
    peers = [Daemon(f"peer-{k}", home / f"peer-{k}") for k in range(1, 5)]
    everyone = [bootstrap, *peers]

    async def join(daemon: Daemon) -> None:
        await start_peer(daemon, ticket, threads=1, speed=speed, min_peers=4 if daemon in peers[:4] else 1)

    for daemon in peers:
        await join(daemon)
    began, samples, faults = time.monotonic(), [], []
    next_fault, turn, restless = began + fault_every_s, 0, peers[3]
    try:
        while time.monotonic() - began < hours * 3600:
            await asyncio.sleep(sample_s)
            samples += sample(everyone, began)
            if time.monotonic() >= next_fault:
                next_fault += fault_every_s
                turn += 1
                restless.kill()
                await restless.wait()
                gone = restless
                if turn % 2:
                    restless = Daemon(f"peer-{len(everyone)}", home / f"peer-{len(everyone)}")
                    everyone.append(restless)
                await join(restless)
                faults.append({"at_s": round(time.monotonic() - began), "killed": gone.name, "joined": restless.name})
            if out is not None:
                write(out, samples, faults)
    finally:
        said = {daemon.name: await daemon.status() for daemon in everyone}
        for daemon in everyone:
            await daemon.stop(20)
    rows = report(samples, 600 if hours >= 1 else 60)
    show(rows)
    for name, status in said.items():
        if status and "ledger" in status:
            print(name, "rounds", status["rounds"], "ledger", status["ledger"], "steps", status["steps"])
    print("faults:", len(faults), "exit codes:", {d.name: d.exit_codes for d in everyone if d.exit_codes})
    if out is not None:
        write(out, samples, faults, rows)


def write(out: Path, samples: list[Sample], faults: object, rows: object = None) -> None:
    machine = {"cpus": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}
    text = {"version": __version__, "machine": machine, "faults": faults, "rows": rows}
    draft = out.with_suffix(".draft")
    draft.write_text(json.dumps({**text, "samples": [asdict(s) for s in samples]}))
    draft.replace(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--fault-every", type=float, default=300.0, help="seconds")
    parser.add_argument("--sample", type=float, default=10.0, help="seconds")
    parser.add_argument("--speed", type=float, default=0.1, help="of each trainer")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="peer-soak-") as home:
        asyncio.run(soak(Path(home), given.hours, given.fault_every, given.sample, given.speed, given.json))


if __name__ == "__main__":
    main()
