"""The compose file's services as rehearsed containers, in the order it asks for, and what is looked at."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from docker.container import Container, Mount, Spec
from docker.dockerfile import Stage, expand, lineage, pairs, read

HERE = Path(__file__).resolve().parent
NETWORK = "10.77.0."
HEALTHY_S, DRAIN_S, ROUNDS_S = 180.0, 30.0, 300.0
_DEFAULTED = re.compile(r"\$\{(\w+):-([^}]*)\}")


def interpolated(node: Any, environment: dict[str, str]) -> Any:
    """`${NAME:-default}` and `$$` replaced in every text of a compose file: after parsing, as compose does it."""
    if isinstance(node, dict):
        return {key: interpolated(value, environment) for key, value in node.items()}
    if isinstance(node, list):
        return [interpolated(value, environment) for value in node]
    if isinstance(node, str):
        return _DEFAULTED.sub(lambda match: environment.get(match[1]) or match[2], node).replace("$$", "$")
    return node


def services(environment: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The services of docker/compose.yml as they are with these variables."""
    found = interpolated(yaml.safe_load((HERE / "compose.yml").read_text()), environment)["services"]
    assert isinstance(found, dict)
    return found


class Image:
    """The last stage's configuration, and the root filesystem that `build` left in `work`."""

    def __init__(self, work: Path) -> None:
        stages = read(HERE / "Dockerfile")
        self.root = work / "image"
        self._stages = lineage(stages, stages[-1])
        self.environment: dict[str, str] = {}
        for stage in self._stages:
            for step in stage.steps:
                if step.name == "ENV":
                    self.environment |= {k: expand(v, self.environment) for k, v in pairs(step).items()}

    def words(self, name: str) -> list[str]:
        """Of the instruction that counts, in exec form."""
        last: Stage = self._stages[-1]
        step = last.last(name)
        assert step is not None, name
        return step.exec_form or step.words


class Swarm:
    """What runs, and where its files lie: volumes and outputs below `work`/run."""

    def __init__(self, work: Path, environment: dict[str, str], init: Path | None) -> None:
        self.image = Image(work)
        self.services = services(environment)
        self._folder = work / "run"
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        self._init = init
        self._hosts = self._folder / "hosts"
        self._hosts.write_text("127.0.0.1 localhost\n")
        self.running: list[Container] = []
        self._addresses = 1

    def start(self, service: str, name: str) -> Container:
        """A container of the service; its name resolves in all of them."""
        settings = self.services[service]
        self._addresses += 1
        address = f"{NETWORK}{self._addresses}"
        with self._hosts.open("a") as hosts:
            hosts.write(f"{address} {name}\n")
        container = Container(name, self._spec(settings, name), address, self._folder / f"{name}.log")
        self.running.append(container)
        return container

    def healthy(self, container: Container) -> dict[str, Any] | None:
        """What the image's health check prints, if it succeeds."""
        result = container.inside(self.image.words("HEALTHCHECK"), 10)
        return json.loads(result.stdout) if result.returncode == 0 else None

    def close(self) -> None:
        for container in self.running:
            container.close()

    def _spec(self, settings: dict[str, Any], name: str) -> Spec:
        entry = settings.get("entrypoint") or self.image.words("ENTRYPOINT")
        return Spec(
            root=self.image.root,
            command=[*entry, *(settings.get("command") or [])],
            environment={"HOSTNAME": name, "HOME": self.image.words("WORKDIR")[0]}
            | self.image.environment
            | settings.get("environment", {}),
            user=self.image.words("USER")[0],
            folder=self.image.words("WORKDIR")[0],
            mounts=[
                Mount(self._hosts, "/etc/hosts", True),
                *self._volumes(settings, name),
                *(Mount(None, target) for target in settings.get("tmpfs", [])),
            ],
            read_only=settings.get("read_only", False),
            unprivileged=settings.get("cap_drop") == ["ALL"],
            init=self._init if settings.get("init") else None,
        )

    def _volumes(self, settings: dict[str, Any], name: str) -> list[Mount]:
        """The named ones, and one of its own for each of the image's that is not named."""
        mounts = []
        for entry in settings.get("volumes", []):
            source, target, *mode = entry.split(":")
            mounts.append(Mount(self._volume(source, target), target, mode == ["ro"]))
        taken = {mount.target for mount in mounts}
        own = [it for it in self.image.words("VOLUME") if it not in taken]
        return mounts + [Mount(self._volume(f"{name}{it.replace('/', '-')}", it), it) for it in own]

    def _volume(self, name: str, target: str) -> Path:
        """A new volume begins as what the image has there, owner and mode included."""
        path = self._folder / "volumes" / name
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            subprocess.run(["cp", "-a", "--", f"{self.image.root}{target}", path], check=True)
        return path


