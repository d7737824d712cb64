"""Homes behind real NAT: network namespaces, veth pairs and nftables (Linux, as root).

A site is one public address. Without homes its host has that address itself. With homes a router translates addresses
for them: connections that a home opens pass in both directions, and all others are dropped. Over IPv6 nothing is
translated, and the router lets in as little. A site may lie in the network of another, as homes behind a carrier's
router do.

No packet leaves these namespaces, so the addresses may be any: those of `home_site` are public to the program."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CORE, CORE_6 = "100.127.0.1", "fe80::1"
"""The next hop of every site that is not inside another."""
SITE_6 = "fe80::2"
RULES = """
table ip nat {
  chain out {
    type nat hook postrouting priority 100
    oifname "wan" masquerade HOW
  }
}
table inet filter {
  chain forward {
    type filter hook forward priority 0; policy drop;
    ct state established,related accept
    iifname "lan" accept
    counter drop
  }
  chain input {
    type filter hook input priority 0; policy drop;
    ct state established,related accept
    iifname { "lan", "lo" } accept
    meta l4proto ipv6-icmp accept
    counter drop
  }
}
"""
NEW_NETWORK = 0x40000000  # CLONE_NEWNET of <sched.h>


@dataclass(frozen=True)
class Site:
    """A site of the simulated internet. public: its IPv4 address; empty: none. homes: addresses behind its router."""

    name: str
    public: str
    homes: tuple[str, ...] = ()
    symmetric: bool = False
    """Whether the router picks a new port for each connection (symmetric NAT)."""
    network6: str = ""
    """The first 64 bits of its IPv6 addresses, such as `2600:7:0:0`. A home with the last octet 2 has `::2`."""
    gateway: str = "192.168.7.1"
    """The router's address in the network behind it, of 24 bits. Homes are in that network."""
    inside: str = ""
    """Name of an earlier site in whose network this one is. Empty: directly on the internet."""


def home_site(number: int, *, symmetric: bool = False, four: bool = True, six: bool = False, homes: int = 1) -> Site:
    """Return the site of a home, in an address block of its own."""
    inside = tuple(f"192.168.7.{last}" for last in range(2, 2 + homes))
    return Site(f"home{number}", f"60.{number}.0.1" * four, inside, symmetric, f"2600:{number:x}:0:0" * six)


def open_site(name: str, number: int, *, four: bool = True, six: bool = False) -> Site:
    """Return the site of a host that accepts all connections."""
    return Site(name, f"61.{number}.0.1" * four, network6=f"2610:{number:x}:0:0" * six)


def run(*command: str, given: str | None = None) -> str:
    """Run a command and return its output. Raises CalledProcessError."""
    return subprocess.run(command, check=True, capture_output=True, text=True, input=given, timeout=30).stdout


def why_not(*tools: str) -> str:
    """Return why this machine cannot make such networks or lacks one of `tools`. Empty: it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces take Linux and root"
    if missing := [tool for tool in ("ip", "nft", "sysctl", *tools) if shutil.which(tool) is None]:
        return f"not installed: {' '.join(missing)}"
    try:
        with internet([home_site(1)]):
            return ""
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Enter a namespace in this thread, for making sockets. Other threads are not affected."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", namespace).open() as there, Path("/proc/thread-self/ns/net").open() as back:
        if libc.setns(there.fileno(), NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
        try:
            yield
        finally:
            assert libc.setns(back.fileno(), NEW_NETWORK) == 0


class Namespaces:
    """Makes namespaces and links between them. `close` removes them."""

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

    def within(self, namespace: str, *command: str, given: str | None = None) -> str:
        return run("ip", "netns", "exec", namespace, *command, given=given)

    def forward(self, namespace: str) -> None:
        self.within(namespace, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")

    def close(self) -> None:
        for name in self._made:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False, timeout=30)


@contextlib.contextmanager
def internet(sites: Sequence[Site]) -> Iterator[dict[str, str]]:
    """Make the sites. Yield host -> namespace: named after the site, or `SITE/HOME` behind a router.

    The name of a site with homes is its router's."""
    spaces = Namespaces()
    try:
        core = spaces.add("core")
        spaces.forward(core)
        made: dict[str, str] = {}
        for number, site in enumerate(sites):
            edge = made[site.name] = spaces.add(site.name)
            if site.inside:
                outer = next(one for one in sites if one.name == site.inside)
                spaces.link(made[outer.name], f"port{number}", edge, "wan")
                spaces.ip(made[outer.name], "link", "set", f"port{number}", "master", "lan")
                _uplink(spaces, edge, site, outer.gateway)
            else:
                _connect(spaces, core, f"to{number}", edge, site)
            if site.homes:
                made |= _behind(spaces, edge, site)
        yield made
    finally:
        spaces.close()


