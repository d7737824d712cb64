"""The command that starts p2pd: a small Python program drops everything that p2pd does not need, and then becomes
p2pd."""

from __future__ import annotations

from collections.abc import Sequence

from peer.process_limits import open_file_limits
from peer.python_child import isolated_python

_LAUNCH = """
import os, resource, sys
files, heap, data, *command = sys.argv[1:]
os.setsid()
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.closerange(3, 4096)
def limit(what, wanted):
    try:
        hard = resource.getrlimit(what)[1]
        wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(what, (wanted, wanted))
    except PermissionError:  # the limits that this process has are inherited
        pass
limit(resource.RLIMIT_NOFILE, int(files))
limit(resource.RLIMIT_CORE, 0)
if sys.platform == "linux":
    import ctypes
    limit(resource.RLIMIT_DATA, int(data))
    if ctypes.CDLL(None).prctl(38, 1, 0, 0, 0):
        sys.exit("the system does not let p2pd give up new privileges")
kept = {name: os.environ[name] for name in ("GOLOG_LOG_LEVEL", "GOLOG_LOG_FMT") if name in os.environ}
os.execve(command[0], command, {**kept, "GOMEMLIMIT": heap})
"""
"""Program of a separate Python process, which becomes p2pd. A preexec_fn would instead fork this process with its
threads.

p2pd gets no new privileges (38 is PR_SET_NO_NEW_PRIVS), no input, no open files, no core dump, and an environment of
three variables. It keeps our user, because it reads the key file, which only its owner can read. Where the system does
not allow setting limits, as under systemd with `SystemCallFilter=~@resources`, the limits of this process and
GOMEMLIMIT apply."""


def launched(command: Sequence[str], *, files: int, heap: int, data: int) -> list[str]:
    """Return the command that becomes `command` within these limits. `files`: number of open files. `heap`, `data`:
    bytes."""
    return isolated_python(_LAUNCH, str(files), str(heap), str(data), *command)


def files_granted(wanted: int) -> int:
    """Return the number of files that p2pd may open: `wanted`, or less if the system's limit is lower."""
    return int(min(wanted, open_file_limits()[1]))
