"""The swarm of docker/compose.yml on a real engine: four peers exchange, are killed, come back, and lose nothing.

Run by docker/try.sh, which starts the engine and builds the image. Every step is printed. An AssertionError ends it,
after the logs of the containers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peer.observe.totals import Ledger, ledger, read_totals
from peer.run.home import Home
from peer.run.manifest import load_signed
from peer.run.model_layout import layout_for
from peer.run.resolve import resolve
from peer.trainer.arena import read_counters

HERE = Path(__file__).resolve().parent
PROJECT, REPLICAS, ROUNDS = "peer-try", 4, 3
HEALTHY_S, EXCHANGED_S, COMMAND_S = 240.0, 300.0, 240.0
SETTINGS = "sync.clock=seconds sync.sync_every=10 train.total_rounds=1000"
COMPOSE = ["docker-compose", "-p", PROJECT, "-f", str(HERE / "compose.yml"), "--profile", "swarm"]
ENVIRONMENT = {**os.environ, "PEER_REPLICAS": str(REPLICAS), "PEER_CPUS": "0.5", "PEER_RUN_SETTINGS": SETTINGS}


def told(words: list[str]) -> str:
    """Return what a command prints; a CalledProcessError ends everything when it fails."""
    run = subprocess.run(words, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, timeout=COMMAND_S, check=True)
    return run.stdout.strip()


def compose(*words: str) -> str:
    print("$ docker-compose", *words, flush=True)
    return told([*COMPOSE, *words])


def containers(service: str) -> list[str]:
    return told([*COMPOSE, "ps", "-q", service]).split()


def status(container: str) -> dict[str, Any] | None:
    """Return what the peer tells of itself; None: it does not answer yet."""
    words = ["docker", "exec", container, "peer", "status", "--json"]
    run = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    return json.loads(run.stdout) if run.returncode == 0 else None


def until(done: Callable[[], bool], seconds: float, what: str) -> None:
    began = time.monotonic()
    while not done():
        assert time.monotonic() - began < seconds, f"{what}: not within {seconds:.0f} s"
        time.sleep(2)
    print(f"{what}: after {time.monotonic() - began:.0f} s", flush=True)


def exchanged(container: str, rounds: int) -> bool:
    report = status(container)
    return bool(report and report.get("rounds", {}).get("exchanged", 0) >= rounds)


def inspected(container: str, form: str) -> str:
    return told(["docker", "inspect", "--format", form, container])


def metrics(container: str) -> int:
    """How many metrics the endpoint names that Prometheus reads."""
    address = inspected(container, "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}")
    with urllib.request.urlopen(f"http://{address}:9464/metrics", timeout=10) as response:
        text: bytes = response.read(2**20)
    return text.count(b"# TYPE ")


def ids(peers: list[str]) -> set[str]:
    reports = [status(peer) for peer in peers]
    return {report["peer_id"] for report in reports if report}


def killed_and_back(container: str) -> None:
    """The engine restarts what died, and the peer goes on with the key and the rounds that it had."""
    before = status(container)
    assert before is not None
    main = int(inspected(container, "{{.State.Pid}}"))
    os.kill(main, signal.SIGKILL)
    print(f"SIGKILL for the first process of the container of {before['peer_id'][-6:]}", flush=True)
    until(lambda: inspected(container, "{{.RestartCount}}") == "1", 60, "the engine restarted it")
    rounds = before["rounds"]["exchanged"]
    until(lambda: exchanged(container, rounds + 1), EXCHANGED_S, f"more than its {rounds} exchanges")
    after = status(container)
    assert after is not None
    assert after["peer_id"] == before["peer_id"]


def stopped_and_started(container: str) -> None:
    told(["docker", "stop", "--time", "90", container])
    assert inspected(container, "{{.State.ExitCode}}") == "0", "SIGTERM drains"
    told(["docker", "start", container])
    until(lambda: status(container) is not None, HEALTHY_S, "stopped with exit code 0, and back")


def balance_of(home: Path, manifest: Path) -> Ledger:
    signed = load_signed(manifest)
    layout = layout_for(signed.manifest.model, resolve(signed.manifest.sync))
    elements = tuple(layout.fragment_elements(fragment) for fragment in range(len(layout.fragments)))
    folder = Home(home).run(signed.run_id)
    counters = read_counters(folder.path, len(elements))
    return ledger(read_totals(folder.journal), counters.tokens, counters.base, elements)


def balanced() -> None:
    """Read the homes that `down` left in their volume: every token's work is accounted for."""
    homes = Path(told(["docker", "volume", "inspect", "--format", "{{.Mountpoint}}", f"{PROJECT}_homes"]))
    manifest = Path(told(["docker", "volume", "inspect", "--format", "{{.Mountpoint}}", f"{PROJECT}_run"])) / "run.toml"
    for home in sorted(path for path in homes.iterdir() if path.is_dir()):
        book = balance_of(home, manifest)
        rest = book.processed - book.applied - book.dropped - book.outstanding
        print(f"home {home.name}: processed {book.processed}, ledger {rest}", flush=True)
        assert book.processed > 0
        assert rest == 0


def play() -> None:
    compose("up", "-d", "--no-build", "--scale", f"peer={REPLICAS}")
    peers = containers("peer")
    assert len(peers) == REPLICAS
    for number, peer in enumerate(peers, 1):
        until(lambda peer=peer: exchanged(peer, ROUNDS), EXCHANGED_S, f"peer {number} exchanged {ROUNDS} rounds")  # type: ignore[misc]
    mine = ids(peers)
    assert len(mine) == REPLICAS, "every replica has a key of its own"
    for container in (*containers("bootstrap"), *peers):
        print(f"metrics: {metrics(container)} of {inspected(container, '{{.Name}}')}", flush=True)
    killed_and_back(peers[0])
    stopped_and_started(peers[1])
    compose("down", "--timeout", "90")
    balanced()
    compose("up", "-d", "--no-build", "--scale", f"peer={REPLICAS}")
    again = containers("peer")
    until(lambda: ids(again) == mine, HEALTHY_S, "the same four peers after down and up")
    compose("down", "--timeout", "90")
    balanced()


def main() -> int:
    try:
        play()
    except BaseException:
        subprocess.run([*COMPOSE, "logs", "--tail", "40"], env=ENVIRONMENT, timeout=COMMAND_S, check=False)
        raise
    finally:
        compose("down", "--volumes", "--timeout", "90")
    print("docker swarm: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
