"""`peer ticket invite`: invite a peer to a run that only admits invited peers."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from peer.cli.durations import MOST_VALID_S, Duration
from peer.cli.options import as_json, home, identity_path, signing_key
from peer.cli.printing import echo
from peer.errors import UsageError


@click.command("invite", epilog="Example: peer ticket invite 12D3KooW… --run run.toml --expires 30d > ada.invitation")
@click.argument("key", metavar="KEY")
@click.option("--run", type=click.Path(path_type=Path), default=Path("run.toml"), help="Manifest.  [default: run.toml]")
@click.option(
    "--expires",
    type=Duration(most=MOST_VALID_S),
    default="30d",
    show_default=True,
    help="How long it holds, e.g. 12h, 30d.",
)
@home
@identity_path
@as_json
def command(key: str, run: Path, expires: float, home: Path, identity_path: Path | None, as_json: bool) -> None:
    """Invite the peer with a KEY, the peer id that `peer id show` prints on its machine.

    In runs with admission kind `invited` only invited peers take part. The invitation is signed by the operator's key,
    or by a node with a delegation for invitations. Every peer can verify it offline. The invited person gives it to
    `peer join` with --invitation. Revoke it with `peer manifest amend run.toml revoke KEY`."""
    from peer.run.admission.invitation import Invitation, day_of
    from peer.run.home import Home
    from peer.run.manifest import load_signed, other_operator_error
    from peer.run.statements.files import beside, load, load_kept
    from peer.run.statements.kinds import PAPER
    from peer.run.statements.log import StatementLog

    signed = load_signed(run)
    inviter = signing_key(home, identity_path)
    log = StatementLog(signed.run_id, signed.manifest.operator)
    load(beside(run, PAPER), log)
    load_kept(Home(home).run(signed.run_id).path, log)
    if not log.may(inviter.peer_id, "invitations", time.time()):
        advice = "The operator's key invites, or a node's that may: name its file with --identity-path, or its --home."
        raise other_operator_error(run, signed.manifest.operator, inviter, advice)
    try:
        made = Invitation.make(inviter, signed.run_id, key, int(time.time() + expires))
    except ValueError as error:
        raise UsageError(str(error), "KEY is what `peer id show` tells the volunteer, 12D3Koo….") from None
    if as_json:
        report = {"invitation": made.encode(), "run_id": made.run_id.hex(), "peer_id": made.peer}
        echo(json.dumps({**report, "expires": made.expires}, indent=2))
        return
    echo(made.encode())
    told = f"{made.peer} may take part until {day_of(made.expires)}"
    if signed.manifest.admission.kind == "open":
        told += ". This run admits others too"
    echo(told, err=True)
