"""Installs, inspects and removes the service of one home."""

from __future__ import annotations

import contextlib
import json
import sys
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

from peer.errors import HomeBusy, HomeUnusable, UsageError, file_advice, for_shell
from peer.run.home import Home, RunFolder, holder_of
from peer.run.ticket import Ticket
from peer.service.plan import (
    MARK,
    TICKET_FILE,
    ServicePlan,
    ServiceState,
    meaning_of,
    name_of,
)
from peer.service.systemd import Systemd
from peer.user_folders import expand_user, make_private
from peer.whole_files import replace_file

AGREED = "contract.json"
"""Name of the file in a run's folder with the terms that the volunteer agreed to."""


def plan_for(home: Path, config: Path | None) -> ServicePlan:
    """Return the plan of a home's service. `config`: a configuration file other than the user's own."""
    path = expand_user(home).absolute()
    own = None if config is None else config.absolute()
    return ServicePlan(name_of(path), path, path / TICKET_FILE, sys.executable, own)


def ticket_of(plan: ServicePlan, given: str | None) -> Ticket:
    """Return the given ticket, or the one of the last installation. Raises TicketError or UsageError."""
    if given is not None:
        return Ticket.named(given)
    if not plan.ticket.exists():
        raise UsageError("no ticket was given", "Give one: peer service install TICKET")
    return Ticket.named(f"@{plan.ticket}")


def with_options(plan: ServicePlan, given: tuple[str, ...]) -> ServicePlan:
    """Return the plan with the given options, or with those of the last installation if none are given. Raises
    UsageError."""
    if given or not plan.options_file.exists():
        return replace(plan, options=given)
    try:
        return replace(plan, options=tuple(map(str, json.loads(plan.options_file.read_bytes()))))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"{plan.options_file} cannot be read: {error}", "Delete it, and give the options again."
        ) from error


def ensure_agreed(plan: ServicePlan, ticket: Ticket) -> None:
    """Raise UsageError unless the volunteer has agreed to the run's terms, because a service cannot prompt for them."""
    if not (run_folder(plan, ticket) / AGREED).exists():
        found = "the terms of this run were not agreed to yet, and a service cannot ask"
        raise UsageError(found, "Start once with `peer join TICKET` and read the terms, or add --yes.")


def ensure_free(plan: ServicePlan, manager: Systemd) -> None:
    """Raise HomeBusy if the home is used by a daemon other than the service itself."""
    holder = holder_of(plan.home)
    if holder is not None and not manager.state(plan.name).running:
        raise HomeBusy(
            f"{plan.home} is in use by process {holder}", f"End it first: peer leave --home {for_shell(plan.home)}"
        )


def write_files(plan: ServicePlan, ticket: Ticket, manager: Systemd) -> list[Path]:
    """Write the service's unit file and, readable only by the owner, the ticket. Return the changed files.

    Raises HomeUnusable, and UsageError if a unit of this name exists that `peer` did not write."""
    Home(plan.home)
    unit = manager.file(plan.name)
    if unit.exists() and not _is_ours(unit):
        raise UsageError(f"{unit} was not made by `peer service install`", "Move it away first.")
    wanted = {plan.ticket: f"{ticket.encode()}\n".encode(), unit: manager.text(plan)}
    if plan.options:
        wanted[plan.options_file] = json.dumps(plan.options).encode()
    changed = [path for path, content in wanted.items() if not path.exists() or path.read_bytes() != content]
    for path in changed:
        _write(path, wanted[path])
    return changed


def remove(plan: ServicePlan, manager: Systemd) -> list[Path]:
    """Drain and stop the service and delete its files. Return the deleted files.

    Raises ServiceUnavailable, and UsageError if the unit was not written by `peer`."""
    unit = manager.file(plan.name)
    if unit.exists():
        if not _is_ours(unit):
            raise UsageError(f"{unit} was not made by `peer service install`", "It is left as it is.")
        manager.stop(plan.name)
    gone = [path for path in (unit, plan.ticket, plan.options_file) if path.is_file()]
    for path in gone:
        path.unlink()
    return gone


def report(plan: ServicePlan, manager: Systemd) -> dict[str, Any]:
    """Return the output of `peer service status`, JSON-able."""
    unit, log = manager.file(plan.name), log_of(plan)
    state = manager.state(plan.name) if unit.exists() else ServiceState("not installed", running=False, at_login=False)
    return {
        "name": plan.name,
        "installed": unit.exists(),
        "file": str(unit),
        "state": state.state,
        "running": state.running,
        "at_login": state.at_login,
        "pid": state.pid,
        "restarts": state.restarts,
        "exit_code": state.exit_code,
        "meaning": "" if state.exit_code is None else meaning_of(state.exit_code),
        "log": None if log is None else str(log),
    }


def run_folder(plan: ServicePlan, ticket: Ticket) -> Path:
    """Return the folder of the ticket's run in the plan's home."""
    return Home(plan.home, make=False).run(ticket.run_id).path


def log_of(plan: ServicePlan) -> Path | None:
    """Return the log of the service's run, which may not exist yet; None: no service is installed.

    Raises TicketError."""
    return RunFolder(run_folder(plan, ticket_of(plan, None))).log if plan.ticket.exists() else None


def last_lines(log: Path, count: int) -> list[str]:
    """Return the last `count` lines of a log; none if it does not exist. Raises HomeUnusable."""
    try:
        with log.open(errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, count)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HomeUnusable(f"cannot read {log}: {error.strerror}", file_advice(error, log)) from error


def _is_ours(unit: Path) -> bool:
    with contextlib.suppress(OSError):
        return MARK in unit.read_text(errors="replace")
    return False


def _write(path: Path, content: bytes) -> None:
    try:
        make_private(path.parent)
        replace_file(path, content)
    except OSError as error:
        raise HomeUnusable(f"cannot write {path}: {error.strerror}", file_advice(error, path)) from error
