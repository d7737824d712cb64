"""The user's own launchd on macOS. It is untested there: only its file is tested, on Linux."""

from __future__ import annotations

import os
import plistlib
import re
from pathlib import Path

from peer.errors import ServiceUnavailable
from peer.service.plan import MARK, RESTART_S, STOP_S, ServicePlan, ServiceState
from peer.service.question import answer_of
from peer.user_folders import user_home


def label_of(name: str) -> str:
    """Return launchd's name of a service."""
    return f"peer-swarm.{name}"


class Launchd:
    """The `ServiceManager` of macOS, by `launchctl`. `program`: another launchctl, for tests.

    launchd knows no exit codes: after any failure it starts the peer again, `RESTART_S` later."""

    def __init__(self, program: str = "launchctl") -> None:
        self._program = program
        self._domain = f"gui/{os.getuid()}"

    def file(self, name: str) -> Path:
        return user_home() / "Library" / "LaunchAgents" / f"{label_of(name)}.plist"

    def text(self, plan: ServicePlan) -> bytes:
        return plistlib.dumps(
            {
                "Label": label_of(plan.name),
                "Comment": MARK,
                "ProgramArguments": plan.command(),
                "RunAtLoad": True,
                "KeepAlive": {"SuccessfulExit": False},
                "ThrottleInterval": RESTART_S,
                "ExitTimeOut": STOP_S,
                "ProcessType": "Background",
                "Umask": 0o077,
            }
        )

    def ensure_available(self) -> None:
        self._ask("print", self._domain)

    def start(self, name: str) -> None:
        self.stop(name)
        self._ask("bootstrap", self._domain, str(self.file(name)))

    def stop(self, name: str) -> None:
        if self._facts(name) is not None:
            self._ask("bootout", f"{self._domain}/{label_of(name)}")

    def state(self, name: str) -> ServiceState:
        facts = self._facts(name)
        if facts is None:
            return ServiceState("not loaded", running=False, at_login=False)
        code = facts.get("last exit code", "")
        return ServiceState(
            state=facts.get("state", "unknown"),
            running=facts.get("state") == "running",
            at_login=True,
            pid=int(facts["pid"]) if facts.get("pid", "").isdecimal() else None,
            exit_code=int(code) if code.isdecimal() else None,
        )

    def hints(self, name: str) -> list[str]:
        return ["The service ends when you log out."]

    def _facts(self, name: str) -> dict[str, str] | None:
        """Return what launchd prints of a service; None: it does not know it."""
        try:
            answer = self._ask("print", f"{self._domain}/{label_of(name)}")
        except ServiceUnavailable:
            return None
        return dict(re.findall(r"^\s*([a-z ]+) = (.+)$", answer, re.MULTILINE))

    def _ask(self, *arguments: str) -> str:
        return answer_of(self._program, *arguments)
