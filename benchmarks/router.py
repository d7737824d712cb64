"""Hosts in network namespaces behind one router in userspace (Linux, as root): every host hangs on a TUN device whose
other end is read here. A host that is `closed` gets no packet that would open a TCP connection to it, as behind a home
router that lets nothing in; what it opened itself passes both ways."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import selectors
import struct
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
TCP, SYN, ACK = 6, 0x02, 0x10


@dataclass
class Host:
    """`name` is its network namespace."""

    name: str
    addresses: tuple[str, str]
    """IPv4 and IPv6."""
    closed: bool
    device: str
    fd: int = -1


@dataclass
class Router:
    hosts: list[Host]
    dropped: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Forward packets until `stop`."""
        by_address = {ipaddress.ip_address(a).packed: host for host in self.hosts for a in host.addresses}
        with selectors.DefaultSelector() as ready:
            for host in self.hosts:
                ready.register(host.fd, selectors.EVENT_READ)
            while not self._stop.is_set():
                for key, _ in ready.select(0.2):
                    self._forward(os.read(key.fd, 65536), by_address)

    def _forward(self, packet: bytes, by_address: dict[bytes, Host]) -> None:
        six = packet[0] >> 4 == 6
        to = by_address.get(packet[24:40] if six else packet[16:20])
        if to is None:
            return
        header = 40 if six else (packet[0] & 15) * 4
        protocol = packet[6] if six else packet[9]
        if to.closed and protocol == TCP and packet[header + 13] & (SYN | ACK) == SYN:
            self.dropped += 1
            return
        with contextlib.suppress(OSError):  # its queue is full: a packet is lost, as packets are
            os.write(to.fd, packet)

    def stop(self) -> None:
        self._stop.set()


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _open(host: Host) -> None:
    host.fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(host.fd, TUNSETIFF, struct.pack("16sH", host.device.encode(), IFF_TUN | IFF_NO_PI))
    ip("netns", "add", host.name)
    ip("link", "set", host.device, "netns", host.name)  # our end stays with us
    for command in (
        ["link", "set", "lo", "up"],
        ["addr", "add", f"{host.addresses[0]}/32", "dev", host.device],
        ["-6", "addr", "add", f"{host.addresses[1]}/128", "dev", host.device, "nodad"],
        ["link", "set", host.device, "up"],
        ["route", "add", "default", "dev", host.device],
        ["-6", "route", "add", "default", "dev", host.device],
    ):
        ip("-n", host.name, *command)


@contextlib.contextmanager
def network(hosts: list[Host]) -> Iterator[Router]:
    """The hosts, connected; everything is taken away again."""
    router = Router(hosts)
    thread = threading.Thread(target=router.run, name="router")
    try:
        for host in hosts:
            _open(host)
        thread.start()
        yield router
    finally:
        router.stop()
        if thread.is_alive():
            thread.join()
        for host in hosts:
            if host.fd >= 0:
                os.close(host.fd)
            subprocess.run(["ip", "netns", "del", host.name], check=False, capture_output=True)
