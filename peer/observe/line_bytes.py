"""Measures all bytes that a daemon and its p2pd send and receive: payload, messages, and the overhead of TLS, HTTP/2,
libp2p, TCP and IP.

Linux counts bytes and segments of each TCP connection, and lets any user read them through netlink (sock_diag(7), which
`ss` also uses). On other systems the bytes are estimated from payload and messages."""

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
"""Attribute number of a connection's `tcp_info`."""
LISTENING = 10
DESTROYED = 1 << 0 | 1 << 2
"""sock_diag groups in which the kernel reports each IPv4 or IPv6 TCP socket that is destroyed, with its final
counts."""
REPORT_BUFFER_BYTES = 1 << 20
"""Receive buffer for these reports between two samples: enough for some thousand sockets."""
MAX_ENDED = 4096
"""Sockets that are remembered from their last sample until the report of their end arrives."""
STATES = sum(1 << state for state in (1, 2, 4, 5, 8, 9, 11, LISTENING))
"""Connections that exist or are being closed, and listening sockets. Sockets in TIME_WAIT count no bytes."""
SAMPLE_EVERY_S, PAUSE_PER_SAMPLE = 1.0, 100.0
"""Seconds between two samples, and the least pause as a multiple of the time that a sample took."""
WAIT_S = 2.0
"""Timeout of a netlink answer. The kernel needs about a millisecond for a hundred connections."""
IP4, IP6, TCP, TIMESTAMPS = 20, 40, 20, 12
"""Sizes of a segment's headers and of the TCP timestamp option in bytes."""
ESTIMATED_PAYLOAD, ESTIMATED_MESSAGES = 1.041, 8.0
"""Factors on payload bytes and on message bytes for the estimate. Sources: results/exchange.json, and the ratio of all
bytes to message bytes in results/control_bytes.json."""


@dataclass(frozen=True, slots=True)
class LineBytes:
    """Bytes on the line since the daemon started. `measured`: counted by the kernel; otherwise estimated."""

    sent: int = 0
    received: int = 0
    measured: bool = False


def estimated(payload_sent: int, payload_received: int, messages_sent: int, messages_received: int) -> LineBytes:
    """Estimate the bytes on the line from the bytes of payload frames and of control messages."""
    sent = ESTIMATED_PAYLOAD * payload_sent + ESTIMATED_MESSAGES * messages_sent
    return LineBytes(round(sent), round(ESTIMATED_PAYLOAD * payload_received + ESTIMATED_MESSAGES * messages_received))


@dataclass(frozen=True, slots=True)
class TcpConnection:
    """A TCP socket as sock_diag describes it."""

    cookie: bytes
    """Identifies the socket for its whole life, also after the last process has closed it."""
    inode: int
    """0: no process holds the socket."""
    listening: bool
    local: tuple[bytes, int]
    remote: tuple[bytes, int]
    sent: int
    """Bytes on the line, headers included."""
    received: int


class LineMeter:
    """Counts the bytes of the TCP connections of some processes. Connections between these processes, and those to a
    local server of the first process (such as its page), are not counted.

    A sample reads the connections that exist at that moment. Bytes after the last sample of a connection, and
    connections that began and ended between two samples, come from the kernel's report of each destroyed socket. Such a
    socket belongs to no process any more. It is counted if it was accepted at one of our ports, or if its far end is an
    address that we have called before. Two errors follow: a first call to an address is missed if it takes less than a
    second, and two daemons on one machine both count short calls to an address that both call. Without the reports,
    bytes after the last sample are lost."""

    def __init__(
        self, pids: Callable[[], Iterable[int]], port: Callable[[], int], estimate: Callable[[], LineBytes]
    ) -> None:
        """`pids`: the processes to count, the daemon first. `port`: where the daemon serves other peers. `estimate`:
        returns the estimate for systems without these counts."""
        self._pids = pids
        self._port = port
        self._estimate = estimate
        self._sent = self._received = 0
        self._seen: dict[bytes, tuple[int, int]] = {}
        """(sent, received) of our connections at the last sample, by cookie."""
        self._foreign: set[bytes] = set()
        """Cookies of other programs' connections."""
        self._ended: dict[bytes, tuple[int, int] | None] = {}
        """As `_seen`, for connections that the last samples no longer contained. None: another program's connection."""
        self._ports: set[int] = set()
        """Ports at which our processes serve other peers."""
        self._called: set[tuple[bytes, int]] = set()
        """Remote addresses that we have called. At most `MAX_ENDED`."""
        self._reports: socket.socket | None = None
        self._fails = False
        self.latest = LineBytes()
        """Result of the last sample of `watch`."""

    def read(self) -> LineBytes:
        """Sample all connections and return the totals. Takes about a millisecond for a hundred connections."""
        if not self._fails:
            try:
                self._sample(tcp_connections())
                self._count_ended()
                return LineBytes(self._sent, self._received, measured=True)
            except OSError:
                self._fails = True  # the system or a sandbox does not offer these counts, so trying again is useless
        return self._estimate()

    async def watch(self) -> None:
        """Sample every second until cancelled; less often where a sample takes long. Between samples the kernel's
        reports of destroyed sockets are buffered."""
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
        """Add the bytes of destroyed sockets since their last sample."""
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
        """Decide for each new connection whether it is ours or another program's."""
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
                continue  # known, or not accepted yet: the next sample shows its process
            if one.cookie in counted:
                self._seen[one.cookie] = 0, 0
                self._foreign.discard(one.cookie)
            else:
                self._foreign.add(one.cookie)


def _inodes(pid: int) -> set[int]:
    """Return the inodes of the sockets that a process holds. Empty when the process has ended or belongs to another
    user."""
    found = set()
    with contextlib.suppress(OSError):
        for held in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                target = str(held.readlink())
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
    return found


def _open_end_reports() -> socket.socket | None:
    """Return a socket that receives the kernel's reports of destroyed TCP sockets. None: not supported or not permitted
    here."""
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
    """Return the sockets whose destruction was reported since the last call."""
    found: list[TcpConnection] = []
    while reports is not None:
        try:
            _parse_datagram(reports.recv(1 << 18), found)
        except BlockingIOError:
            break
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                break
            continue  # the buffer overflowed; the lost reports are not counted
    return found


def tcp_connections() -> list[TcpConnection]:
    """Return all TCP sockets of this network namespace. Raises OSError where the kernel does not offer them."""
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
    """Append the connections of one netlink datagram to `found`; return whether more datagrams follow. Raises OSError
    when the kernel refuses the request."""
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
    """Parse an `inet_diag_msg` with its attributes. None: the socket has no counts.

    Raises OSError for kernels before 4.19, which do not count sent bytes."""
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
    """Convert an IPv4-mapped IPv6 address to IPv4; return others unchanged."""
    return address[12:] if len(address) == 16 and _is_mapped(address) else address
