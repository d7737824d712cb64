"""`python -m tests.support.refused_calls NAME,... COMMAND...`: runs a command for which the kernel refuses these system
calls.

The calls fail with EPERM, as under systemd's SystemCallFilter or in a container. Linux on x86-64 only."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

import pytest

NUMBERS = {
    "chmod": 90,
    "fchmod": 91,
    "fchmodat": 268,
    "fchmodat2": 452,
    "ioprio_set": 251,
    "prlimit64": 302,
    "sched_getaffinity": 204,
    "sched_setaffinity": 203,
    "sched_setscheduler": 144,
    "setpriority": 141,
    "setrlimit": 160,
}
"""Numbers of the system calls on x86-64."""
RESOURCES = "setpriority,ioprio_set,sched_setaffinity,sched_setscheduler,setrlimit,prlimit64"
"""The calls that `SystemCallFilter=~@resources` refuses, and prlimit64, with which the C library reads limits."""

needs_seccomp = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="system calls are refused by their numbers"
)
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD_NUMBER = struct.pack("HBBI", 0x20, 0, 0, 0)
_ALLOW = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
_REFUSE = struct.pack("HBBI", 0x06, 0, 0, 0x00050000 | errno.EPERM)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def command(names: str, *words: str) -> list[str]:
    """Return the command line that runs another command with these calls refused."""
    return [sys.executable, "-m", "tests.support.refused_calls", names, *words]


def refuse(names: list[str]) -> None:
    """Refuse these calls for this process and its children from now on."""
    steps = [_LOAD_NUMBER]
    for name in names:  # for another call's number the next step is skipped
        steps += [struct.pack("HBBI", 0x15, 0, 1, NUMBERS[name]), _REFUSE]
    code = ctypes.create_string_buffer(b"".join([*steps, _ALLOW]))
    program = _Program(len(steps) + 1, ctypes.cast(code, ctypes.c_void_p).value)
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "the filter of system calls was not taken")


if __name__ == "__main__":
    refuse(sys.argv[1].split(","))
    os.execvp(sys.argv[2], sys.argv[2:])
