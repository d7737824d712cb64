"""Does a peer find, use and spare a GPU?

Promises 7 (the trainer does not wait) and 9 (the volunteer is the boss). Bounds: with `--gpu 50%` and `--gpu 25%` the
GPU is busy for at most 1.1 times that share of the time. Above `--max-temperature` the peer pauses and reports the
GPU's temperature. Needs an NVIDIA GPU. About five minutes.

    python -m benchmarks.gpu [--parameters 110m] [--seconds 20] [--home DIR] [--json FILE] [--results]

A bootstrap node and one peer at a time run as real processes. The peer trains the built-in llama of
`benchmarks.real_size`. Utilization and temperature of the GPU are read from its driver ten times per second."""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from benchmarks.real_size import SHAPES, made, manifest
from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.guest.temperature import COOLS_BY
from peer.lab.localswarm.processes import Daemon, start_bootstrap, start_peer
from peer.node.control import send_command
from peer.python_child import run_python
from peer.run.home import Home

ABOUT = Benchmark(
    "gpu",
    "Does a peer find, use and spare a GPU?",
    "7 (the trainer does not wait), 9 (the volunteer is the boss)",
    smallest="--seconds 5",
    needs=("gpu",),
    is_long=True,
)
SHARES = (1.0, 0.5, 0.25)
SLACK = 1.1
BATCH = 16
LOOK_S = 0.1
START_S, PAUSE_S = 300.0, 50.0
WARM_S = 10.0
"""Seconds of warming up before the measurement."""
COOLEST_LIMIT = 40.0
"""The lowest value that `--max-temperature` accepts, in degrees Celsius."""


class Gpu:
    """The first GPU, as reported by its driver."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.name = str(pynvml.nvmlDeviceGetName(self._handle))

    def busy(self) -> float:
        """Return the percentage of the driver's last interval in which the GPU computed."""
        return float(pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)

    def temperature(self) -> float:
        return float(pynvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU))


@dataclass(frozen=True)
class Watched:
    """Measurements of the GPU and of a peer that trained for some seconds."""

    share: float
    busy_percent: float
    tokens_per_s: float
    told_tokens_per_s: float
    warmest: float
    device: str


async def status_of(daemon: Daemon) -> dict[str, Any]:
    report = await daemon.status()
    return report or {}


async def until(daemon: Daemon, status: str, within_s: float) -> dict[str, Any]:
    """Wait until the daemon has this status, and return its report."""
    deadline = time.monotonic() + within_s
    while (report := await status_of(daemon)).get("status") != status:
        assert daemon.running, daemon.log_tail()
        assert time.monotonic() < deadline, f"{daemon.name} is not {status}: {report.get('phase')}"
        await asyncio.sleep(LOOK_S)
    return report


async def leave(daemon: Daemon) -> None:
    await send_command(Home(daemon.home).control_socket, "leave", 10.0)
    async with asyncio.timeout(120.0):
        await daemon.wait()


async def trained(daemon: Daemon, ticket: str, gpu: Gpu, share: float, seconds: float) -> Watched:
    """Run a peer with this share of the GPU, and measure it."""
    await joins(daemon, ticket, "--gpu", f"{100 * share:g}%")
    await until(daemon, "training", START_S)
    await asyncio.sleep(WARM_S)
    before, began, busy, warmest = await status_of(daemon), time.monotonic(), [], 0.0
    while time.monotonic() < began + seconds:
        busy.append(gpu.busy())
        warmest = max(warmest, gpu.temperature())
        await asyncio.sleep(LOOK_S)
    after, took = await status_of(daemon), time.monotonic() - began
    rate = (after["tokens"] - before["tokens"]) / took
    await leave(daemon)
    device = next((line for line in daemon.log.read_text().splitlines() if "cuda" in line), "")
    return Watched(share, statistics.fmean(busy), rate, after["tokens_per_s"], warmest, device.strip())


async def joins(daemon: Daemon, ticket: str, *more: str) -> None:
    await start_peer(daemon, ticket, threads=4, speed=1.0, min_peers=1, more=("--device", "cuda", "--yes", *more))


async def gets_hot(daemon: Daemon, ticket: str, gpu: Gpu, limit: float) -> dict[str, Any]:
    """Run a peer with a temperature limit that its GPU exceeds. Return its notice and the GPU's temperature."""
    await joins(daemon, ticket, "--max-temperature", f"{limit:g}")
    await until(daemon, "training", START_S)
    began, warmest = time.monotonic(), 0.0
    while (report := await status_of(daemon)).get("status") != "paused" and time.monotonic() < began + PAUSE_S:
        warmest = max(warmest, gpu.temperature())
        await asyncio.sleep(LOOK_S)
    paused_s, told = time.monotonic() - began, report.get("paused", {})
    back = "training" if report.get("status") == "paused" else ""
    coolest = gpu.temperature()
    while back and (await status_of(daemon)).get("status") != back and time.monotonic() < began + 2 * PAUSE_S:
        coolest = min(coolest, gpu.temperature())
        await asyncio.sleep(LOOK_S)
    back_s = time.monotonic() - began - paused_s
    goes_on = (await status_of(daemon)).get("status") == "training"
    await leave(daemon)
    return {
        "limit": limit,
        "paused": bool(back),
        "seconds until then": paused_s,
        "warmest": warmest,
        "coolest while paused": coolest,
        "told": json.dumps(told),
        "goes on": goes_on,
        "seconds until it goes on": back_s,
    }


