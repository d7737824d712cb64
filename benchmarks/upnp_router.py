"""A home router that opens ports on request by UPnP: `miniupnpd` in the namespace of a router made by
`benchmarks.nat_network` (Linux, as root)."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.nat_network import run

PROGRAMS = ("ip", "nft", "miniupnpd")
TABLE = "upnp"
CHAINS = """
table inet TABLE {
  chain miniupnpd { }
  chain prerouting_miniupnpd { }
  chain postrouting_miniupnpd { }
}
"""
"""The nftables chains into which miniupnpd writes, and which it does not create itself."""
OBEYED = """
table inet TABLE {
  chain prerouting { type nat hook prerouting priority -100; jump prerouting_miniupnpd; }
  chain postrouting { type nat hook postrouting priority 100; jump postrouting_miniupnpd; }
}
insert rule inet filter forward ct status dnat accept
"""
"""Rules that forward mapped ports. Without them the router confirms requests without effect."""
CONFIG = """
ext_ifname=wan
listening_ip=lan
ipv6_disable=yes
upnp_table_name=TABLE
upnp_nat_table_name=TABLE
secure_mode=yes
system_uptime=no
notify_interval=30
uuid=00000000-0000-0000-0000-000000000001
lease_file=FOLDER/leases
allow 1024-65535 0.0.0.0/0 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
"""
STARTS_S = 10.0


def why_not() -> str:
    """Return why this machine cannot run such a router. Empty: it can."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    lacking = [program for program in PROGRAMS if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    return f"not installed: {', '.join(lacking)} (Debian: iproute2, nftables, miniupnpd)" if lacking else ""


class UpnpRouter:
    """A running miniupnpd. `router` is its namespace."""

    def __init__(self, router: str, folder: Path, external: str) -> None:
        self._router = router
        self._folder = folder
        self._external = external
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def words(self) -> str:
        """Return its log."""
        return (self._folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start it and wait until it answers. Raises TimeoutError."""
        text = CONFIG.replace("TABLE", TABLE).replace("FOLDER", str(self._folder))
        if self._external:
            text += f"\next_ip={self._external}\n"
        (self._folder / "conf").write_text(text)
        command = ["miniupnpd", "-d", "-f", str(self._folder / "conf"), "-P", str(self._folder / "pid")]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(_within(self._router, *command), stdout=log, stderr=log)
        deadline = time.monotonic() + STARTS_S
        while "HTTP listening on port" not in self.words:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError(f"miniupnpd did not start: {self.words[-500:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=10)
            self._process = None

    def reboot(self) -> None:
        """Restart it without the opened ports."""
        self.stop()
        (self._folder / "leases").unlink(missing_ok=True)
        for chain in ("miniupnpd", "prerouting_miniupnpd", "postrouting_miniupnpd"):
            run(*_within(self._router, "nft", "flush", "chain", "inet", TABLE, chain))
        self.start()

    def opened(self) -> list[str]:
        """Return the nftables rules of the open ports."""
        command = _within(self._router, "nft", "list", "chain", "inet", TABLE, "prerouting_miniupnpd")
        told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
        return [line.strip() for line in told.splitlines() if "dnat" in line]

    def times_asked(self) -> int:
        """Return the number of requests to open a port since its start."""
        return self.words.count("#AddPortMapping")


@contextlib.contextmanager
def upnp_router(router: str, *, obeys: bool = True, external: str = "") -> Iterator[UpnpRouter]:
    """Run miniupnpd in a router's namespace, with the devices `lan` and `wan`. `obeys` False: it confirms requests, but
    nothing gets through. `external`: address that it reports as its own, if not that of `wan`."""
    run(*_within(router, "nft", "-f", "-"), given=CHAINS.replace("TABLE", TABLE))
    if obeys:
        run(*_within(router, "nft", "-f", "-"), given=OBEYED.replace("TABLE", TABLE))
    with tempfile.TemporaryDirectory(prefix="peer-upnp-") as folder:
        started = UpnpRouter(router, Path(folder), external)
        try:
            started.start()
            yield started
        finally:
            started.stop()


def _within(namespace: str, *command: str) -> list[str]:
    return ["ip", "netns", "exec", namespace, *command]
