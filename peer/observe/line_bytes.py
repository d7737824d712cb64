"""Bytes that a daemon and its p2pd sent and received on the line: payload, messages, TLS, HTTP/2, libp2p, TCP and IP.

Linux counts the bytes and segments of each TCP connection, and reports them to everybody over the socket that `ss`
asks (sock_diag(7)). Where that is not to be had, the count is estimated from the payload and from the messages."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, DUMP = 4, 20, 0x301
DONE, ERROR = 3, 2
INFO = 2
"""Attribute with a connection's `tcp_info`."""
LISTENING = 10
DESTROYED = 1 << 0 | 1 << 2
"""Groups of sock_diag to which the kernel reports each TCP socket of IPv4 and of IPv6 at its end, with its last
counts."""
REPORT_BUFFER_BYTES = 1 << 20
"""Bytes of such reports that wait for the next look: some thousand sockets."""
MAX_ENDED = 4096
"""Sockets that are remembered between the last look that showed them and the report of their end."""
STATES = sum(1 << state for state in (1, 2, 4, 5, 8, 9, 11, LISTENING))
"""Of connections that exist or are being closed, and of listening sockets. Those in TIME_WAIT count no bytes."""
SAMPLE_EVERY_S, PAUSE_PER_SAMPLE = 1.0, 100.0
"""Seconds between two looks, and their time over that of a look."""
WAIT_S = 2.0
"""The kernel answers at once; a dump takes a millisecond for a hundred connections."""
IP4, IP6, TCP, TIMESTAMPS = 20, 40, 20, 12
"""Bytes of headers of a segment."""
ESTIMATED_PAYLOAD, ESTIMATED_MESSAGES = 1.041, 8.0
"""Factors on payload and on messages where nothing is measured: results/exchange.json, and the ratio of all bytes to
those of messages in results/control_bytes.json."""


@dataclass(frozen=True, slots=True)
class LineBytes:
    """Bytes since the daemon began. `measured`: by the kernel's counts; else estimated."""

    sent: int = 0
    received: int = 0
    measured: bool = False


def estimated(payload_sent: int, payload_received: int, messages_sent: int, messages_received: int) -> LineBytes:
    """Estimate the bytes on the line from those of payload frames and of control messages."""
    sent = ESTIMATED_PAYLOAD * payload_sent + ESTIMATED_MESSAGES * messages_sent
    return LineBytes(round(sent), round(ESTIMATED_PAYLOAD * payload_received + ESTIMATED_MESSAGES * messages_received))


@dataclass(frozen=True, slots=True)
class TcpConnection:
    """One TCP socket as the kernel describes it."""

    cookie: bytes
    """Names the socket for its whole life, also when no process holds it any more."""
    inode: int
    """0: no process holds it."""
    listening: bool
    local: tuple[bytes, int]
    remote: tuple[bytes, int]
    sent: int
    """Bytes on the line, headers included."""
    received: int


