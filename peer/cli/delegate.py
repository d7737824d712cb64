"""`peer manifest delegate`: let a node sign for the operator, whose own key stays offline."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from peer.cli.durations import Duration
from peer.cli.options import home, identity_path, signing_key
from peer.cli.telling import tell
from peer.errors import IdentityError, UsageError

if TYPE_CHECKING:
    from peer.run.papers.paper import Duty

DUTIES = ("start", "digests", "invitations")


@click.command("delegate", epilog="Example: peer manifest delegate run.toml 12D3KooW… --identity-path operator.key")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("node", metavar="NODE")
@click.option(
    "--may",
    multiple=True,
    type=click.Choice([*DUTIES, "nothing"]),
    help="What the node may sign. Repeatable.  [default: all three]",
)
@click.option("--expires", type=Duration(), help="How long it holds, e.g. 90d.  [default: for ever]")
@home
@identity_path
def command(
    file: Path, node: str, may: tuple[str, ...], expires: float | None, home: Path, identity_path: Path | None
) -> None:
    """Let the key of a NODE sign for the operator: when the run begins, digests of its state, and invitations.

    The operator's key signs this delegation and adds it to run.delegations in the manifest's folder. The node's own
    key is what `peer id show` prints there. A node never signs amendments. A later delegation to the same node replaces
    the earlier one: `--may nothing` takes everything back."""
    from peer.run.manifest import load_signed, other_operator
    from peer.run.papers.paper import LATEST, delegate
    from peer.run.papers.shelf import PaperShelf, beside, keep, load

    if "nothing" in may and len(may) > 1:
        raise UsageError("a node may sign nothing, or something", "Give `--may nothing` alone.")
    signed = load_signed(file)
    operator = signing_key(home, identity_path)
    if operator.peer_id != signed.manifest.operator:
        raise other_operator(file, signed.manifest.operator, operator)
    if node == operator.peer_id:
        raise IdentityError("the operator's key needs no delegation", "NODE is the key of another home.")
    now = int(time.time())
    until = 0 if expires is None else min(LATEST, int(now + expires))
    duties = cast("list[Duty]", [duty for duty in DUTIES if duty in (may or DUTIES)])
    shelf = PaperShelf(signed.run_id, operator.peer_id)
    load(beside(file), shelf)
    try:
        paper = delegate(operator, signed.run_id, node, duties, max(now, shelf.latest_of(node) + 1), until)
    except ValueError as error:
        raise UsageError(str(error), "NODE is what `peer id show` tells on the node, 12D3Koo….") from None
    shelf.add(paper)
    keep(beside(file), shelf)
    tell(f"{node} may sign: {', '.join(duties) or 'nothing'}")
    tell(f"wrote {beside(file)}. A bootstrap node that runs from {file} reads it within seconds")
