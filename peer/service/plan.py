"""What a service runs, and what systemd says of it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from peer.errors import PeerError
from peer.python_child import python_command
from peer.run.home import default_home
from peer.user_folders import expand_user

MARK = "Written by `peer service install`. `peer service remove` deletes it."
"""Line in every file of a service, by which `remove` knows it."""
STOP_S = 120
"""Seconds that a manager waits for the drain. An exchange under way gets 34 at most. The rest is for a checkpoint."""
RESTART_S = 30
"""Seconds between an end that a retry may mend and the next start."""
TICKET_FILE = "service.ticket"
OPTIONS_FILE = "service.options"
"""Holds the options of the last installation, as a JSON list."""
STOPPED_AT_ONCE = 130


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """A peer that the service manager starts. The ticket lies in a file: other users see a command's arguments."""

    name: str
    home: Path
    ticket: Path
    python: str
    """Absolute path of the interpreter."""
    config: Path | None = None
    """A configuration file other than the user's own."""
    options: tuple[str, ...] = ()
    """Further options of `peer join`."""
    agreed: bool = False
    """Whether the terms were agreed to at the installation itself, by --yes."""

    @property
    def options_file(self) -> Path:
        """Path of the file that keeps the options for the next installation."""
        return self.home / OPTIONS_FILE

    def command(self) -> list[str]:
        """Return the program and its arguments."""
        config = [] if self.config is None else ["--config", str(self.config)]
        words = [*config, "join", f"@{self.ticket}", "--home", str(self.home), "--plain"]
        words += [*(["--yes"] if self.agreed else []), *self.options]
        return python_command("peer", *words, python=self.python)


@dataclass(frozen=True, slots=True)
class ServiceState:
    """What the service manager says of a service."""

    state: str
    """A few words of the manager's own, such as `active (running)`."""
    running: bool
    at_login: bool
    """Whether the manager starts it by itself."""
    pid: int | None = None
    exit_code: int | None = None
    """Of the last end; None: none is known."""
    restarts: int | None = None


def name_of(home: Path) -> str:
    """Return the service's name: `peer` for the default home, else one that follows from the home's path."""
    path = expand_user(home).absolute()
    if path == expand_user(default_home()).absolute():
        return "peer"
    return f"peer-{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"


def useless_retries() -> list[int]:
    """Return the exit codes after which another start would end alike, by the table of `peer.errors`."""
    codes = {kind.exit_code for kind in PeerError.__subclasses__() if not kind.retry}
    return sorted({*codes, STOPPED_AT_ONCE})


def meaning_of(code: int) -> str:
    """Return what an exit code means, for a person. Empty: it is none of ours."""
    for kind in PeerError.__subclasses__():
        if kind.exit_code == code:
            return (kind.__doc__ or "").split("\n")[0].strip()
    return ""
