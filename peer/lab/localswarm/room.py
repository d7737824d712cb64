"""Whether this machine carries a swarm of real processes: what its start takes, and what it is short of."""

from __future__ import annotations

from peer.observe.formatting import amount, duration

START_S, LOADING_S = 5.0, 10.0
"""Processor seconds that a peer's processes take to start, and seconds that one takes on an idle machine at least.

Source: results/growth.json."""
STOP_S, LEAST_STOP_S = 2.0, 15.0
"""Processor seconds that a peer takes to leave on a busy machine, with its last evaluation, and seconds at least."""
P2PD_BYTES = 85 * 2**20
"""Memory of a peer's directory helper."""
IN_STEP = 6
"""Peers on a core, above which their trainers do not keep step."""
STEP_S, ROUND_S = 2.0, 60.0
"""An inner step and a round that leave the daemons room, in seconds."""


def start_s(peers: int, cores: int) -> float:
    """Return about how many seconds so many peers take to start."""
    return LOADING_S + START_S * peers / cores


def stop_s(peers: int, cores: int) -> float:
    """Return the seconds that so many peers get when all leave at once."""
    return max(LEAST_STOP_S, STOP_S * peers / cores)


def shortages(need: int, peers: int, cores: int, free: int | None, *, paced: bool) -> list[str]:
    """Return what the machine is short of, each with what to do. `need`: bytes of memory that a peer takes, without
    its directory helper. `free`: bytes of memory; None: not known. `paced`: the trainers rest between their inner
    steps."""
    found = []
    if peers > IN_STEP * cores and not paced:
        found.append(
            f"{peers} peers share {_cores(cores)}. Above {IN_STEP * cores} their trainers get out of step here, and "
            f"some rounds are not exchanged. Let them rest: --step-seconds {STEP_S:g}. "
            f"Longer rounds help, too: --set sync.clock=seconds --set sync.sync_every={ROUND_S:g}"
        )
    need += P2PD_BYTES
    if free is not None and peers * need > free:
        found.append(
            f"{peers} peers need about {amount(peers * need, 'bytes')} of memory, {amount(need, 'bytes')} each, "
            f"estimated, and {amount(free, 'bytes')} are free. There is room for {free // need}"
        )
    return found


def start_text(peers: int, cores: int) -> str:
    """Say how long the start takes, for a person."""
    return f"the processes start; that takes about {duration(start_s(peers, cores))}, estimated"


def _cores(cores: int) -> str:
    return "one core" if cores == 1 else f"{cores} cores"
