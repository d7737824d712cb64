"""The user's own systemd on Linux."""

from __future__ import annotations

import os
from pathlib import Path

from peer.service.plan import MARK, RESTART_S, STOP_S, ServicePlan, ServiceState, useless_retries
from peer.service.question import answer_of
from peer.user_folders import config_folder

ASKED = ("LoadState", "ActiveState", "SubState", "UnitFileState", "MainPID", "ExecMainStatus", "NRestarts", "Result")
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
    """The `ServiceManager` of Linux, by `systemctl --user`. `program`: another systemctl, for tests."""

    def __init__(self, program: str = "systemctl") -> None:
        self._program = program

    def file(self, name: str) -> Path:
        return config_folder() / "systemd" / "user" / f"{name}.service"

    def text(self, plan: ServicePlan) -> bytes:
        return UNIT.format(
            mark=MARK,
            home=str(plan.home).replace("%", "%%"),
            command=" ".join(quoted(word) for word in plan.command()),
            restart_s=RESTART_S,
            stop_s=STOP_S,
            codes=" ".join(map(str, useless_retries())),
        ).encode()

    def ensure_available(self) -> None:
        self._ask("show-environment")

    def start(self, name: str) -> None:
        self._ask("daemon-reload")
        self._ask("enable", "--quiet", f"{name}.service")
        self._ask("restart", f"{name}.service")

    def stop(self, name: str) -> None:
        if self._facts(name).get("LoadState") == "loaded":
            self._ask("disable", "--quiet", "--now", f"{name}.service")

    def state(self, name: str) -> ServiceState:
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
        lingers = Path("/var/lib/systemd/linger") / (os.environ.get("USER") or str(os.getuid()))
        more = f"Lines from before the log begins: journalctl --user -u {name}.service"
        return [more] if lingers.exists() else [NO_LINGER, more]

    def _facts(self, name: str) -> dict[str, str]:
        answer = self._ask("show", f"{name}.service", f"--property={','.join(ASKED)}")
        return dict(line.split("=", 1) for line in answer.splitlines() if "=" in line)

    def _ask(self, *arguments: str) -> str:
        return answer_of(self._program, "--user", *arguments)


def quoted(word: str) -> str:
    """Write a word as systemd reads it in a command: its quotes, specifiers and variables are only characters."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
