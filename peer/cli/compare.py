"""`peer compare`: compare methods at an equal number of tokens."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from peer.cli.options import as_json, refuse_unused, refuse_unwritable, writing
from peer.cli.printing import echo
from peer.cli.web import log_to
from peer.errors import UsageError
from peer.installation import using_extra

if TYPE_CHECKING:
    from peer.lab.compare.curve import SwarmCourse
    from peer.lab.compare.entries import Entry
    from peer.lab.compare.play import VirtualPlace
    from peer.lab.compare.result import Comparison, Play
    from peer.trackers.feed import Tracker

OF_VIRTUAL_TIME = ("link", "churn", "availability", "speeds", "step_seconds")
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("compare", epilog="Example: peer compare gossip diloco none --plot compare.png")
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
@click.option("--plot", type=FILE, help="Draw the curves, and the worth, into this file (.png or .svg).")
@click.option("--rows", type=FILE, help="Write the rounds of every peer into this file (.csv or .parquet).")
@log_to
@click.option("--virtual", is_flag=True, help="In virtual time, with a tiny model that learns.")
@click.option("--link", default="cable", show_default=True, help="--virtual: as in peer simulate.")
@click.option("--churn", type=float, default=0.0, show_default=True, help="--virtual: kills a peer and hour.")
@click.option("--availability", metavar="TABLE|FILE", help="--virtual: when each peer is on, as in peer simulate.")
@click.option(
    "--speeds",
    metavar="RATIO|lognormal:SIGMA|FILE",
    default="1",
    show_default=True,
    help="--virtual: fastest peer over slowest, or a distribution, as in peer simulate.",
)
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
    plot: Path | None,
    rows: Path | None,
    log: tuple[str, ...],
    virtual: bool,
    link: str,
    churn: float,
    availability: str | None,
    speeds: str,
    step_seconds: float,
    as_json: bool,
) -> None:
    """Run several methods with the same number of tokens. Compare their loss against tokens, bytes and seconds.

    A MANIFEST is a file, with the files that it names beside it, or the name of a preset, which is then used in the
    tiny built-in run. Two baselines train on the first one's task: single is one peer alone, and ddp is one model that
    takes the batches of all peers in every step. Each method runs as a swarm of real processes on this machine, one
    after another. With --virtual everything is simulated. See `peer help compare-methods`."""
    from peer.lab.compare.entries import SINGLE, entries_of
    from peer.lab.compare.play import VirtualPlace
    from peer.lab.compare.result import compare, table

    if not virtual:
        refuse_unused(context, OF_VIRTUAL_TIME, "--virtual")
    elif data:
        raise UsageError("virtual time reads no data: --data is of real swarms", "Leave --data out, or --virtual.")
    elif log:
        raise UsageError("virtual time has no daemons: --log is of real swarms", "Leave --log out, or --virtual.")
    writers = _writers(plot, rows)
    given = manifests if SINGLE in manifests or not worth else (*manifests, SINGLE)
    every = entries_of(given, settings, peers=peers, steps=steps, step_seconds=step_seconds if virtual else None)
    entries = every[: len(manifests)]
    single = next((entry for entry in every if entry.name == SINGLE), None) if worth else None
    first = entries[0].manifest.seed if seed is None else seed
    played = range(first, first + seeds)
    place = None
    if virtual:
        place = VirtualPlace(
            link=link, churn=churn, availability=availability or "", speeds=speeds, step_seconds=step_seconds
        )
    play = _in_processes(every, peers, first, data, log) if place is None else _in_virtual_time(place)
    where = "real processes on one machine" if place is None else place.description
    outcome = compare(entries, peers, played, where, play, target, single)
    echo(json.dumps(outcome.to_json()) if as_json else table(outcome))  # print first: writing a file may fail
    for option, file, write in writers:
        with writing(file, option):
            write(outcome, file)


def _writers(plot: Path | None, rows: Path | None) -> list[tuple[str, Path, Callable[[Comparison, Path], None]]]:
    """Return the files to write at the end, as (option, path, function). The libraries that they need are loaded now.

    Raises UsageError for a path that cannot be written, an unknown file ending, or a missing library."""
    writers: list[tuple[str, Path, Callable[[Comparison, Path], None]]] = []
    refuse_unwritable(plot, "--plot", (".png", ".svg"))
    refuse_unwritable(rows, "--rows", (".csv", ".parquet"))
    if plot is not None:
        # Importing matplotlib reads a `matplotlibrc` from the working folder, which may belong to somebody else.
        with using_extra("plots"), contextlib.chdir(os.sep):
            from peer.lab.compare.plot import write_plot
        writers.append(("--plot", plot, write_plot))
    if rows is not None:
        from peer.lab.compare.rows import write_rows

        if rows.suffix.lower() == ".parquet":
            with using_extra("data"):
                importlib.import_module("pyarrow.parquet")
        writers.append(("--rows", rows, write_rows))
    return writers


def _in_virtual_time(place: VirtualPlace) -> Play:
    """Return the function that plays one entry with one seed in virtual time."""
    from peer.lab.compare.play import play_virtual

    return lambda entry, seed: _print_end(entry, seed, play_virtual(entry, seed, place))


def _in_processes(entries: Sequence[Entry], peers: int, seed: int, data: tuple[str, ...], log: tuple[str, ...]) -> Play:
    """Return the function that plays one entry with one seed as real processes on this machine. `seed`: the first seed.

    The files of all entries are looked up first. Raises ManifestError, DataError, ModelError or UsageError when one is
    missing."""
    from peer.cli.run import loop_factory
    from peer.lab.compare.play import play_real
    from peer.lab.localswarm.plan import peer_setups, shard_folder, with_founders
    from peer.lab.run_sources import find_sources, override_lines
    from peer.user_folders import kept_temporary_folder

    trackers = _trackers(log)
    say = functools.partial(echo, err=True)
    kind = entries[0].manifest.data.kind  # equal in all entries
    setups = peer_setups(kind, peers, (), (), data, 0.0)
    shards = shard_folder(data, kind)
    sources = {entry.name: find_sources(entry.base, entry.manifest, shards) for entry in entries}
    for entry in entries:
        for line in override_lines(entry.base, with_founders(entry.seeded(seed), entry.peers), sources[entry.name]):
            say(line)

    def play(entry: Entry, seed: int) -> SwarmCourse:
        say(f"{entry.name}, seed {seed}:")
        home = kept_temporary_folder("peer-compare-")
        found = sources[entry.name]
        named = tuple(one.shared(f"{Path(entry.name).stem}-seed-{seed}") for one in trackers)
        each = replace(setups, trackers=named)
        return _print_end(entry, seed, play_real(entry, seed, home, say, loop_factory(), sources=found, setups=each))

    return play


def _trackers(log: tuple[str, ...]) -> tuple[Tracker, ...]:
    if not log:
        return ()
    from peer.trackers.feed import Tracker

    return tuple(Tracker.parse(one) for one in log)


def _print_end(entry: Entry, seed: int, course: SwarmCourse) -> SwarmCourse:
    """Print the final loss of one swarm on stderr, so that a comparison that is interrupted later still has results."""
    from peer.lab.compare.result import time_scale

    if course.curve:
        last, rounds = course.curve[-1], entry.manifest.train.total_rounds
        end = (
            f"loss {last.loss:.4f} nats a token after {rounds} rounds, {time_scale(last.seconds).written(last.seconds)}"
        )
        echo(f"{entry.name}, seed {seed}: {end}", err=True)
    return course
