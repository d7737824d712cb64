"""`peer compare`: several methods at equal tokens."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from peer.cli.options import as_json, refuse_idle, refuse_unwritable
from peer.cli.telling import tell
from peer.errors import UsageError, file_advice

if TYPE_CHECKING:
    from peer.lab.compare.curve import Curve
    from peer.lab.compare.entries import Entry
    from peer.lab.compare.play import VirtualPlace
    from peer.lab.compare.result import Comparison

OF_VIRTUAL_TIME = ("link", "churn", "speeds", "step_seconds")


@click.command("compare", epilog="Example: peer compare gossip diloco none --svg compare.svg")
@click.argument("manifests", nargs=-1, required=True, metavar="MANIFEST...")
@click.option("--peers", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option("--steps", type=click.IntRange(min=1), help="Inner steps of a peer.  [default: those of the first]")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The first seed.")
@click.option("--seeds", type=click.IntRange(1, 100), default=1, show_default=True, help="Play each with so many.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a value of every manifest.")
@click.option("--target", type=float, help="The loss to reach.  [default: the least that all methods reach]")
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Draw the curves into this file.")
@click.option("--virtual", is_flag=True, help="In virtual time, with a tiny model that learns.")
@click.option("--link", default="cable", show_default=True, help="--virtual: of each peer, as in peer simulate.")
@click.option("--churn", type=float, default=0.0, show_default=True, help="--virtual: kills a peer and hour.")
@click.option("--speeds", type=float, default=1.0, show_default=True, help="--virtual: fastest peer over slowest.")
@click.option("--step-seconds", type=float, default=1.0, show_default=True, help="--virtual: of the slowest peer.")
@as_json
@click.pass_context
def command(
    context: click.Context,
    manifests: tuple[str, ...],
    peers: int,
    steps: int | None,
    seed: int,
    seeds: int,
    settings: tuple[str, ...],
    target: float | None,
    svg: Path | None,
    virtual: bool,
    link: str,
    churn: float,
    speeds: float,
    step_seconds: float,
    as_json: bool,
) -> None:
    """Play several methods with equally many tokens. Compare their loss against tokens, bytes and seconds.

    A MANIFEST is a file, or the name of a preset: then the tiny built-in run with it. Each is played as a swarm of real
    processes on this machine, one after another. With --virtual all is simulated. See
    `peer help compare-methods`."""
    from peer.lab.compare.entries import entries_of
    from peer.lab.compare.play import VirtualPlace
    from peer.lab.compare.result import table

    if not virtual:
        refuse_idle(context, OF_VIRTUAL_TIME, "--virtual")
    refuse_unwritable(svg, "--svg")
    entries = entries_of(manifests, settings, steps=steps, step_seconds=step_seconds if virtual else None)
    place = VirtualPlace(link=link, churn=churn, speeds=speeds, step_seconds=step_seconds) if virtual else None
    outcome = _play(entries, peers, range(seed, seed + seeds), place, target)
    if svg is not None:
        _draw(outcome, svg)
    tell(json.dumps(outcome.to_json()) if as_json else table(outcome))


def _play(
    entries: Sequence[Entry], peers: int, seeds: Sequence[int], place: VirtualPlace | None, target: float | None
) -> Comparison:
    """Play all entries. Tell on stderr how far it is."""
    from peer.cli.run import loop_factory
    from peer.lab.compare.play import play_real, play_virtual
    from peer.lab.compare.result import compare

    say = functools.partial(tell, err=True)
    if place is not None:
        virtual = place

        def simulated(entry: Entry, seed: int) -> Curve:
            return _told(entry, seed, play_virtual(entry, peers, seed, virtual))

        return compare(entries, peers, seeds, virtual.told, simulated, target)
    homes = Path(tempfile.mkdtemp(prefix="peer-compare-"))

    def real(entry: Entry, seed: int) -> Curve:
        say(f"{entry.name}, seed {seed}:")
        home = homes / f"{1 + entries.index(entry)}-{seed}"
        return _told(entry, seed, play_real(entry, peers, seed, home, say, loop_factory()))

    outcome = compare(entries, peers, seeds, "real processes on one machine", real, target)
    homes.rmdir()
    return outcome


def _told(entry: Entry, seed: int, curve: Curve) -> Curve:
    """Tell a swarm's end on stderr, so that a comparison that is stopped later was not for nothing."""
    if curve:
        last = curve[-1]
        tell(f"{entry.name}, seed {seed}: loss {last.loss:.4f} nats a token after {last.seconds:.0f} s", err=True)
    return curve


def _draw(outcome: Comparison, file: Path) -> None:
    """Write the picture. Raises UsageError when that place cannot be written."""
    from peer.lab.compare.plot import picture

    try:
        file.write_text(picture(outcome))
    except OSError as error:
        raise UsageError(
            f"cannot write {file}: {error.strerror}", file_advice(error, file, "choose another --svg")
        ) from error
