"""`peer service`: run a peer as a service of the user's systemd."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from peer.cli.options import as_json, home
from peer.cli.printing import echo
from peer.errors import NotRunning

if TYPE_CHECKING:
    from peer.service.plan import ServicePlan


@click.group("service")
def command() -> None:
    """Keep a peer running after a crash, a log-out and a restart of this machine.

    The service manager is the user's own systemd, so no root rights are needed. The options of the service come from
    `peer service install` and from the configuration file."""


@command.command(
    "install",
    context_settings={"ignore_unknown_options": True},
    epilog="Example: peer service install TICKET -- --max-upload 1MB --when idle",
)
@click.argument("ticket", required=False, metavar="[TICKET]")
@click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTIONS OF JOIN]")
@home
@click.option("--yes", is_flag=True, help="Agree to what the run takes. Otherwise you have joined it once before.")
@click.option(
    "--restart", is_flag=True, help="Start it again although nothing changed: after an update, or new options."
)
@click.option("--print", "only_print", is_flag=True, help="Print the service's file, and do nothing.")
@click.pass_context
def install(
    context: click.Context,
    ticket: str | None,
    more: tuple[str, ...],
    home: Path,
    yes: bool,
    restart: bool,
    only_print: bool,
) -> None:
    """Write the service of a TICKET, start it, and enable it at log-in.

    Without a TICKET, the ticket of the last installation is used, and without options of `peer join`, its options."""
    from peer.cli.service_options import check_join_options
    from peer.service import install as service
    from peer.service.systemd import Systemd

    if (ticket or "").startswith("-"):
        ticket, more = None, (ticket or "", *more)
    manager, plan = Systemd(), service.with_options(_plan(context, home), check_join_options(more))
    plan = dataclasses.replace(plan, agreed=yes)
    if only_print:
        echo(manager.text(plan).decode(), nl=False)
        return
    manager.ensure_available()
    own = service.ticket_of(plan, ticket)
    if not yes:
        service.ensure_agreed(plan, own)
    service.ensure_free(plan, manager)
    for path in (plan.ticket, manager.file(plan.name), *([plan.options_file] if plan.options else [])):
        echo(f"writes   {path}")
    echo(f"starts   {plan.name}, now and when you log in: {' '.join(plan.command())}")
    changed = service.write_files(plan, own, manager)
    if changed or restart or not manager.state(plan.name).running:
        manager.start(plan.name)
    else:
        echo("nothing changed, and it runs already; --restart makes it read the configuration again")
    for line in [*_variables_not_passed(), f"Its log: {service.log_of(plan)}", *manager.hints(plan.name)]:
        echo(line)


@command.command("status", epilog="Example: peer service status --json")
@home
@as_json
@click.pass_context
def status(context: click.Context, home: Path, as_json: bool) -> None:
    """Show whether the service runs, how it last ended, and where its log is."""
    from peer.service import install as service
    from peer.service.systemd import Systemd

    report = service.report(_plan(context, home), Systemd())
    if as_json:
        echo(json.dumps(report, indent=2))
        return
    if not report["installed"]:
        echo(f"{report['name']} is not installed: peer service install TICKET")
        return
    echo(f"service   {report['name']}, {report['state']}" + (f", process {report['pid']}" if report["pid"] else ""))
    echo(f"starts    {'when you log in' if report['at_login'] else 'only by hand'}")
    if report["restarts"]:
        echo(f"restarts  {report['restarts']}")
    if report["exit_code"]:
        echo(f"ended     with exit code {report['exit_code']}: {report['meaning'] or 'not one of ours'}")
    echo(f"file      {report['file']}")
    echo(f"log       {report['log'] or '-'}")


@command.command("logs", epilog="Example: peer service logs --follow")
@home
@click.option("--lines", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Lines to print.")
@click.option("--follow", is_flag=True, help="Go on printing until Ctrl+C.")
@click.pass_context
def logs(context: click.Context, home: Path, lines: int, follow: bool) -> None:
    """Print the end of the service's log."""
    from peer.service import install as service

    log = service.log_of(_plan(context, home))
    if log is None or not log.exists():
        raise NotRunning("the service has no log yet", "See: peer service status")
    if follow:
        os.execvp("tail", ["tail", "-n", str(lines), "-F", str(log)])  # noqa: S606, S607 - the system's own
    for line in service.last_lines(log, lines):
        echo(line)


@command.command("remove", epilog="Example: peer service remove")
@home
@click.pass_context
def remove(context: click.Context, home: Path) -> None:
    """Drain and stop the service, and delete its file and its ticket. The home is kept."""
    from peer.service import install as service
    from peer.service.systemd import Systemd

    plan = _plan(context, home)
    gone = service.remove(plan, Systemd())
    for path in gone:
        echo(f"deleted  {path}")
    if not gone:
        echo(f"{plan.name} is not installed")


def _plan(context: click.Context, home: Path) -> ServicePlan:
    from peer.config.file import default_path
    from peer.config.loading import path_of
    from peer.service.install import plan_for

    config = path_of(context)
    return plan_for(home, config if config != default_path() and config.is_file() else None)


def _variables_not_passed() -> list[str]:
    """Return warnings about environment variables of this shell that the service will not have."""
    from peer.cli.join import command as join
    from peer.config.options import options_of, variable_of

    here = [flag for flag in options_of(join) if flag != "home" and os.environ.get(variable_of(flag))]
    return [
        f"{variable_of(flag)} of this shell does not reach the service. Write it into the file: "
        f"peer config set join.{flag} …"
        for flag in here
    ]
