"""Checks the home: its owner, its permissions, and whether a daemon uses it. Nothing in it is created or changed."""

from __future__ import annotations

import fcntl
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from peer import identity as identities
from peer.errors import HomeUnusable, IdentityError, PeerError, file_advice, for_shell
from peer.node.control import send_command
from peer.node.doctor.finding import DoctorFinding, failure, fine, warning
from peer.observe.status.notices import read_status
from peer.observe.status.value import DaemonStatus
from peer.run.home import Home
from peer.user_folders import keeps_modes, user_name

ASK_S = 3.0


@dataclass(frozen=True, slots=True)
class RunningDaemon:
    """A daemon that holds this home. `status` None: it does not answer."""

    pid: str
    status: DaemonStatus | None


def nearest(path: Path) -> Path:
    """Return the path, or its nearest parent folder that exists."""
    for folder in (path, *path.parents):
        if os.path.lexists(folder):
            return folder
    return Path("/")


def home(path: Path, me: int | None = None) -> DoctorFinding:
    """Check that this user can use the home. `me`: the user's id."""
    me = os.geteuid() if me is None else me
    there = nearest(path)
    try:
        facts = there.stat()
    except OSError as error:
        return failure("home", HomeUnusable(f"cannot look at {there}: {error.strerror}", file_advice(error, path)))
    owner, exists = user_name(facts.st_uid), there == path
    if not stat.S_ISDIR(facts.st_mode):
        return failure(
            "home", HomeUnusable(f"{there} is not a folder", f"Move {there} away, or choose another --home.")
        )
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        found = (
            f"{there} belongs to {owner} (mode {stat.S_IMODE(facts.st_mode):o}), and {user_name(me)} cannot write there"
        )
        fix = f"Run: sudo chown -R {me} {for_shell(there)}   or choose another --home."
        if not exists:
            fix = "Choose another --home."
        return failure("home", HomeUnusable(found, fix))
    if not exists:
        return fine("home", f"{path}, which peer join will make")
    if facts.st_uid != me:
        fix = f"Run peer as {owner}, or choose another --home."
        return warning("home", f"{path} belongs to {owner}, and this is {user_name(me)}", fix)
    if facts.st_mode & 0o022:
        mode = f"{stat.S_IMODE(facts.st_mode):o}"
        if not keeps_modes(path):
            found = f"{path}: other users may write there (mode {mode}), and chmod cannot change it on this file system"
            return failure("home", HomeUnusable(found, "Choose a --home on a local disk of Linux or macOS."))
        return warning(
            "home", f"{path}: other users may write there (mode {mode})", f"Run: chmod go-w {for_shell(path)}"
        )
    return fine("home", f"{path}, which belongs to {owner}")


def key(path: Path) -> DoctorFinding:
    """Check the key file, if it exists."""
    try:
        if not path.exists():
            return fine("key", f"none yet: peer join will make one at {path}")
        return fine("key", f"peer id {identities.load(path).peer_id}")
    except IdentityError as error:
        return failure("key", error)
    except OSError as error:
        found = f"cannot read the key file {path}: {error.strerror}"
        return failure("key", IdentityError(found, file_advice(error, path)))


async def running(path: Path) -> RunningDaemon | None:
    """Return the daemon that holds a home. None: there is none."""
    if not _can_look(path):
        return None
    try:
        body = await send_command(Home(path).control_socket, "status", ASK_S)
        return RunningDaemon(_holder(path) or "unknown", read_status(body))
    except PeerError:
        holder = _holder(path)
        return RunningDaemon(holder, None) if holder and _is_locked(path / "lock") else None


def beside(daemon: RunningDaemon, run_id: str) -> DoctorFinding:
    """Return the finding about a daemon of this home, and the run in which it takes part."""
    status = daemon.status
    if status is None:
        fix = f"Look at process {daemon.pid}. If it hangs, end it, then start peer join again."
        return warning("daemon", f"process {daemon.pid} holds this home and does not answer", fix)
    doing = f"process {daemon.pid} of this home takes part in run {status.run or '(not known yet)'}"
    if run_id and status.run_id != run_id:
        fix = "Give another --home for a second run, or end the first with: peer leave"
        return warning("daemon", f"{doing}, which is another one", fix)
    return fine("daemon", f"{doing}: memory and speed are not tried next to it")


def _can_look(path: Path) -> bool:
    return os.access(path, os.R_OK | os.X_OK) and path.is_dir()


def _holder(path: Path) -> str:
    try:
        return (path / "lock").read_text(errors="replace")[:20].strip()
    except OSError:
        return ""


def _is_locked(lock: Path) -> bool:
    """Return whether a process holds the lock. Used only when no daemon answers, because the check takes the lock for a
    moment."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # some network file systems do not support locks
        return False
    finally:
        os.close(descriptor)
    return False