class LineMeter:
    """Counter of the TCP connections of some processes. Connections between two of them, inside this machine, are left
    out, and so are those to a local server of the first process, such as its page.

    A look shows the connections of the moment. What they carried after it, and those that were opened and closed
    between two looks, come from the kernel's report of each socket that ends. Such a socket has no holder any more. It
    counts as ours if it was accepted at a port of ours, or led to an address that we are or were connected to. So the
    first call to an address is missed if it lasts less than a second, and of several daemons on one machine each also
    counts such short calls of the others to an address that it calls. Without these reports, nothing after the last
    look is counted."""

    def __init__(
        self, pids: Callable[[], Iterable[int]], port: Callable[[], int], estimate: Callable[[], LineBytes]
    ) -> None:
        """`port`: where the first process serves others. `estimate`: returns the count where none can be measured."""
        self._pids = pids
        self._port = port
        self._estimate = estimate
        self._sent = self._received = 0
        self._seen: dict[bytes, tuple[int, int]] = {}
        """Counts of our connections at the last look, by cookie."""
        self._foreign: set[bytes] = set()
        """Cookies of connections of other programs."""
        self._ended: dict[bytes, tuple[int, int] | None] = {}
        """As `_seen`, of those that the last looks did not show any more. None: it is another program's."""
        self._ports: set[int] = set()
        """Where our processes serve others."""
        self._called: set[tuple[bytes, int]] = set()
        """Far ends of our own connections so far. Bounded by `MOST_ENDED`."""
        self._reports: socket.socket | None = None
        self._fails = False
        self.latest = LineBytes()
        """What the last look of `watch` found."""

    def read(self) -> LineBytes:
        """Look at all connections and return the sums. Takes about a millisecond for a hundred connections."""
        if not self._fails:
            try:
                self._sample(tcp_connections())
                self._count_ended()
                return LineBytes(self._sent, self._received, measured=True)
            except OSError:
                self._fails = True  # another system, or a sandbox: that does not change while we run
        return self._estimate()

    async def watch(self) -> None:
        """Look every second, on a machine with very many connections less often; the owner cancels. Meanwhile the
        kernel reports the sockets that end."""
        with contextlib.ExitStack() as stack:
            self._reports = _open_end_reports()
            if self._reports is not None:
                stack.enter_context(self._reports)
            stack.callback(self._drop_reports)
            while True:
                began = time.monotonic()
                self.latest = self.read()
                await asyncio.sleep(max(SAMPLE_EVERY_S, PAUSE_PER_SAMPLE * (time.monotonic() - began)))

    def _drop_reports(self) -> None:
        self._reports = None

    def _sample(self, found: list[TcpConnection]) -> None:
        cookies = {one.cookie for one in found}
        self._ended |= dict.fromkeys(self._foreign - cookies)
        self._ended |= {cookie: counts for cookie, counts in self._seen.items() if cookie not in cookies}
        for cookie in list(self._ended)[: max(0, len(self._ended) - MAX_ENDED)]:
            del self._ended[cookie]
        self._foreign &= cookies
        if any(one.cookie not in self._seen and one.cookie not in self._foreign for one in found):
            self._classify_new(found)
        ours = [one for one in found if one.cookie in self._seen]
        for one in ours:
            self._add(one, self._seen[one.cookie])
        self._seen = {one.cookie: (one.sent, one.received) for one in ours}

    def _add(self, now: TcpConnection, before: tuple[int, int]) -> None:
        self._sent += max(0, now.sent - before[0])
        self._received += max(0, now.received - before[1])
        if now.local[1] not in self._ports and len(self._called) < MAX_ENDED:
            self._called.add(now.remote)

    def _count_ended(self) -> None:
        """Add what the sockets that ended carried since the last look at them."""
        for one in _ended(self._reports):
            if one.cookie in self._foreign:
                self._foreign.discard(one.cookie)
            elif one.cookie in self._seen:
                self._add(one, self._seen.pop(one.cookie))
            elif one.cookie in self._ended:
                if (before := self._ended.pop(one.cookie)) is not None:
                    self._add(one, before)
            elif one.local[1] in self._ports or one.remote in self._called:
                self._add(one, (0, 0))

    def _classify_new(self, found: list[TcpConnection]) -> None:
        """Take note of the new connections that are ours."""
        ours: set[int] = set()
        local_servers: set[int] = set()
        ports = set()
        for number, pid in enumerate(self._pids()):
            held = _inodes(pid)
            ours |= held
            servers = {one.local[1] for one in found if one.listening and one.inode in held}
            if number == 0:
                local_servers = servers - {self._port()}
            ports |= servers
        self._ports = ports - local_servers
        mine = [one for one in found if one.inode in ours and not one.listening]
        inside = {(one.remote, one.local) for one in mine}
        counted = {
            one.cookie for one in mine if one.local[1] not in local_servers and (one.local, one.remote) not in inside
        }
        for one in found:
            if one.cookie in self._seen or (one.inode == 0 and one.cookie not in counted):
                continue  # known, or not accepted yet: its holder shows at the next look
            if one.cookie in counted:
                self._seen[one.cookie] = 0, 0
                self._foreign.discard(one.cookie)
            else:
                self._foreign.add(one.cookie)


