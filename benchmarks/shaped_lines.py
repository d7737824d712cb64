"""Access lines between network namespaces: rates, delays, jitter and loss as numbers, carried by the kernel's own TCP
(Linux, as root).

Each host is a namespace with one TUN device, and a thread of this process forwards the packets between these devices. A
packet waits for its sender's uplink, then for the latency of both links, then for its receiver's downlink. A queue in
front of a link holds `BUFFER_S` seconds of packets, and drops what would wait longer, as a router does. So TCP finds
its rate by itself, unlike in `peer.lab.sim.bandwidth`, where it is computed.

netem, which kernels often lack, is not needed."""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import select
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.nat_network import Namespaces, inside
from peer.lab.sim.links import Link, path_loss

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # <linux/if_tun.h>
MTU = 1500
BUFFER_S = 0.15
"""Seconds of packets that a router holds in front of a link."""
BATCH = 64
"""Packets read from one device before the others are looked at."""
SLEEP_S = 0.5
"""Longest wait for a packet, after which the forwarder looks whether it shall stop."""


def why_not() -> str:
    """Return why this machine cannot make such lines, apart from what namespaces need. Empty: it can."""
    return "" if os.access("/dev/net/tun", os.W_OK) else "/dev/net/tun cannot be opened"


@dataclass
class Host:
    """One host, and what has crossed its link. Byte counts are those of IP packets."""

    name: str
    address: str
    link: Link
    namespace: str
    device: int
    """File descriptor of its TUN device."""
    sent: dict[tuple[str, int], int] = field(default_factory=dict)
    """Bytes that left over the uplink, by receiver and by the lower of the packet's two ports."""
    dropped: int = 0
    """Packets dropped in front of its uplink or downlink, or lost on the way to others."""
    up_free_at: float = 0.0
    down_free_at: float = 0.0


class Forwarder(threading.Thread):
    """Forwards the packets of all hosts until `stop`. Use as a context manager."""

    def __init__(self, hosts: list[Host], seed: int) -> None:
        super().__init__(daemon=True, name="shaped-lines")
        self._hosts = {bytes(map(int, host.address.split("."))): host for host in hosts}
        self._rng = random.Random(seed)
        self._due: list[tuple[float, int, Host, bytes, bool]] = []
        """Heap of (moment, order, receiver, packet, whether it has passed the downlink)."""
        self._order = 0
        self._latest: dict[tuple[str, str], float] = {}
        """(sender, receiver) -> when its last packet reaches the downlink; jitter does not reorder packets."""
        self._ending = threading.Event()

    def __enter__(self) -> Forwarder:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        self.join(10 * SLEEP_S)

    def run(self) -> None:
        poll, by_device = select.epoll(), {host.device: host for host in self._hosts.values()}
        for device in by_device:
            poll.register(device, select.EPOLLIN)
        with poll:
            while not self._ending.is_set():
                wait = min(self._due[0][0] - time.monotonic(), SLEEP_S) if self._due else SLEEP_S
                for device, _ in poll.poll(max(0.0, wait)):
                    self._read(by_device[device])
                self._deliver(time.monotonic())

    def _read(self, host: Host) -> None:
        """Take the packets that a host has sent, and queue them on its uplink."""
        for _ in range(BATCH):
            try:
                packet = os.read(host.device, MTU + 64)
            except BlockingIOError:
                return
            to = self._hosts.get(packet[16:20]) if packet[0] >> 4 == 4 else None
            if to is not None:
                self._send(host, to, packet, time.monotonic())

    def _send(self, sender: Host, to: Host, packet: bytes, now: float) -> None:
        begins = max(sender.up_free_at, now)
        if begins - now > BUFFER_S:
            sender.dropped += 1
            return
        sender.up_free_at = begins + len(packet) / sender.link.up
        kind = to.name, _lower_port(packet)
        sender.sent[kind] = sender.sent.get(kind, 0) + len(packet)
        if self._rng.random() < path_loss(sender.link, to.link):
            sender.dropped += 1
            return
        jitter = self._rng.uniform(0, sender.link.jitter_s + to.link.jitter_s)
        arrives = sender.up_free_at + sender.link.latency_s + to.link.latency_s + jitter
        path = sender.name, to.name
        arrives = self._latest[path] = max(arrives, self._latest.get(path, 0.0))
        self._queue(arrives, to, packet, False)

    def _queue(self, at: float, to: Host, packet: bytes, is_through: bool) -> None:
        self._order += 1
        heapq.heappush(self._due, (at, self._order, to, packet, is_through))

    def _deliver(self, now: float) -> None:
        """Move the packets that are due: onto the downlink, or into the device of their receiver."""
        while self._due and self._due[0][0] <= now:
            at, _, to, packet, is_through = heapq.heappop(self._due)
            if is_through:
                with contextlib.suppress(OSError):  # the device is down, or its queue is full: the packet is lost
                    os.write(to.device, packet)
                continue
            begins = max(to.down_free_at, at)
            if begins - at > BUFFER_S:
                to.dropped += 1
                continue
            to.down_free_at = begins + len(packet) / to.link.down
            self._queue(to.down_free_at, to, packet, True)


def _lower_port(packet: bytes) -> int:
    """Return the lower TCP or UDP port of an IPv4 packet: that of the service. 0: neither."""
    if packet[9] not in (6, 17):
        return 0
    head = (packet[0] & 15) * 4
    one, other = struct.unpack_from("!HH", packet, head)
    return int(min(one, other))


@contextlib.contextmanager
def shaped_lines(links: Mapping[str, Link], seed: int = 0) -> Iterator[dict[str, Host]]:
    """Make a host for each link, and forward packets between them. Yield name -> host. Host number K has the address
    61.K.0.1, in an address block of its own; no packet leaves these namespaces."""
    spaces, hosts = Namespaces(), list[Host]()
    try:
        for number, (name, link) in enumerate(links.items(), 1):
            namespace, address = spaces.add(name), f"61.{number}.0.1"
            device = _tun(namespace)
            hosts.append(Host(name, address, link, namespace, device))
            spaces.ip(namespace, "addr", "add", f"{address}/32", "dev", "wan")
            spaces.ip(namespace, "link", "set", "wan", "mtu", str(MTU), "up")
            spaces.ip(namespace, "route", "add", "default", "dev", "wan")
        with Forwarder(hosts, seed):
            yield {host.name: host for host in hosts}
    finally:
        for host in hosts:
            os.close(host.device)
        spaces.close()


def _tun(namespace: str) -> int:
    """Make the TUN device `wan` in a namespace, and return its file descriptor, which does not block."""
    with inside(namespace):
        device = os.open(Path("/dev/net/tun"), os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH14x", b"wan", IFF_TUN | IFF_NO_PI))
    return device
