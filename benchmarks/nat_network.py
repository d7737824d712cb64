"""Homes behind real NAT: network namespaces, veth pairs and nftables (Linux, as root).

A site is one public address. Without homes its host has that address itself. With homes a router translates for them,
as one at home does: what a home opens passes both ways, and nothing else comes in."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

GATEWAY = "192.168.7.1"
"""Address of every router in the network behind it."""
RULES = """
table ip nat {
  chain out {
    type nat hook postrouting priority 100
    oifname "wan" masquerade HOW
  }
}
table ip filter {
  chain forward {
    type filter hook forward priority 0; policy drop;
    ct state established,related accept
    iifname "lan" accept
  }
  chain input {
    type filter hook input priority 0; policy drop;
    ct state established,related accept
    iifname { "lan", "lo" } accept
    counter drop
  }
}
"""


@dataclass(frozen=True)
class Site:
    """`public`: its IPv4 address on the internet. `homes`: addresses behind its router, in 192.168.7.0/24."""

    name: str
    public: str
    homes: tuple[str, ...] = ()
    symmetric: bool = False
    """Whether the router draws a new port for each connection."""


def run(*command: str, given: str | None = None) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, input=given, timeout=30)


class Namespaces:
    """Makes namespaces and links between them. What is made is gone after `close`."""

    def __init__(self) -> None:
        self._tag = os.getpid() % 100000
        self._made: list[str] = []
        self._links = 0

    def add(self, name: str) -> str:
        """Make a namespace, with loopback, and return its name on this machine."""
        full = f"peer-{name}-{self._tag}"
        run("ip", "netns", "add", full)
        self._made.append(full)
        self.ip(full, "link", "set", "lo", "up")
        return full

    def link(self, a: str, a_device: str, b: str, b_device: str) -> None:
        """Connect two namespaces."""
        self._links += 1
        ours = [f"p{self._tag}x{self._links}{end}" for end in "ab"]
        run("ip", "link", "add", ours[0], "type", "veth", "peer", "name", ours[1])
        for device, namespace, name in zip(ours, (a, b), (a_device, b_device), strict=True):
            run("ip", "link", "set", device, "netns", namespace)
            self.ip(namespace, "link", "set", device, "name", name)
            self.ip(namespace, "link", "set", name, "up")

    def ip(self, namespace: str, *arguments: str) -> None:
        run("ip", "-n", namespace, *arguments)

    def within(self, namespace: str, *command: str, given: str | None = None) -> None:
        run("ip", "netns", "exec", namespace, *command, given=given)

    def close(self) -> None:
        for name in self._made:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False, timeout=30)


@contextlib.contextmanager
def internet(sites: Sequence[Site]) -> Iterator[dict[str, str]]:
    """Make the sites, and yield the namespace of each host: by the site's name, or by `SITE/HOME` behind a router."""
    spaces = Namespaces()
    try:
        core = spaces.add("core")
        spaces.within(core, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        yield {name: host for number, site in enumerate(sites) for name, host in _make(spaces, core, number, site)}
    finally:
        spaces.close()


def dropped(router: str) -> int:
    """Return how many packets a router did not let in."""
    told = subprocess.run(
        ["ip", "netns", "exec", router, "nft", "list", "chain", "ip", "filter", "input"],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    ).stdout.split()
    return int(told[told.index("packets") + 1])


def _make(spaces: Namespaces, core: str, number: int, site: Site) -> Iterator[tuple[str, str]]:
    edge = spaces.add(site.name)
    spaces.link(core, f"to{number}", edge, "wan")
    spaces.ip(core, "route", "add", f"{site.public}/32", "dev", f"to{number}")
    spaces.ip(core, "addr", "add", "100.127.0.1/32", "dev", f"to{number}")
    spaces.ip(edge, "addr", "add", f"{site.public}/32", "dev", "wan")
    spaces.ip(edge, "route", "add", "100.127.0.1/32", "dev", "wan")
    spaces.ip(edge, "route", "add", "default", "via", "100.127.0.1")
    yield site.name, edge
    if not site.homes:
        return
    spaces.within(edge, "sysctl", "-qw", "net.ipv4.ip_forward=1")
    spaces.ip(edge, "link", "add", "lan", "type", "bridge", "mcast_snooping", "0")
    spaces.ip(edge, "addr", "add", f"{GATEWAY}/24", "dev", "lan")
    spaces.ip(edge, "link", "set", "lan", "up")
    spaces.within(edge, "nft", "-f", "-", given=RULES.replace("HOW", "fully-random" if site.symmetric else ""))
    for home in site.homes:
        last = home.rpartition(".")[2]
        host = spaces.add(f"{site.name}-{last}")
        spaces.link(edge, f"port{last}", host, "eth")
        spaces.ip(edge, "link", "set", f"port{last}", "master", "lan")
        spaces.ip(host, "addr", "add", f"{home}/24", "dev", "eth")
        spaces.ip(host, "route", "add", "default", "via", GATEWAY)
        yield f"{site.name}/{home}", host
