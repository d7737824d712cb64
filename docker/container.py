"""One rehearsed container: a process in mount, process and network namespaces of its own, on a root filesystem that may
be read only, as another user without capabilities. Linux only, as root; memory and processors are not limited."""

from __future__ import annotations

import shlex
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

DEVICES = ("null", "zero", "full", "random", "urandom")


@dataclass(frozen=True, slots=True)
class Mount:
    """`source` on this machine seen at `target` inside; None: an empty file system in memory."""

    source: Path | None
    target: str
    read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What a container is started with. `user`: `uid:gid`. `init`: a program like tini that becomes process 1."""

    root: Path
    command: list[str]
    environment: dict[str, str]
    user: str = "0:0"
    folder: str = "/"
    mounts: list[Mount] = field(default_factory=list)
    read_only: bool = False
    unprivileged: bool = False
    """No capabilities to be had, none to be gained."""
    network: bool = True
    """In a network of its own; False: in the caller's, to install packages."""
    init: Path | None = None

    def entering(self, command: list[str]) -> list[str]:
        """The command as this spec's user with nothing but its environment."""
        uid, gid = self.user.split(":")
        words = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
        if self.unprivileged:
            words += ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        return [*words, "env", "-i", "-C", self.folder, *(f"{k}={v}" for k, v in self.environment.items()), *command]

    def script(self, address: str) -> str:
        """For /bin/sh as process 1 of the new spaces: it waits for a line, so that its network is there first."""
        lines = ["set -e", "read -r _"]
        if self.network:
            lines += ["ip link set lo up", f"ip addr add {address}/24 dev eth0", "ip link set eth0 up"]
        root = shlex.quote(str(self.root))
        lines += [
            f"mount --bind {root} {root}",
            f"mount -t proc proc {root}/proc",
            f"mount -t tmpfs -o mode=755 dev {root}/dev",
        ]
        lines += [f"mkdir {root}/dev/shm", f"mount -t tmpfs -o size=64m shm {root}/dev/shm"]
        for device in DEVICES:
            lines += [f"touch {root}/dev/{device}", f"mount --bind /dev/{device} {root}/dev/{device}"]
        mounts = [*self.mounts, *([Mount(self.init, "/dev/init", True)] if self.init else [])]
        for mount in mounts:
            lines += _mounting(mount, f"{root}{shlex.quote(mount.target)}")
        if self.read_only:
            lines.append(f"mount -o remount,bind,ro {root}")
        command = (["/dev/init", "--"] if self.init else []) + self.command
        return "\n".join([*lines, f"exec chroot {root} {shlex.join(self.entering(command))} </dev/null"])


def _mounting(mount: Mount, target: str) -> list[str]:
    if mount.source is None:
        return [f"mount -t tmpfs tmpfs {target}"]
    source = shlex.quote(str(mount.source))
    make = "mkdir -p" if mount.source.is_dir() else "touch"
    bound = [f"[ -e {target} ] || {make} {target}", f"mount --bind {source} {target}"]
    return [*bound, f"mount -o remount,bind,ro {target}"] if mount.read_only else bound


class Container:
    """A started container. `output` is where its standard output and error go."""

    def __init__(self, name: str, spec: Spec, address: str, output: Path) -> None:
        self.name, self.spec, self.address, self.output = name, spec, address, output
        spaces = ["--mount", "--pid", "--uts", "--ipc", *(["--net"] if spec.network else [])]
        with output.open("ab") as log:
            self._outer = subprocess.Popen(
                ["unshare", *spaces, "--fork", "--kill-child", "sh", "-c", spec.script(address)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.pid = self._first_process()
        if spec.network:
            self._plug_in()
        assert self._outer.stdin is not None
        self._outer.stdin.write(b"go\n")
        self._outer.stdin.close()

    def wait(self, timeout_s: float) -> int:
        """The exit code, 128 + number for a signal. Raises TimeoutExpired."""
        code = self._outer.wait(timeout_s)
        return code if code >= 0 else 128 - code

    def ended(self) -> int | None:
        return self._outer.poll()

    def signal(self, number: signal.Signals) -> None:
        """To process 1, as a container engine does."""
        subprocess.run(["kill", f"-{int(number)}", str(self.pid)], check=True)

    def inside(self, command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run a command in the running container, as its user. Raises TimeoutExpired."""
        spaces = ["-m", "-p", "-u", "-i", "-r", *(["-n"] if self.spec.network else [])]
        return subprocess.run(
            ["nsenter", "-t", str(self.pid), *spaces, "--", *self.spec.entering(command)],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def memory(self) -> int:
        """Bytes of its processes now, shared pages divided among those that share them."""
        space = Path(f"/proc/{self.pid}/ns/pid").readlink()
        total = 0
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "ns/pid").readlink() == space:
                    fields = (process / "smaps_rollup").read_text().split("Pss:")[1]
                    total += int(fields.split()[0]) * 1024
            except (OSError, IndexError):  # it ended meanwhile
                continue
        return total

    def close(self) -> None:
        """Whatever still runs is killed with process 1."""
        if self._outer.poll() is None:
            self._outer.kill()
            self._outer.wait(10)

    def _first_process(self) -> int:
        outer = self._outer.pid
        children = Path(f"/proc/{outer}/task/{outer}/children")
        for _ in range(500):
            if found := children.read_text().split():
                return int(found[0])
            time.sleep(0.01)
        raise RuntimeError(f"{self.name} did not start; see {self.output}")

    def _plug_in(self) -> None:
        outside = f"veth{self.pid}"
        for words in (
            ["link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", str(self.pid)],
            ["link", "set", outside, "master", "rehearsal", "up"],
        ):
            subprocess.run(["ip", *words], check=True)