def dropped(router: str) -> int:
    """Return the number of packets that a router has dropped."""
    rules = run("ip", "netns", "exec", router, "nft", "list", "table", "inet", "filter").split()
    return sum(int(rules[place + 1]) for place, word in enumerate(rules) if word == "packets")


def _connect(spaces: Namespaces, core: str, port: str, edge: str, site: Site) -> None:
    spaces.link(core, port, edge, "wan")
    if site.public:
        spaces.ip(core, "route", "add", f"{site.public}/32", "dev", port)
        spaces.ip(core, "addr", "add", f"{CORE}/32", "dev", port)
        _uplink(spaces, edge, site, CORE)
    if site.network6:
        spaces.ip(core, "addr", "add", f"{CORE_6}/64", "dev", port, "nodad")
        spaces.ip(edge, "addr", "add", f"{SITE_6}/64", "dev", "wan", "nodad")
        spaces.ip(core, "route", "add", f"{site.network6}::/64", "via", SITE_6, "dev", port)
        spaces.ip(edge, "route", "add", "::/0", "via", CORE_6, "dev", "wan")
        if not site.homes:
            spaces.ip(edge, "addr", "add", f"{site.network6}::1/64", "dev", "wan", "nodad")


def _uplink(spaces: Namespaces, edge: str, site: Site, next_hop: str) -> None:
    spaces.ip(edge, "addr", "add", f"{site.public}/32", "dev", "wan")
    spaces.ip(edge, "route", "add", f"{next_hop}/32", "dev", "wan")
    spaces.ip(edge, "route", "add", "default", "via", next_hop)


def _behind(spaces: Namespaces, edge: str, site: Site) -> Iterator[tuple[str, str]]:
    """Make the network behind a router, and yield each home's name and namespace."""
    spaces.forward(edge)
    spaces.ip(edge, "link", "add", "lan", "type", "bridge", "mcast_snooping", "0")
    spaces.ip(edge, "addr", "add", f"{site.gateway}/24", "dev", "lan")
    if site.network6:
        spaces.ip(edge, "addr", "add", f"{site.network6}::1/64", "dev", "lan", "nodad")
    spaces.ip(edge, "link", "set", "lan", "up")
    spaces.within(edge, "nft", "-f", "-", given=RULES.replace("HOW", "fully-random" if site.symmetric else ""))
    for home in site.homes:
        last = home.rpartition(".")[2]
        host = spaces.add(f"{site.name}-{last}")
        spaces.link(edge, f"home{last}", host, "eth")
        spaces.ip(edge, "link", "set", f"home{last}", "master", "lan")
        if site.public:
            spaces.ip(host, "addr", "add", f"{home}/24", "dev", "eth")
            spaces.ip(host, "route", "add", "default", "via", site.gateway)
        if site.network6:
            spaces.ip(host, "addr", "add", f"{site.network6}::{last}/64", "dev", "eth", "nodad")
            spaces.ip(host, "route", "add", "::/0", "via", f"{site.network6}::1", "dev", "eth")
        yield f"{site.name}/{home}", host
