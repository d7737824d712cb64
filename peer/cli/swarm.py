"""`peer swarm`: run a complete swarm on this machine."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from peer.cli.options import PRESET_HELP, preset, refuse_unwritable, step_seconds, writing
from peer.cli.printing import echo
from peer.cli.web import log_to

if TYPE_CHECKING:
    from peer.lab.localswarm.plan import SwarmPlan
    from peer.lab.run_sources import BaseManifest, RunSources


@click.command("swarm", epilog="Example: peer swarm --peers 4 --rounds 40 --kill 2@30 --join 5@40 --report out.json")
@click.option("--peers", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option(
    "--manifest",
    type=click.Path(path_type=Path),
    help="Base manifest, with its files beside it. The tiny built-in run by default.",
)
@preset(PRESET_HELP)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a manifest value.")
@click.option("--rounds", type=click.IntRange(min=1), help="Exchanges of every fragment.")
@click.option("--steps", type=click.IntRange(min=1), help="Inner steps of a peer (clock in steps).")
@click.option("--minutes", type=click.FloatRange(min=0.05), help="The peers leave after so many minutes.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the run.")
@click.option("--kill", "kills", multiple=True, metavar="K@SECONDS", help="SIGKILL daemon K, so long after the start.")
@click.option("--join", "joins", multiple=True, metavar="K@SECONDS", help="Start newcomer K (or a killed K again).")
@click.option(
    "--throttle", "throttles", multiple=True, metavar="K@SPEED", help="Peer K trains at this part of its speed."
)
@step_seconds
@click.option(
    "--chaos", metavar="PROFILE", help="Faults: gentle, rough, links or all. all@20s: one in 20 s on average."
)
@click.option(
    "--attack",
    "attacks",
    multiple=True,
    metavar="K@KIND",
    help="Peer K lies so to the others. Repeatable. Or sybil-records[:N].",
)
@click.option(
    "--home",
    type=click.Path(path_type=Path),
    envvar="PEER_SWARM_HOME",  # not PEER_HOME, which is the home of one peer
    help="An empty folder for the homes. A temporary one by default.",
)
@click.option(
    "--data",
    metavar="[K@]FOLDER",
    multiple=True,
    help="Folder of texts, of all peers or of peer K alone (repeatable), or of token shards, as of `peer bootstrap`.",
)
@click.option("--state", type=click.Path(path_type=Path), help="Begin from this checkpoint folder of a peer.")
@log_to
@click.option("--report", type=click.Path(path_type=Path), help="Write one JSON object here.")
def command(
    peers: int,
    manifest: Path | None,
    preset: str | None,
    settings: tuple[str, ...],
    rounds: int | None,
    steps: int | None,
    minutes: float | None,
    seed: int | None,
    kills: tuple[str, ...],
    joins: tuple[str, ...],
    throttles: tuple[str, ...],
    step_seconds: float,
    chaos: str | None,
    attacks: tuple[str, ...],
    home: Path | None,
    data: tuple[str, ...],
    state: Path | None,
    log: tuple[str, ...],
    report: Path | None,
) -> None:
    """Run a bootstrap node and several peers as real processes on this machine, and report what they did.

    With --chaos the peers communicate through relays on 127.1.0.x and suffer faults, drawn at random from --seed.
    Daemons, trainers and directory helpers are killed or stopped. Links are cut or slow, disks are full, clocks jump.
    The plan of faults is printed, and the report shows how long each recovery took. Linux only.

    With --attack some peers send false values to the others. `peer help simulate` lists the kinds. The report shows the
    attackers and the damage to the honest peers. sybil-records announces N keys (150) with one address that never
    answers, and the report shows how often that address was dialled.

    A --manifest of your own is played with all files that it names, found as `peer bootstrap` finds them. The swarm
    signs it with its own key, and invites its peers if the run is by invitation. It begins when all peers are ready,
    whatever `start` in the manifest is. Each value that differs from the file is printed.

    Times count from the moment when all peers are ready. A fault or join that did not happen, such as a kill after the
    end of the run, is listed with its reason, and the exit code is 61. The homes and logs of the processes are kept in
    --home (a temporary folder only after a failure)."""
    from peer.lab.attack.sybil_records import records_asked
    from peer.lab.localswarm.plan import (
        Churn,
        SwarmPlan,
        attacks_of,
        derive_manifest,
        drawn_faults,
        ensure_possible,
        longest_s,
        parse_timed,
        peer_setups,
        shard_folder,
        with_founders,
    )
    from peer.lab.run_sources import BaseManifest, find_sources
    from peer.run.manifest import default_text, parse_manifest, read_text
    from peer.user_folders import kept_temporary_folder

    refuse_unwritable(report, "--report")
    base = BaseManifest(default_text() if manifest is None else read_text(manifest), manifest)
    text = derive_manifest(
        base.text,
        preset=preset,
        settings=(*settings, *(_init_of(state) if state else ())),
        rounds=rounds,
        steps=steps,
        minutes=minutes,
        seed=seed,
        own_default=manifest is None,
    )
    text = with_founders(text, peers)
    parsed = parse_manifest(text.encode())
    faults = None if chaos is None else drawn_faults(chaos, parsed, peers, minutes)
    churn = Churn(kills=parse_timed(kills, "kill"), joins=parse_timed(joins, "join"), faults=faults)
    records, told = records_asked(attacks)
    lies = attacks_of(told, parsed, peers, chaos=chaos is not None)
    slow = parse_timed(throttles, "throttle")
    ensure_possible(churn, slow, lies, peers, longest_s(parsed, minutes))
    setups = peer_setups(parsed.data.kind, peers, churn.joins, slow, data, step_seconds, lies, records)
    shards = shard_folder(data, parsed.data.kind)
    sources = find_sources(base, parsed, shards, state=state is not None)
    _print_overrides(base, text, sources)
    if log:
        from peer.trackers.feed import Tracker

        setups = replace(setups, trackers=tuple(Tracker.parse(one) for one in log))
    plan = SwarmPlan(
        peers=peers,
        manifest=text,
        sources=sources,
        home=home or kept_temporary_folder("peer-swarm-"),  # created only after all checks
        seed=parsed.seed,
        minutes=minutes,
        state=state,
        churn=churn,
        setups=setups,
    )
    _run_and_report(plan, report)
    if home is None:
        shutil.rmtree(plan.home)


def _print_overrides(base: BaseManifest, text: str, sources: RunSources) -> None:
    """Print each value in which the played manifest differs from the user's file."""
    from peer.cli.run import say
    from peer.lab.run_sources import override_lines

    for line in override_lines(base, text, sources):
        say(line)


def _run_and_report(plan: SwarmPlan, report: Path | None) -> None:
    """Run the swarm and print its table. Raises SwarmFailed when a peer ended with an error, and OrdersNotCarriedOut
    when a requested event did not happen although nobody stopped the swarm."""
    import asyncio

    from peer.cli.run import loop_factory, say
    from peer.lab.localswarm.report import table, write_report
    from peer.lab.localswarm.run import Swarm, check
    from peer.lab.orders import check_orders

    if plan.churn.faults is not None:
        say(f"faults: {list(plan.churn.faults)!r}")
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        swarm = Swarm(plan, say)
        result = runner.run(swarm.run())
    echo(table(result))
    if report is not None:
        with writing(report, "--report"):
            write_report(result, report)
    check(result, plan.home)
    if not swarm.stopped:
        check_orders(result["orders"])


def _init_of(state: Path) -> list[str]:
    """Return the setting that makes this checkpoint's params the run's first state."""
    from peer.joining.reset import digest_of
    from peer.node.operator.initial_state import load_params

    return [f"init={digest_of(load_params(state, None)).hex()}"]
