"""`peer uninstall`: delete the files that this program wrote for the user."""

from __future__ import annotations

from pathlib import Path

import click

from peer.cli.completion import written_scripts
from peer.cli.options import home
from peer.cli.printing import confirm, echo
from peer.errors import HomeBusy, for_shell


@click.command("uninstall", epilog="Example: peer uninstall --home ~/second-peer")
@home
@click.option("--yes", is_flag=True, help="Delete without being asked.")
def command(home: Path, yes: bool) -> None:
    """Show all files that peer wrote for you, with sizes, and delete them: home, configuration, service, completion.

    Only known files are deleted, links are not followed, and the command refuses while a daemon runs. It also prints
    the command that removes the program itself."""
    from peer.config.file import default_path
    from peer.installation import remove_command
    from peer.observe.formatting import amount
    from peer.run.home import holder_of
    from peer.service import install as service
    from peer.service.systemd import Systemd
    from peer.service.uninstall import Deletion, contents_of, delete, size_of

    plan, manager = service.plan_for(home, None), Systemd()
    if (holder := holder_of(plan.home)) is not None:
        advice = f"If it is a service: peer service remove   Else: peer leave --home {for_shell(plan.home)}"
        raise HomeBusy(f"{plan.home} is in use by process {holder}", advice)
    things, foreign = contents_of(plan.home)
    beside = {default_path(): "configuration", manager.file(plan.name): "service"}
    beside |= dict.fromkeys(written_scripts(), "completion")
    known = {one.path for one in things}
    things += [Deletion(path, what, size_of(path)) for path, what in beside.items() if path.is_file()]
    things = [one for at, one in enumerate(things) if at < len(known) or one.path not in known]
    if not things:
        echo(f"nothing of peer is left in {plan.home} or beside it")
    for one in things:
        echo(f"{amount(one.nbytes, 'bytes'):>10}  {one.path}{f'   ({one.what})' if one.what else ''}")
    for path in foreign:
        echo(f"     stays  {path}   (not ours)")
    if things:
        total = amount(sum(one.nbytes for one in things), "bytes")
        confirm(f"Delete these {len(things)}, {total} in all?", yes)
        service.remove(plan, manager)
        delete(things, plan.home)
        echo(f"deleted {total}")
    echo(f"The program itself goes with: {remove_command()}")
