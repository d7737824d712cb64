"""Controls services through the user's systemd on Linux."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from peer.errors import ServiceUnavailable
from peer.service.plan import MARK, RESTART_S, STOP_S, ServicePlan, ServiceState, useless_retries
from peer.user_folders import config_folder

ASKED = ("LoadState", "ActiveState", "SubState", "UnitFileState", "MainPID", "ExecMainStatus", "NRestarts", "Result")
"""Unit properties that `state` reads."""
ANSWER_S = STOP_S + 30.0
"""Timeout of a systemctl command in seconds. Stopping a service waits until its peer has drained."""
ELSEWHERE = (
    "A service needs systemd. Keep `peer join TICKET` running in tmux or screen, or write a service for this system's "
    "own manager that calls it (on macOS a LaunchAgent): peer help leave-running"
)
NO_LINGER = "The service ends when you log out. To keep it running: loginctl enable-linger"
UNIT = """\
# {mark}
[Unit]
Description=peer: trains in a run, home {home}

[Service]
Type=exec
ExecStart={command}
# After these exit codes another start would end alike: peer help exit-codes
Restart=on-failure
RestartSec={restart_s}
RestartPreventExitStatus={codes}
KillSignal=SIGTERM
KillMode=mixed
TimeoutStopSec={stop_s}
UMask=0077

[Install]
WantedBy=default.target
"""


class Systemd:
    """Client of the calling user's service manager, by `systemctl --user`. `program`: another systemctl, for tests."""

    def __init__(self, program: str = "systemctl") -> None:
        self._program = program

    def file(self, name: str) -> Path:
        """Return the path of a service's unit file."""
        return config_folder() / "systemd" / "user" / f"{name}.service"

    def text(self, plan: ServicePlan) -> bytes:
        """Return the content of a service's unit file."""
        return UNIT.format(
            mark=MARK,
            home=str(plan.home).replace("%", "%%"),
            command=" ".join(quoted(word) for word in plan.command()),
            restart_s=RESTART_S,
            stop_s=STOP_S,
            codes=" ".join(map(str, useless_retries())),
        ).encode()

    def ensure_available(self) -> None:
        """Raise ServiceUnavailable when systemd does not respond."""
        self._systemctl("show-environment")

    def start(self, name: str) -> None:
        """Reload the unit file, enable the service at login, and start or restart it."""
        self._systemctl("daemon-reload")
        self._systemctl("enable", "--quiet", f"{name}.service")
        self._systemctl("restart", f"{name}.service")

    def stop(self, name: str) -> None:
        """Drain and stop the service, and disable it. Does nothing if there is no such service."""
        if self._facts(name).get("LoadState") == "loaded":
            self._systemctl("disable", "--quiet", "--now", f"{name}.service")

    def state(self, name: str) -> ServiceState:
        """Return the service's state. Raises ServiceUnavailable."""
        facts = self._facts(name)
        ran = facts.get("LoadState") == "loaded" and facts.get("ActiveState") != "active"
        return ServiceState(
            state=f"{facts.get('ActiveState', 'unknown')} ({facts.get('SubState', '')})",
            running=facts.get("ActiveState") in ("active", "activating", "deactivating"),
            at_login=facts.get("UnitFileState") == "enabled",
            pid=_number(facts.get("MainPID")) or None,
            exit_code=_number(facts.get("ExecMainStatus")) if ran else None,
            restarts=_number(facts.get("NRestarts")),
        )

    def hints(self, name: str) -> list[str]:
        """Return advice that goes with the state, one sentence each."""
        lingers = Path("/var/lib/systemd/linger") / (os.environ.get("USER") or str(os.getuid()))
        more = f"Lines from before the log begins: journalctl --user -u {name}.service"
        return [more] if lingers.exists() else [NO_LINGER, more]

    def _facts(self, name: str) -> dict[str, str]:
        answer = self._systemctl("show", f"{name}.service", f"--property={','.join(ASKED)}")
        return dict(line.split("=", 1) for line in answer.splitlines() if "=" in line)

    def _systemctl(self, *arguments: str) -> str:
        """Return what systemctl prints. Raises ServiceUnavailable when it is missing, fails, or takes longer than
        `ANSWER_S` seconds."""
        name, words = Path(self._program).name, ["--user", *arguments]
        try:
            result = subprocess.run(  # noqa: S603 - our own words
                [self._program, *words],
                capture_output=True,
                text=True,
                timeout=ANSWER_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except FileNotFoundError as error:
            raise ServiceUnavailable(f"there is no {name} on this machine", ELSEWHERE) from error
        except subprocess.TimeoutExpired as error:
            raise ServiceUnavailable(f"{name} {' '.join(words)} did not end in {ANSWER_S:.0f} s") from error
        if result.returncode != 0:
            said = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[0]
            raise ServiceUnavailable(f"{name} {' '.join(words)}: {said}")
        return result.stdout


def quoted(word: str) -> str:
    """Quote a word for a command line in a unit file, so that quotes, specifiers and variables in it are literal."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
