"""Estimates whether this machine can run a given number of peers as real processes: start time and shortages."""

from __future__ import annotations

from peer.observe.formatting import amount, duration

START_S, LOADING_S = 5.0, 10.0
"""Processor seconds for the start of a peer's processes, and the least seconds for one on an idle machine.

Source: results/growth.json."""
STOP_S, LEAST_STOP_S = 2.0, 15.0
"""Processor seconds for a peer to leave a busy machine, with its last evaluation, and the least seconds."""
P2PD_BYTES = 85 * 2**20
"""Memory of a peer's directory helper."""
IN_STEP = 6
"""Peers per core above which their trainers get out of step."""
STEP_S, ROUND_S = 2.0, 60.0
"""Durations of an inner step and a round, in seconds, that leave enough time for the daemons."""


def start_s(peers: int, cores: int) -> float:
    """Return the estimated seconds until `peers` peers have started."""
    return LOADING_S + START_S * peers / cores


def stop_s(peers: int, cores: int) -> float:
    """Return the seconds that `peers` peers get to leave when all leave at once."""
    return max(LEAST_STOP_S, STOP_S * peers / cores)


def shortages(need: int, peers: int, cores: int, free: int | None, *, paced: bool) -> list[str]:
    """Return the resources that the machine lacks for `peers` peers, as sentences with a fix. need: bytes of memory of
    one peer, without its directory helper. free: free bytes of memory; None: unknown. paced: the trainers rest between
    inner steps."""
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
    """Return a sentence about how long the start will take."""
    return f"the processes start; that takes about {duration(start_s(peers, cores))}, estimated"


def _cores(cores: int) -> str:
    return "one core" if cores == 1 else f"{cores} cores"
