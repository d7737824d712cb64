"""How long an exchange takes over a link, and the share of time that remains for computing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from peer.lab.planning.stragglers import MOST_PEERS, round_times
from peer.lab.planning.utilization import utilization
from peer.lab.planning.workload import Workload
from peer.lab.sim.links import Link, one_way_s, stream_cap, wire_bytes
from peer.methods.method import Method
from peer.run.costs import exchange_bytes
from peer.run.model_layout import layout_for
from peer.run.sections import LlamaSection

FLOPS = 6
"""Floating point operations of training per parameter and token."""
MESSAGES = 4
"""One-way messages before and after the payload: offer, answer, open, end."""
LONGEST_DELAY = 1 / 3
"""Share of `sync_every` within which a result has to merge. A later merge costs more than its exchange gains."""
USUAL_DELAY = 5
"""Default delay of a merge in inner steps. A longer exchange gets a longer delay."""
LONG = 2**30


@dataclass(frozen=True, slots=True)
class PlannedSwarm:
    """A swarm of equal peers, for computing its pace."""

    peers: int
    link: Link
    step_seconds: float
    """Seconds of computing in one inner step."""
    scatter: float = 0.0
    """Standard deviation of a step's time divided by its mean."""

    @property
    def payload_rate(self) -> float:
        """Payload bytes per second between two peers, in both directions at the same time."""
        rate = min(self.link.up, self.link.down, stream_cap(self.link, self.link))
        return rate * LONG / wire_bytes(LONG)

    def exchange_seconds(self, nbytes: float) -> float:
        """Return the seconds to send and receive `nbytes` bytes of payload."""
        return nbytes / self.payload_rate + MESSAGES * one_way_s(self.link, self.link) if nbytes else 0.0


@dataclass(frozen=True, slots=True)
class Pace:
    """The time and bytes that a method costs a swarm."""

    every: int
    """Inner steps between two exchanges of the same fragment."""
    sync_bytes: int
    """Payload bytes in each direction between two exchanges of the same fragment."""
    delay: int
    """Inner steps until the result merges. 0: the trainer waits for the exchange."""
    in_time: bool
    """Whether a result arrives before its latest merge."""
    share: float
    """Share of the time in which the machines compute."""

    def seconds(self, swarm: PlannedSwarm) -> float:
        """Return the seconds between two exchanges of the same fragment, including waiting."""
        return self.every * swarm.step_seconds / self.share


def pace_of(model: LlamaSection, method: Method, every: int, swarm: PlannedSwarm) -> Pace:
    """Compute the pace of a method that exchanges each fragment once in `every` inner steps."""
    layout = layout_for(model, method)
    sizes = [layout.fragment_elements(fragment) for fragment in range(len(layout.fragments))]
    crossing = [exchange_bytes(method, size, swarm.peers) for size in sizes]
    longest = swarm.exchange_seconds(max(crossing))
    if not method.exchanges:
        return Pace(every, 0, 0, True, 1.0)
    waits = _waiting(method, every, swarm)
    if method.schedule == "full":
        computed = every * swarm.step_seconds
        return Pace(every, sum(crossing), 0, True, computed / (computed * waits + longest))
    latest = max(1, int(every * LONGEST_DELAY))
    needed = math.ceil(longest / swarm.step_seconds)
    delay = min(latest, max(USUAL_DELAY, needed))
    share = _overlapped(model, method, Pace(every, sum(crossing), delay, needed <= latest, 1.0), swarm)
    return Pace(every, sum(crossing), delay, needed <= latest, share / waits)


def _waiting(method: Method, every: int, swarm: PlannedSwarm) -> float:
    """Return the time of a round divided by that of its inner steps. 1 with a round clock in seconds, where no peer
    waits for a slow one."""
    if method.clock == "seconds" or not swarm.scatter or swarm.peers == 1:
        return 1.0
    times = round_times(min(swarm.peers, MOST_PEERS), max(1, every // method.fragments), swarm.scatter)
    return times.group if method.one_state else times.pair


def _overlapped(model: LlamaSection, method: Method, pace: Pace, swarm: PlannedSwarm) -> float:
    """Return the share of computing time when a fragment is exchanged while the trainer continues, layer by layer."""
    layers = model.num_hidden_layers
    blocks = method.fragments - method.fragments_apart
    size = max(each for each in range(1, layers + 1) if layers % each == 0 and each <= -(-layers // blocks))
    work = Workload(
        params=model.parameters,
        layers=layers,
        step_seconds=swarm.step_seconds,
        preset="streaming-diloco",
        every=pace.every,
        fragment_layers=size,
        delay=pace.delay,
        bits=min(64.0, max(0.01, 8 * pace.sync_bytes / model.parameters)),
    )
    return utilization(work, 8 * swarm.payload_rate / 1e9)
