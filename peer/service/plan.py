"""The description of a service: what it runs, and its state in systemd."""

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
"""Line in every file of a service, by which `remove` recognizes it."""
STOP_S = 120
"""Seconds that systemd waits for the peer to drain. A running exchange gets at most 34 of them; the rest is for a
checkpoint."""
RESTART_S = 30
"""Seconds from an exit that a retry may fix to the next start."""
TICKET_FILE = "service.ticket"
OPTIONS_FILE = "service.options"
"""File with the options of the last installation, a JSON list."""
STOPPED_AT_ONCE = 130
"""Exit code of a daemon that was stopped without draining."""


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """What a service runs. The ticket is passed in a file, because other users can see a command's arguments."""

    name: str
    home: Path
    ticket: Path
    python: str
    """Absolute path of the Python interpreter."""
    config: Path | None = None
    """A configuration file other than the user's own."""
    options: tuple[str, ...] = ()
    """Further options of `peer join`."""
    agreed: bool = False
    """Whether the terms were accepted at installation with --yes."""

    @property
    def options_file(self) -> Path:
        """Path of the file that stores the options for the next installation."""
        return self.home / OPTIONS_FILE

    def command(self) -> list[str]:
        """Return the command line of the service."""
        config = [] if self.config is None else ["--config", str(self.config)]
        words = [*config, "join", f"@{self.ticket}", "--home", str(self.home), "--plain"]
        words += [*(["--yes"] if self.agreed else []), *self.options]
        return python_command("peer", *words, python=self.python)


@dataclass(frozen=True, slots=True)
class ServiceState:
    """State of a service as systemd reports it."""

    state: str
    """State in systemd's own words, such as `active (running)`."""
    running: bool
    at_login: bool
    """Whether systemd starts it at login."""
    pid: int | None = None
    exit_code: int | None = None
    """Exit code of the last run; None: unknown."""
    restarts: int | None = None


def name_of(home: Path) -> str:
    """Return the service's name: `peer` for the default home, otherwise a name derived from the home's path."""
    path = expand_user(home).absolute()
    if path == expand_user(default_home()).absolute():
        return "peer"
    return f"peer-{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"


def useless_retries() -> list[int]:
    """Return the exit codes after which a restart would fail in the same way, from the table in `peer.errors`."""
    codes = {kind.exit_code for kind in PeerError.__subclasses__() if not kind.retry}
    return sorted({*codes, STOPPED_AT_ONCE})


def meaning_of(code: int) -> str:
    """Return the meaning of an exit code, for a person; empty: unknown code."""
    for kind in PeerError.__subclasses__():
        if kind.exit_code == code:
            return (kind.__doc__ or "").split("\n")[0].strip()
    return ""
