"""The report of a simulated swarm: its numbers, and their text for people."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from peer.lab.orders import unmet_lines
from peer.lab.sim.drawn_values import DrawnValues
from peer.lab.sim.machine import SimulatedPeer
from peer.lab.sim.participation import participation_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.observe import events


@dataclass(frozen=True, slots=True)
class Report:
    """The numbers of one simulation, as `peer simulate --json` prints them. Times in seconds, sizes in bytes. Losses
    are means over peers. None: not measured."""

    peers: int
    hours: float
    loss_first: float | None
    """Mean over peers of their first evaluation."""
    loss_last: float | None
    loss_by_hour: list[float | None]
    compute_utilization: float
    """Share of the living peers' time in which their trainers computed."""
    up_bytes_per_peer_hour: float
    """Payloads with their overhead on the wire, without small messages."""
    down_bytes_per_peer_hour: float
    messages_per_peer_hour: float
    due: int
    exchanged: int
    solo: int
    failed: int
    """Rounds that ended without an exchange because of the partner, or in which nothing was applied."""
    missed: int
    live_due: int | None
    """Peer-rounds due for live peers, counted from outside (`peer.lab.sim.participation`). None: the round clock counts
    steps."""
    live_missed: int | None
    participation: float | None
    """Exchanged peer-rounds divided by `live_due`."""
    exchange_s_median: float | None
    exchange_s_p99: float | None
    spread: float
    """Root mean square distance of the living replicas' outer_params from their mean, divided by the root mean square
    of the mean."""
    truths: int | None
    """In groups: the largest number of different states after one exchange, among the members that missed no shard. 1:
    all agree. None: no group exchanged."""
    ledger_imbalance: int
    """Not 0: work was lost or counted twice."""
    processed: int
    paths: dict[str, int]
    """Number of swaps by path (direct, punched or relayed), counted once for each side that completed."""
    relayed_bytes_per_relay_hour: float | None
    """Bytes that a relay carried for others, per relay and hour. None: there were no relays."""
    faults: dict[str, int]
    seconds_to_simulate: float
    drawn: list[DrawnValues] = field(default_factory=list)
    """The values that the peers drew from distributions, such as those of their links."""
    orders: list[dict[str, Any]] = field(default_factory=list)
    """The requested settings, and whether each had an effect (`peer.lab.orders`)."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def report_of(swarm: SimulatedSwarm, hours: float, seconds: float, *, learns: bool = True) -> Report:
    """Make the report of a swarm whose run is over. `hours`: simulated. `seconds`: how long the simulation took.
    `learns`: False for a trainer without a model, whose losses mean nothing."""
    journal = [event for peer in swarm.peers for event in peer.events]
    ended = [event for event in journal if isinstance(event, events.RoundEnded)]
    outcomes = Counter(event.outcome for event in ended)
    took = sorted(event.seconds for event in ended if event.outcome == "exchanged")
    learners = swarm.peers if learns else []
    losses = _losses_by_hour(learners, hours)
    known = [loss for loss in losses if loss is not None]
    evaluated = [[e.loss for e in peer.events if isinstance(e, events.Evaluated)] for peer in learners]
    took_part = participation_of(swarm)
    books = [peer.ledger() for peer in swarm.peers]
    carried = swarm.network.link_loads.values()
    peer_hours = len(swarm.peers) * hours
    return Report(
        peers=len(swarm.peers),
        hours=hours,
        loss_first=_mean([losses[0] for losses in evaluated if losses]),
        loss_last=known[-1] if known else None,
        loss_by_hour=losses,
        compute_utilization=_utilization(swarm, hours),
        up_bytes_per_peer_hour=sum(one.up for one in carried) / peer_hours,
        down_bytes_per_peer_hour=sum(one.down for one in carried) / peer_hours,
        messages_per_peer_hour=sum(one.messages for one in carried) / peer_hours,
        due=sum(isinstance(event, events.RoundDue) for event in journal),
        exchanged=outcomes["exchanged"],
        solo=outcomes["solo"],
        failed=sum(outcomes.values()) - outcomes["exchanged"] - outcomes["solo"],
        missed=sum(isinstance(event, events.RoundMissed) for event in journal),
        live_due=took_part.due if took_part else None,
        live_missed=took_part.missed if took_part else None,
        participation=took_part.share if took_part else None,
        exchange_s_median=statistics.median(took) if took else None,
        exchange_s_p99=took[min(len(took) - 1, math.ceil(0.99 * len(took)) - 1)] if took else None,
        spread=_spread(swarm),
        truths=_truths(ended),
        ledger_imbalance=sum(abs(book.imbalance) for book in books),
        processed=sum(book.processed for book in books),
        paths={path.value: count for path, count in sorted(swarm.network.swap_paths.items())},
        relayed_bytes_per_relay_hour=_relayed(swarm, hours),
        faults=dict(Counter(fault.kind for _, fault in swarm.fault_injector.injected)),
        seconds_to_simulate=seconds,
    )


def _losses_by_hour(peers: Iterable[SimulatedPeer], hours: float) -> list[float | None]:
    """Return for each hour the mean over peers of their last evaluation in it. None: no evaluation in that hour."""
    by_hour: list[list[float]] = [[] for _ in range(math.ceil(hours))]
    for peer in peers:
        last: dict[int, float] = {}
        for at, event in zip(peer.times, peer.events, strict=True):
            if isinstance(event, events.Evaluated):
                last[min(int(at / 3600), len(by_hour) - 1)] = event.loss
        for hour, loss in last.items():
            by_hour[hour].append(loss)
    return [_mean(losses) for losses in by_hour]


def _utilization(swarm: SimulatedSwarm, hours: float) -> float:
    computed = sum(peer.counters().seconds_training for peer in swarm.peers)
    away = sum(peer.away_s(hours * 3600) for peer in swarm.peers)
    lived = len(swarm.peers) * hours * 3600 - away
    return min(1.0, computed / lived) if lived > 0 else 0.0


def _relayed(swarm: SimulatedSwarm, hours: float) -> float | None:
    relays = swarm.network.paths.relays
    if not relays:
        return None
    return sum(swarm.network.load(relay).relayed for relay in relays) / (len(relays) * hours)


def _truths(ended: Iterable[events.RoundEnded]) -> int | None:
    """Return `Report.truths`."""
    held: dict[tuple[int, int], set[str]] = {}
    for event in ended:
        if event.outcome == "exchanged" and event.digest and not event.reason:
            held.setdefault((event.round, event.fragment), set()).add(event.digest)
    return max(map(len, held.values()), default=None)


def _spread(swarm: SimulatedSwarm) -> float:
    """Return `Report.spread`. 0 with fewer than two living replicas."""
    held = [peer.outer.params for peer in swarm.peers if peer.life.outer is not None and not peer.killed]
    if len(held) < 2:
        return 0.0
    mean = torch.stack(held).mean(0)
    apart = math.sqrt(sum(float((one - mean).square().mean()) for one in held) / len(held))
    return apart / max(float(mean.square().mean().sqrt()), 1e-12)


def _mean(values: list[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None


def report_text(report: Report) -> str:
    """Return the report as text for people."""
    rounds = f"{report.due} due: {report.exchanged} exchanged, {report.solo} solo, {report.failed} failed, "
    rounds += f"{report.missed} missed"
    share = f" ({report.exchanged / report.due:.1%} exchanged)" if report.due else ""
    balance = (
        "0 (balances)" if report.ledger_imbalance == 0 else f"{report.ledger_imbalance}: WORK WAS LOST OR INVENTED"
    )
    lines = [
        *_losses(report),
        ("computing", f"{report.compute_utilization:.1%} of the time"),
        ("sent", f"{report.up_bytes_per_peer_hour / 1e6:.2f} MB a peer and hour"),
        ("received", f"{report.down_bytes_per_peer_hour / 1e6:.2f} MB a peer and hour"),
        ("rounds", rounds + share),
        *([] if report.participation is None else [("taking part", _took_part(report))]),
        ("exchange", f"{_number(report.exchange_s_median)} s median, {_number(report.exchange_s_p99)} s p99"),
        ("spread", f"{report.spread:.3g} of the replicas, relative"),
        *([] if report.relayed_bytes_per_relay_hour is None else [("paths", _paths(report))]),
        *([] if report.truths is None else [("truths", f"{report.truths} (the most states after one exchange)")]),
        ("ledger", balance),
        *(line for drawn in report.drawn for line in drawn.lines()),
        ("faults", ", ".join(f"{count} {kind}" for kind, count in sorted(report.faults.items())) or "none"),
        ("simulated in", f"{report.seconds_to_simulate:.1f} s"),
    ]
    return "\n".join([*(f"{name:<13} {text}" for name, text in lines), *unmet_lines(report.orders)])


def _losses(report: Report) -> list[tuple[str, str]]:
    if report.loss_first is None:
        return [("loss", "none: this trainer has no model. With --trainer tiny it learns")]
    return [
        ("loss", f"{_number(report.loss_first)} at the start, {_number(report.loss_last)} at the end"),
        ("  by hour", "  ".join(_number(loss) for loss in report.loss_by_hour[:24])),
    ]


def _took_part(report: Report) -> str:
    return f"{report.participation:.2%} of {report.live_due} peer-rounds due to live peers, {report.live_missed} missed"


def _paths(report: Report) -> str:
    taken, passed = report.paths, report.relayed_bytes_per_relay_hour or 0.0
    counts = ", ".join(f"{count} {path}" for path, count in taken.items()) or "no swap"
    return f"{counts}; {passed / 1e6:.2f} MB a relay and hour passed on"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
