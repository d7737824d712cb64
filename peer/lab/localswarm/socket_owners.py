"""Finds which of our processes holds the other end of a loopback connection. Reads /proc (Linux): the connection's
addresses give the socket's inode, and the open file descriptors give its process."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

PROC = Path("/proc")
Address = tuple[str, int]


def owner(caller: Address, callee: Address, processes: Mapping[int, int]) -> int | None:
    """Return the node of the process that connected from `caller` to `callee`. `processes`: pid -> node. None: no such
    process, or it is gone."""
    inode = _inode(caller, callee)
    if inode is None:
        return None
    wanted = f"socket:[{inode}]"
    return next((node for pid, node in processes.items() if _holds(pid, wanted)), None)


def _inode(caller: Address, callee: Address) -> str | None:
    """Return the inode of the socket from `caller` to `callee`. IPv6 sockets are searched too, because they carry IPv4
    connections."""
    for table, prefix in (("tcp", ""), ("tcp6", "0" * 16 + "FFFF0000")):
        local, remote = (f"{prefix}{_hex(host)}:{port:04X}" for host, port in (caller, callee))
        try:
            lines = (PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[1] == local and fields[2] == remote:
                return fields[9]
    return None


def _hex(host: str) -> str:
    """Return an IPv4 address as in /proc/net/tcp: hexadecimal in the machine's byte order."""
    return socket.inet_aton(host)[::-1].hex().upper()


def _holds(pid: int, wanted: str) -> bool:
    folder = PROC / str(pid) / "fd"
    try:
        names = os.listdir(folder)  # noqa: PTH208  a Path for each of hundreds of descriptors takes ten times as long
    except OSError:
        return False
    for name in names:
        try:
            if os.readlink(f"{folder}/{name}") == wanted:  # noqa: PTH115
                return True
        except OSError:
            continue  # closed meanwhile
    return False


def children(parents: Iterable[int]) -> dict[int, int]:
    """Return pid -> parent pid for the direct children of these processes."""
    wanted, found = set(parents), dict[int, int]()
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            if parent in wanted:
                found[int(entry.name)] = parent
    return found


def command_of(pid: int) -> str:
    """Return the command line of a process, its words joined by spaces. Empty: it is gone."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def started_at(pid: int) -> str:
    """Return the start time of a process, in clock ticks since boot. Empty: it is gone. Distinguishes two processes
    that had the same pid one after the other."""
    try:
        return (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        return ""
