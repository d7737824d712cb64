"""`python -m peer.lab.attack.process KIND SEED join TICKET …`: a real daemon that lies as KIND says. `peer swarm
--attack` starts it in place of `peer join`, with the options of a local swarm. No option of `peer` itself makes a peer
lie."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from peer.clock.phases import PhaseTimer
from peer.errors import PeerError
from peer.exchange.build import MakeStrategy
from peer.joining.preflight import check_volunteer
from peer.lab.attack.liar import liar_of, lying_donor
from peer.lab.attack.lies import DONOR, ensure_kind
from peer.node.compose import DaemonParts
from peer.node.display import PlainLines
from peer.node.handler import DonatedState
from peer.node.open import LocalNode
from peer.node.peer import PeerDaemon
from peer.node.process import leave_when_stdin_closes
from peer.protocol.messages import RunId
from peer.run.home import Home
from peer.run.options import PeerOptions
from peer.run.ticket import Ticket


@dataclass(frozen=True, slots=True)
class Liar:
    """The functions that build the lying parts of a daemon."""

    strategy: MakeStrategy
    donated: Callable[..., DonatedState]


def read(arguments: Sequence[str]) -> tuple[Liar, PeerOptions]:
    """Parse the command line. Raises UsageError for an unknown kind, and SystemExit as argparse does."""
    parser = argparse.ArgumentParser(prog="peer.lab.attack.process", description=__doc__)
    parser.add_argument("kind")
    parser.add_argument("seed", type=int)
    parser.add_argument("command", choices=["join"])
    parser.add_argument("ticket")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--host-maddrs", action="append", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--min-peers", type=int, default=1)
    parser.add_argument("--checkpoint-every", type=float, default=60.0)
    parser.add_argument("--priority", choices=["normal"], default="normal")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--yes", action="store_true", dest="agreed")
    parser.add_argument("--leave-on-eof", action="store_true")
    given = parser.parse_args(arguments)
    if given.leave_on_eof:
        leave_when_stdin_closes()
    known = Ticket.named(given.ticket)
    options = PeerOptions(
        home=given.home,
        run_id=RunId(known.run_id),
        initial_peers=known.addresses,
        host_maddrs=tuple(given.host_maddrs),
        threads=given.threads,
        speed=given.speed,
        step_seconds=given.step_seconds,
        min_peers=given.min_peers,
        checkpoint_every_s=given.checkpoint_every,
        data_dir=given.data,
        agreed=given.agreed,
    )
    kind = ensure_kind(given.kind)
    donated = lying_donor if kind == DONOR else DonatedState
    return Liar(liar_of(kind, given.seed), donated), options


async def take_part(liar: Liar, options: PeerOptions) -> int:
    """Run the peer as `peer.node.peer.run_peer` does, with the lying parts. Return the exit code."""
    check_volunteer(options)
    display, phase_timer = PlainLines(say), PhaseTimer()
    with Home(options.home).lock(options.identity_path):
        local = LocalNode.of(options, options.run_id, display.say)
        parts = replace(DaemonParts.of(local, options), make_strategy=liar.strategy, make_donated=liar.donated)
        async with parts.open_node(local) as node:
            phase_timer.end("network")
            return await PeerDaemon(node, parts, display, None, phase_timer).run()


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {line}", flush=True)


def main() -> None:
    liar, options = read(sys.argv[1:])
    try:
        code = asyncio.run(take_part(liar, options))
    except PeerError as error:
        say(f"{error}. {error.fix}")
        code = error.exit_code
    sys.exit(code)


if __name__ == "__main__":
    main()
