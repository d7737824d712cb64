"""`peer manifest delegate`: allow a node to sign for the operator, whose own key stays offline."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from peer.cli.durations import MOST_VALID_S, Duration
from peer.cli.options import home, identity_path, signing_key
from peer.cli.printing import echo
from peer.clock.local_time import local_time
from peer.errors import IdentityError, UsageError

if TYPE_CHECKING:
    from peer.run.manifest import SignedManifest
    from peer.run.statements.kinds import Duty
    from peer.run.statements.log import StatementLog

DUTIES = ("start", "digests", "invitations")


NOT_BEGUN = 0.0
EARLY_S = 86_400.0
"""Seconds that round 0 may lie in the future: it begins when enough peers are ready."""


class StartOption(click.ParamType):  # type: ignore[type-arg]
    """The time when round 0 began, seconds since the epoch; `none` before the run has begun."""

    name = "seconds"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if str(value) == "none":
            return NOT_BEGUN
        try:
            seconds = float(str(value))
        except ValueError:
            seconds = math.nan
        if not 0 < seconds <= time.time() + EARLY_S:
            self.fail(f"{str(value)[:80]!r} is no past time. Give seconds since the epoch, or none", param, ctx)
        return seconds


@click.command("delegate", epilog="Example: peer manifest delegate run.toml 12D3KooW… --identity-path operator.key")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("node", metavar="NODE")
@click.option(
    "--may",
    multiple=True,
    type=click.Choice([*DUTIES, "nothing"]),
    help="What the node may sign. Repeatable.  [default: all three]",
)
@click.option("--expires", type=Duration(most=MOST_VALID_S), help="How long it holds, e.g. 90d.  [default: for ever]")
@click.option("--start", type=StartOption(), help="Sign when round 0 began, seconds since the epoch, for good.")
@home
@identity_path
def command(
    file: Path,
    node: str,
    may: tuple[str, ...],
    expires: float | None,
    start: float | None,
    home: Path,
    identity_path: Path | None,
) -> None:
    """Allow the key of a NODE to sign for the operator: the run's start, digests of its state, and invitations.

    The operator's key signs this delegation and adds it to run.delegations in the manifest's folder. The id of the
    node's key is printed by `peer id show` on the node. A node never signs amendments. A later delegation to the same
    node replaces the earlier one, also for what the node has signed already; `--may nothing` withdraws everything. The
    withdrawn signatures may include the run's start, so the operator's key then has to sign the start itself: --start.
    A start signed by the operator is final."""
    from peer.run.manifest import load_signed, other_operator_error
    from peer.run.statements.files import beside, load, write_statements
    from peer.run.statements.kinds import PAPER, DelegationDocument
    from peer.run.statements.log import StatementLog
    from peer.run.statements.statement import delegate

    if "nothing" in may and len(may) > 1:
        raise UsageError("a node may sign nothing, or something", "Give `--may nothing` alone.")
    signed = load_signed(file)
    operator = signing_key(home, identity_path)
    if operator.peer_id != signed.manifest.operator:
        raise other_operator_error(file, signed.manifest.operator, operator)
    if node == operator.peer_id:
        raise IdentityError("the operator's key needs no delegation", "NODE is the key of another home.")
    now = int(time.time())
    duties = cast("list[Duty]", [duty for duty in DUTIES if duty in (may or DUTIES)])
    log = StatementLog(signed.run_id, operator.peer_id)
    load(beside(file, PAPER), log)
    former = log.newest_delegation(node)
    issued = now if former is None else max(now, former.issued + 1)
    try:
        delegation = delegate(
            operator, signed.run_id, node, duties, issued, 0 if expires is None else int(now + expires)
        )
    except ValueError as error:
        raise UsageError(str(error), "NODE is what `peer id show` tells on the node, 12D3Koo….") from None
    if former is None and len(log.named) >= (most := DelegationDocument.most):
        raise UsageError(
            f"this run has named {most} nodes, and one more would push out the first of them",
            "Let one of the named nodes sign: " + ", ".join(log.named),
        )
    _settle_start(signed, log, node, duties, start, home)
    if start:
        log.add(log.sign_start(operator, start, now))
        echo(f"round 0 began at {local_time(start)}: signed by the operator, for good")
    log.add(delegation)
    write_statements(beside(file, PAPER), log.papers)
    echo(f"{node} may sign: {', '.join(duties) or 'nothing'}")
    echo(f"wrote {beside(file, PAPER)}. A bootstrap node that runs from {file} reads it within seconds")


def _settle_start(
    signed: SignedManifest,
    log: StatementLog,
    node: str,
    duties: list[Duty],
    start: float | None,
    home: Path,
) -> None:
    """Ensure that the run keeps a signed start when a node loses the right to sign it. Raises UsageError for an
    impossible start, and when --start is needed."""
    from peer.run.home import Home
    from peer.run.resolve import resolve
    from peer.run.statements.files import known_start, load_kept
    from peer.run.statements.log import StatementLog, wants_start

    manifest = signed.manifest
    if not wants_start(manifest):
        if start is not None:
            raise UsageError("the start of this run needs no signature of its own", "Leave --start out.")
        return
    if log.start_is_final:
        if start not in (None, log.start_time):
            raise UsageError(
                f"the operator has signed that round 0 began at {log.start_time!r}, which is final",
                "Leave --start out.",
            )
        return
    former = log.newest_delegation(node)
    withdrawn = former is not None and "start" in former.may and "start" not in duties
    if start:
        ends = resolve(manifest.sync).round_clock(start).due_at(manifest.rounds - 1)
        if time.time() >= ends:
            raise UsageError(
                f"a run that began at {local_time(start)} would have ended at {local_time(ends)}",
                "Give the start that `peer status --json` of a peer shows (papers, start).",
            )
    if start is not None or not withdrawn:
        return
    folder, known = Home(home, make=False).run(signed.run_id).path, StatementLog(signed.run_id, manifest.operator)
    load_kept(folder, known)
    began = known_start(known, folder)
    if began:
        hint = f"By the papers in {home} round 0 began at {local_time(began)}, which is --start {began!r}."
    else:
        hint = f"The home {home} holds no start. `peer status --json` of a peer shows it (papers, start)."
    raise UsageError(
        f"{node} may have signed when the run began, and peers will not believe that any more",
        f"Sign the start with your key: add --start SECONDS, or --start none if the run has not begun. {hint} Check it "
        "against the round that a peer is in which has run for long: whoever holds the node's key may have signed "
        "another one.",
    )