def rehearse(work: Path, replicas: int, rounds: int, init: Path | None) -> None:
    """Every step is printed; an AssertionError or a TimeoutError ends it with a traceback."""
    _bridge()
    with _swarm(work, {"PEER_REPLICAS": str(replicas)}, init) as swarm:
        _set_up_twice(swarm)
        bootstrap = swarm.start("bootstrap", "bootstrap")
        print(f"bootstrap healthy after {_until(lambda: swarm.healthy(bootstrap), HEALTHY_S, bootstrap):.1f} s")
        peers = [swarm.start("peer", f"peer-{number}") for number in range(1, replicas + 1)]
        for peer in peers:
            took = _until(lambda peer=peer: swarm.healthy(peer), HEALTHY_S, peer)  # type: ignore[misc]
            print(f"{peer.name} healthy after {took:.1f} s more")
        _until_exchanged(swarm, peers, rounds)
        for container in (bootstrap, *peers):
            limit = swarm.services[container.name.split("-")[0]]["deploy"]["resources"]["limits"]["memory"]
            print(f"{container.name}: {container.memory() / 2**20:.0f} MiB in use, limit {limit}")
            print(f"{container.name}: {_metrics(container)} metrics")
        for container in (*peers, bootstrap):
            _drain(container)


@contextmanager
def _swarm(work: Path, environment: dict[str, str], init: Path | None) -> Iterator[Swarm]:
    swarm = Swarm(work, environment, init)
    try:
        yield swarm
    finally:
        swarm.close()


def _bridge() -> None:
    for words in (
        ["link", "set", "lo", "up"],
        ["link", "add", "rehearsal", "type", "bridge"],
        ["addr", "add", f"{NETWORK}1/24", "dev", "rehearsal"],
        ["link", "set", "rehearsal", "up"],
    ):
        subprocess.run(["ip", *words], check=True)


def _set_up_twice(swarm: Swarm) -> None:
    """The one-shot service ends with 0, and a second time it changes nothing."""
    kept: list[dict[str, bytes]] = []
    for attempt in ("setup", "setup-again"):
        container = swarm.start("setup", attempt)
        code = container.wait(120)
        print(f"{attempt}: exit code {code}")
        assert code == 0, container.output.read_text()
        kept.append({path.name: path.read_bytes() for path in swarm._volume("run", "").iterdir()})
    assert kept[0] == kept[1], "a second setup changed something"
    print("left: " + ", ".join(sorted(kept[0])))


def _until_exchanged(swarm: Swarm, peers: list[Container], rounds: int) -> None:
    def enough() -> bool:
        reports = [swarm.healthy(peer) for peer in peers]
        return all(report and report.get("rounds", {}).get("exchanged", 0) >= rounds for report in reports)

    took = _until(enough, ROUNDS_S, *peers)
    print(f"every peer exchanged {rounds} rounds after {took:.1f} s more")


def _until(done: Callable[[], object], timeout_s: float, *containers: Container) -> float:
    began = time.monotonic()
    while not done():
        for container in containers:
            assert container.ended() is None, container.output.read_text()[-3000:]
        if time.monotonic() - began > timeout_s:
            raise TimeoutError("\n".join(f"{it.name}: {it.output.read_text()[-3000:]}" for it in containers))
        time.sleep(0.5)
    return time.monotonic() - began


def _metrics(container: Container) -> int:
    """How many metrics the endpoint that Prometheus is told of names."""
    url = f"http://{container.address}:9464/metrics"
    with urllib.request.urlopen(url, timeout=10) as response:
        text: bytes = response.read(2**20)
    return text.count(b"# TYPE ")


def _drain(container: Container) -> None:
    began = time.monotonic()
    container.signal(signal.SIGTERM)
    code = container.wait(DRAIN_S)
    print(f"{container.name}: SIGTERM, exit code {code} after {time.monotonic() - began:.1f} s")
    assert code == 0, container.output.read_text()[-3000:]
