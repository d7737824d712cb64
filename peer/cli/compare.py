"""`peer compare`: several methods at equal tokens."""

from __future__ import annotations

import functools
import json
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
    from peer.lab.compare.result import Comparison, Play

OF_VIRTUAL_TIME = ("link", "churn", "speeds", "step_seconds")


@click.command("compare", epilog="Example: peer compare gossip diloco none --svg compare.svg")
@click.argument("manifests", nargs=-1, required=True, metavar="MANIFEST...")
@click.option("--peers", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option("--steps", type=click.IntRange(min=1), help="Inner steps of a peer.  [default: those of the first]")
@click.option("--seed", type=click.IntRange(min=0), help="The first seed.  [default: that of the first]")
@click.option("--seeds", type=click.IntRange(1, 100), default=1, show_default=True, help="Play each with so many.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a value of every manifest.")
@click.option(
    "--data",
    metavar="[K@]FOLDER",
    multiple=True,
    help="Folder of texts, of all peers or of peer K alone (repeatable), or of token shards, as of `peer bootstrap`.",
)
@click.option("--worth", is_flag=True, help="Measure how many times the tokens of a peer one alone needs.")
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
    seed: int | None,
    seeds: int,
    settings: tuple[str, ...],
    data: tuple[str, ...],
    worth: bool,
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

    A MANIFEST is a file, with the files that it names beside it, or the name of a preset: then the tiny built-in run
    with it. Two baselines have the first one's task: single, one peer alone, and ddp, one model that takes the batches
    of all peers in every step. Each is played as a swarm of real processes on this machine, one after another. With
    --virtual all is simulated. See `peer help compare-methods`."""
    from peer.lab.compare.entries import SINGLE, entries_of
    from peer.lab.compare.play import VirtualPlace
    from peer.lab.compare.result import compare, table

    if not virtual:
        refuse_idle(context, OF_VIRTUAL_TIME, "--virtual")
    elif data:
        raise UsageError("virtual time reads no data: --data is of real swarms", "Leave --data out, or --virtual.")
    refuse_unwritable(svg, "--svg")
    given = manifests if SINGLE in manifests or not worth else (*manifests, SINGLE)
    every = entries_of(given, settings, peers=peers, steps=steps, step_seconds=step_seconds if virtual else None)
    entries = every[: len(manifests)]
    single = next((entry for entry in every if entry.name == SINGLE), None) if worth else None
    first = entries[0].manifest.seed if seed is None else seed
    played = range(first, first + seeds)
    place = VirtualPlace(link=link, churn=churn, speeds=speeds, step_seconds=step_seconds) if virtual else None
    play = _in_processes(every, peers, first, data) if place is None else _in_virtual_time(place)
    where = "real processes on one machine" if place is None else place.told
    outcome = compare(entries, peers, played, where, play, target, single)
    if svg is not None:
        _draw(outcome, svg)
    tell(json.dumps(outcome.to_json()) if as_json else table(outcome))


def _in_virtual_time(place: VirtualPlace) -> Play:
    """Return how one entry is played with one seed."""
    from peer.lab.compare.play import play_virtual

    return lambda entry, seed: _told(entry, seed, play_virtual(entry, seed, place))


def _in_processes(entries: Sequence[Entry], peers: int, seed: int, data: tuple[str, ...]) -> Play:
    """Return how one entry is played with one seed, on this machine. `seed`: the first one.

    Everything that any of the entries needs is found first. Raises ManifestError, DataError, ModelError or UsageError
    when something is missing."""
    from peer.cli.run import loop_factory
    from peer.lab.compare.play import play_real
    from peer.lab.localswarm.plan import founded_by, peer_setups, shard_folder
    from peer.lab.run_sources import find_sources, told_overrides
    from peer.user_folders import kept_temporary_folder

    say = functools.partial(tell, err=True)
    kind = entries[0].manifest.data.kind  # all entries have the same data section
    setups = peer_setups(kind, peers, (), (), data, 0.0)
    shards = shard_folder(data, kind)
    sources = {entry.name: find_sources(entry.base, entry.manifest, shards) for entry in entries}
    for entry in entries:
        for line in told_overrides(entry.base, founded_by(entry.seeded(seed), entry.peers), sources[entry.name]):
            say(line)

    def play(entry: Entry, seed: int) -> Curve:
        say(f"{entry.name}, seed {seed}:")
        home = kept_temporary_folder("peer-compare-")
        found = sources[entry.name]
        curve = play_real(entry, seed, home, say, loop_factory(), sources=found, setups=setups)
        return _told(entry, seed, curve)

    return play


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