def asked(*command: str) -> dict[str, Any]:
    """Run a command and return the JSON that it prints, whatever its exit code."""
    done = run_python("peer", *command, capture_output=True, text=True, timeout=300.0, check=False)
    assert done.stdout, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told | {"exit_code": done.returncode}


async def play(folder: Path, size: str, seconds: float) -> tuple[list[Figure], list[Table]]:
    gpu, home = Gpu(), Path(tempfile.mkdtemp(prefix="gpu-", dir=folder))
    cool = gpu.temperature()
    manifest(folder, home, size, "noloco", 600.0, 1, BATCH)
    bootstrap = Daemon("bootstrap", home / "bootstrap")
    ticket = await start_bootstrap(bootstrap, home / "run.toml", 1, data=folder / "data")
    daemons = [Daemon(f"share {share:g}", home / f"share-{share:g}") for share in SHARES]
    warm = Daemon("warm", home / "warm")
    try:
        alone = await asyncio.to_thread(speeds, home / "run.toml")
        seen = [await trained(one, ticket, gpu, *wish) for one, *wish in each(daemons, seconds)]
        limit = max(COOLEST_LIMIT, float(round((seen[-1].warmest + seen[0].warmest) / 2)))
        heat = await gets_hot(warm, ticket, gpu, limit)
        doctor = await asyncio.to_thread(asked, "doctor", ticket, "--json", "--home", str(home / "doctor"))
    finally:
        for daemon in (*daemons, warm, bootstrap):
            await daemon.stop(60.0)
    return figures_of(seen, heat, doctor), [
        Table("Shares", ["--gpu", "busy %", "tokens/s", "told", "warmest °C"], [row_of(one) for one in seen]),
        Table("Temperature", ["", ""], [["before any peer, °C", cool], *([a, b] for a, b in heat.items())]),
        Table("Doctor", ["what", "severity", "measured"], found_by(doctor)),
        alone,
        Table("Device", ["", ""], [["driver's name", gpu.name], ["the peer's", seen[0].device]]),
    ]


def each(daemons: list[Daemon], seconds: float) -> list[tuple[Any, ...]]:
    return [(daemon, share, seconds) for daemon, share in zip(daemons, SHARES, strict=True)]


def row_of(one: Watched) -> list[Any]:
    return [one.share, one.busy_percent, one.tokens_per_s, one.told_tokens_per_s, one.warmest]


def found_by(doctor: dict[str, Any]) -> list[list[Any]]:
    rows = [[one["what"], one["severity"], one["measured"]] for one in doctor["findings"]]
    return [*rows, *([name, "prediction", json.dumps(value)] for name, value in (doctor["prediction"] or {}).items())]


def figures_of(seen: list[Watched], heat: dict[str, Any], doctor: dict[str, Any]) -> list[Figure]:
    whole, *less = seen
    figures = [
        Figure("busy without a limit", "%", whole.busy_percent),
        Figure("tokens a second without a limit", "", whole.tokens_per_s),
        Figure("peer doctor's exit code", "", doctor["exit_code"]),
    ]
    for one in less:
        most = 100 * SLACK * one.share
        figures.append(Figure(f"busy with --gpu {one.share:.0%}", "%", one.busy_percent, most))
        of_all = 100 * one.tokens_per_s / whole.tokens_per_s
        figures.append(Figure(f"tokens with --gpu {one.share:.0%}, of those without", "%", of_all, most))
    figures.append(Figure("paused above --max-temperature", "", int(heat["paused"]), at_least=1))
    cooled = heat["coolest while paused"] <= heat["limit"] - COOLS_BY
    went_on = int(heat["goes on"]) if cooled else None  # even an idle GPU may stay too warm
    figures.append(Figure("went on when it was cool", "", went_on, at_least=1))
    return figures


def speeds(file: Path) -> Table:
    """Measure the trainer alone, on the CPU and on the GPU."""
    rows: list[list[Any]] = []
    for device, batch, steps in (("cpu", 1, 5), ("cuda", BATCH, 20)):
        words = ["--set", f"train.batch={batch}", "--device", device, "--steps", str(steps), "--threads", "8"]
        told = asked("bench", "trainer", "--manifest", str(file), *words, "--json")
        reason = f"{told['device_reason']}; micro-batch {told['micro_batch']} of {batch}"
        rows.append([reason, told["parameters"], told["tokens_per_s"], 1000 * told["step_s"]])
    return Table("The trainer alone", ["device", "parameters", "tokens/s", "ms a step"], rows)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--parameters", choices=list(SHAPES), default="110m")
    parser.add_argument("--seconds", type=float, default=20.0, help="for which each peer is watched")
    parser.add_argument("--home", type=Path, help="kept there: data, homes and logs")
    given = parsed(parser, ABOUT)
    with tempfile.TemporaryDirectory(prefix="peer-gpu-") as name:
        folder = given.home or Path(name)
        made(folder, given.parameters)
        figures, tables = asyncio.run(play(folder, given.parameters, given.seconds))
        publish(given, ABOUT, figures, *tables)


if __name__ == "__main__":
    main()