def _inodes(pid: int) -> set[int]:
    """Return the inodes of the sockets that a process holds. Empty for one that is gone or not ours to look at."""
    found = set()
    with contextlib.suppress(OSError):
        for held in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                target = str(held.readlink())
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
    return found


def _open_end_reports() -> socket.socket | None:
    """Return a socket on which the kernel reports the TCP sockets that end from here on. None: it does not."""
    if not hasattr(socket, "AF_NETLINK"):
        return None
    reports = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, NETLINK_SOCK_DIAG)
    try:
        reports.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, REPORT_BUFFER_BYTES)
        reports.bind((0, DESTROYED))
    except OSError:
        reports.close()
        return None
    return reports


def _ended(reports: socket.socket | None) -> list[TcpConnection]:
    """Return the sockets whose end was reported since the last call."""
    found: list[TcpConnection] = []
    while reports is not None:
        try:
            _parse_datagram(reports.recv(1 << 18), found)
        except BlockingIOError:
            break
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                break
            continue  # there were more than the socket holds: those that were dropped are not counted
    return found


def tcp_connections() -> list[TcpConnection]:
    """Return all TCP sockets of this network namespace. Raises OSError where the kernel does not tell."""
    if not hasattr(socket, "AF_NETLINK"):
        raise OSError("no netlink on this system")
    found: list[TcpConnection] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as asked:
        asked.settimeout(WAIT_S)
        for family in (socket.AF_INET, socket.AF_INET6):
            request = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 1 << (INFO - 1), STATES) + bytes(48)
            head = struct.pack("=IHHII", 16 + len(request), SOCK_DIAG_BY_FAMILY, DUMP, family, 0)
            asked.send(head + request)
            while _parse_datagram(asked.recv(1 << 18), found):
                pass
    return found


def _parse_datagram(answer: bytes, found: list[TcpConnection]) -> bool:
    """Add the connections of one datagram; whether more follow. Raises OSError for the kernel's refusal."""
    at = 0
    while at + 16 <= len(answer):
        length, kind = struct.unpack_from("=IH", answer, at)
        if kind == DONE or length < 16:
            return False
        if kind == ERROR:
            raise OSError(-struct.unpack_from("=i", answer, at + 16)[0], "sock_diag is refused")
        if (one := _connection(answer[at + 16 : at + length])) is not None:
            found.append(one)
        at += (length + 3) & ~3
    return True


def _connection(message: bytes) -> TcpConnection | None:
    """Parse an `inet_diag_msg` with its attributes. None: it is of a socket without counts.

    Raises OSError for a kernel before 4.19, which does not count the bytes that were sent."""
    family, state = message[0], message[1]
    size = 4 if family == socket.AF_INET else 16
    local_port, remote_port = struct.unpack_from(">HH", message, 4)
    local, remote = message[8 : 8 + size], message[24 : 24 + size]
    (inode,) = struct.unpack_from("=I", message, 68)
    sent = received = 0
    if state != LISTENING:
        if (info := _attribute(message, INFO)) is None:
            return None
        if len(info) < 208:
            raise OSError("this kernel does not count the bytes that were sent")
        headers = TCP + (IP4 if size == 4 or _is_mapped(remote) else IP6) + (TIMESTAMPS if info[5] & 1 else 0)
        (received,) = struct.unpack_from("=Q", info, 128)
        segments_out, segments_in = struct.unpack_from("=II", info, 136)
        (sent,) = struct.unpack_from("=Q", info, 200)
        sent, received = sent + headers * segments_out, received + headers * segments_in
    ends = (_plain(local), local_port), (_plain(remote), remote_port)
    return TcpConnection(message[44:52], inode, state == LISTENING, *ends, sent, received)


def _attribute(message: bytes, wanted: int) -> bytes | None:
    at = 72
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if length < 4:
            return None
        if kind == wanted:
            return message[at + 4 : at + length]
        at += (length + 3) & ~3
    return None


def _is_mapped(address: bytes) -> bool:
    return ipaddress.IPv6Address(address).ipv4_mapped is not None


def _plain(address: bytes) -> bytes:
    """Return an IPv4 address that IPv6 maps as the IPv4 address."""
    return address[12:] if len(address) == 16 and _is_mapped(address) else address
