"""Which of our processes holds the other end of a loopback connection: read from /proc (Linux), by the addresses of
the connection, the socket's inode, and who has it open."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

PROC = Path("/proc")
Address = tuple[str, int]


def owner(caller: Address, callee: Address, processes: Mapping[int, int]) -> int | None:
    """The node number of the process (`processes`: pid to node) that connected from `caller` to `callee`; None when
    none of them did, or it is gone already."""
    inode = _inode(caller, callee)
    if inode is None:
        return None
    wanted = f"socket:[{inode}]"
    return next((node for pid, node in processes.items() if _holds(pid, wanted)), None)


def _inode(caller: Address, callee: Address) -> str | None:
    """Of the socket whose local end is `caller`. IPv6 sockets carry IPv4 connections too."""
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
    """As the kernel prints it: the address as a number in the machine's order."""
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
    """pid to parent pid of the direct children of these processes."""
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
    """Its command line, words with spaces between; empty when it is gone."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def started_at(pid: int) -> str:
    """When the process began, in clock ticks since boot; empty when it is gone. It tells two users of one pid apart."""
    try:
        return (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        return ""
