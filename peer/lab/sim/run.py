"""The simulation behind `peer simulate --peers N`: a complete swarm in virtual time, with links, speeds and churn as
numbers, and its report."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from peer.errors import UsageError
from peer.exchange.build import MakeStrategy
from peer.lab.orders import Orders
from peer.lab.sim import fake_trainer, tiny_model
from peer.lab.sim.availability import absent_at_first, availability_of, session_faults, sessions_of
from peer.lab.sim.drawn_values import DrawnValues
from peer.lab.sim.fake_trainer import FakeTrainer
from peer.lab.sim.faults import Fault
from peer.lab.sim.home_lines import home_lines
from peer.lab.sim.nat import nat_named
from peer.lab.sim.report import Report, report_of
from peer.lab.sim.setting import ClosedHomes, MakeTrainer, SwarmSetting, SwarmWorld, layout_of
from peer.lab.sim.speeds import Speeds, speeds_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.tiny_model import TENSORS, TinyTrainer, other_targets
from peer.lab.sim.trainer import VirtualTrainer
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.methods.method import Method
from peer.observe.events import RoundEnded, RoundMissed
from peer.protocol.model.fragments import cut, cut_problem
from peer.protocol.model.layout import Layout
from peer.protocol.round_lengths import round_of
from peer.run.manifest import parse_manifest
from peer.run.resolve import resolve
from peer.run.sync.growth import growth_for

TRAINERS = ("fake", "tiny")
FAKE_ELEMENTS = 65536
"""Default number of parameters of the fake model."""
MOST_PEERS = 10_000
MOST_RELAYS = 64
RELAY_CAP = 64e3
"""Default cap of a relay in bytes per second, which is the least that `peer join --relay` accepts."""
HELD_ELEMENTS = 1024
"""Most parameters of the fake model that a peer holds in memory. On the wire its payloads have the size of all
parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSettings:
    """The settings of a simulation, as the options of `peer simulate` give them."""

    peers: int
    manifest: str
    """TOML text of a manifest. Used: [sync], the seed, and the learning rate schedule where rounds grow."""
    hours: float
    link: str = "cable"
    """A profile of all peers, or a table from which each peer draws its link (`peer.lab.sim.home_lines`)."""
    churn: float = 0.0
    """Departures per peer and hour. A departed peer returns after a while, with or without its checkpoint."""
    availability: str = ""
    """A trace or model of when each peer is on (`peer.lab.sim.availability`). Empty: always. Not with `churn`."""
    speeds: float | str = 1.0
    """Speed of the fastest peer divided by that of the slowest, or a distribution (`peer.lab.sim.speeds`)."""
    step_seconds: float = 1.0
    """Duration of an inner step of the slowest peer in seconds. With a distribution: of a peer of speed 1."""
    trainer: str = "fake"
    parameters: int = FAKE_ELEMENTS
    """Number of parameters of the fake trainer's model. Ignored with the tiny trainer."""
    stands_for: int | None = None
    """Number of parameters that determines the size of the tiny trainer's payloads on the wire. None: that of the tiny
    model."""
    eval_every: int | None = None
    """Rounds between two evaluations. None: about four an hour."""
    closed: float = 0.0
    """Share of the peers that cannot be dialled. Which ones is drawn from the seed."""
    nat: str = "port-restricted"
    """The routers of closed peers (`peer.lab.sim.nat.NATS`)."""
    relay_cap: float = RELAY_CAP
    """Cap of each relay in bytes per second. Every peer that is not closed relays."""
    relays: int = 1
    """Number of operator's nodes. They relay, and never train."""
    batches: int = 1
    """Number of peers whose batches one step of the tiny trainer takes. More than 1 is synchronous data-parallel
    training, and needs `peers` = 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRoles:
    """Which peers take part, and which of them misbehave. By default all take part, and none misbehaves. Peers are
    named by their numbers in `SimulationSettings.peers`."""

    numbers: tuple[int, ...] = ()
    """The peers that take part, ascending. Empty: all."""
    liars: Mapping[int, MakeStrategy] = field(default_factory=dict)
    """See `SimulatedRun.liars`. Only together with empty `numbers`."""
    poisoned: Container[int] = ()
    """The peers whose tiny trainers learn wrong targets."""


ALL_HONEST = SimulationRoles()


def simulate(
    settings: SimulationSettings,
    watch: Callable[[SimulatedSwarm], None] = lambda swarm: None,
    roles: SimulationRoles = ALL_HONEST,
) -> Report:
    """Simulate a swarm to its end and return the report. `watch` is called with the swarm before its first round.
    Raises UsageError or ManifestError for impossible settings."""
    _check(settings)
    numbers = roles.numbers or tuple(range(settings.peers))
    manifest = parse_manifest(settings.manifest.encode())
    method, lines = resolve(manifest.sync), home_lines(settings.link)
    links = list(lines.links(manifest.seed, numbers).values())
    speeds = speeds_of(settings.speeds)
    layout, make = _trainers(settings, method, manifest.seed, speeds, roles.poisoned)
    first_params = tiny_model.first_params if settings.trainer == "tiny" else fake_trainer.first_params
    slots = _slots(settings, method, settings.step_seconds / speeds.slowest(manifest.seed, settings.peers))
    presence = _presence(settings, manifest.seed, numbers)
    method = replace(method, growth=growth_for(manifest.optimizer, method.growth_lr, slots))
    rounds = round_of(method.growth, slots)
    began = time.monotonic()

    async def main() -> SimulatedSwarm:
        swarm = SimulatedSwarm(
            len(numbers),
            SwarmSetting(
                method=method,
                rounds=method.round_clock(EPOCH),
                total_rounds=rounds,
                seed=manifest.seed,
                layout=layout,
                eval_every=settings.eval_every or max(1, round(rounds / settings.hours / 4)),
                first=first_params(manifest.seed, layout),
            ),
            SwarmWorld(
                links=dict(enumerate(links)),
                stops=False,
                weight=_wire_parameters(settings, layout) / layout.elements,
                closed=_draw_closed_homes(settings, manifest.seed, len(numbers)),
            ),
            make_trainer=lambda place, layout, clock: make(numbers[place], layout, clock),
            liars=roles.liars,
        )
        watch(swarm)
        await swarm.run(presence.faults, presence.absent)
        return swarm

    swarm = run_virtual(main())
    report = report_of(swarm, settings.hours, time.monotonic() - began, learns=settings.trainer != "fake")
    drawn_speeds = speeds.drawn(speeds.speed(manifest.seed, number, settings.peers) for number in numbers)
    drawn = [one for one in (lines.drawn(links), presence.drawn, drawn_speeds) if one is not None]
    return replace(report, drawn=drawn, orders=_orders(settings, swarm, rounds, roles).to_json())


@dataclass(frozen=True, slots=True)
class Presence:
    """When the peers are there: who is off at the start, and who leaves and comes back when."""

    faults: tuple[Fault, ...]
    absent: frozenset[int] = frozenset()
    drawn: DrawnValues | None = None


def _presence(settings: SimulationSettings, seed: int, numbers: Sequence[int]) -> Presence:
    """Draw when the peers with these numbers are there. Raises UsageError."""
    seconds = settings.hours * 3600
    if settings.availability:
        availability = availability_of(settings.availability)
        sessions = sessions_of(availability, seed, numbers, seconds)
        drawn = availability.drawn(sessions, seconds)
        return Presence(session_faults(sessions, seconds), absent_at_first(sessions), drawn)
    departures = churn_plan(seed, len(numbers), seconds, settings.churn)
    if settings.churn and not departures:
        reason = f"with --churn {settings.churn:g} nobody departs within {settings.hours:g} hours"
        raise UsageError(reason, "Give more --hours, more --peers or a higher --churn, or leave it out.")
    return Presence(departures)


def _orders(settings: SimulationSettings, swarm: SimulatedSwarm, rounds: int, roles: SimulationRoles) -> Orders:
    """Find from the journals which of the requested settings had an effect."""
    orders = Orders()
    ended = [(peer, e) for peer in swarm.peers for e in peer.events if isinstance(e, RoundEnded | RoundMissed)]
    length = orders.add(f"--hours {settings.hours:g}")
    if any(event.round >= rounds - 1 for _, event in ended):
        length.mark_done(settings.hours * 3600)
    if settings.churn:
        departures = orders.add(f"--churn {settings.churn:g}")
        if kills := [at for at, fault in swarm.fault_injector.injected if fault.kind == "kill"]:
            departures.mark_done(min(kills))
    if settings.availability:
        orders.add(f"--availability {settings.availability}").mark_done(0.0)
    for number in roles.liars:
        liar = orders.add(f"the attack of peer {number}")
        if any(peer.number == number and isinstance(e, RoundEnded) and e.bytes_sent for peer, e in ended):
            liar.mark_done(0.0)
        else:
            liar.mark_missed("it sent nothing to a partner")
    last = max((event.round for _, event in ended), default=-1)
    orders.close(f"the swarm ended in round {last + 1} of {rounds}")
    return orders


def churn_plan(seed: int, peers: int, seconds: float, rate: float) -> tuple[Fault, ...]:
    """Draw kills and returns. Each peer leaves without notice `rate` times an hour on average, and stays away for half
    of the mean time between departures, at most 15 minutes. Peer 0 stays, so that there is always a donor."""
    rng, plan = random.Random(f"churn {seed}"), list[Fault]()
    for peer in range(1, peers if rate > 0 else 0):
        at = rng.expovariate(rate / 3600)
        while at < seconds:
            back = at + min(900.0, rng.expovariate(2 * rate / 3600))
            plan += [Fault("kill", peer, at=round(at, 1))]
            plan += [Fault(rng.choice(("restart", "rejoin")), peer, at=round(back, 1) + 0.1)]
            at = back + rng.expovariate(rate / 3600)
    return tuple(plan)


def _draw_closed_homes(settings: SimulationSettings, seed: int, count: int) -> ClosedHomes | None:
    """Draw the closed peers. None: every peer can be dialled."""
    if not settings.closed:
        return None
    shut = sorted(random.Random(f"closed {seed}").sample(range(count), round(settings.closed * count)))
    return ClosedHomes(
        nats=dict.fromkeys(shut, nat_named(settings.nat)), relay_cap=settings.relay_cap, nodes=settings.relays
    )


def _wire_parameters(settings: SimulationSettings, layout: Layout) -> int:
    """Return the number of parameters that determines the size of payloads on the wire."""
    return settings.parameters if settings.trainer == "fake" else settings.stands_for or layout.elements


def _check(settings: SimulationSettings) -> None:
    if not 1 <= settings.peers <= MOST_PEERS:
        raise UsageError(f"--peers {settings.peers} cannot be simulated", f"Give a number from 1 to {MOST_PEERS}.")
    if not 1 <= settings.batches <= MOST_PEERS:
        raise UsageError(f"the batches of {settings.batches} peers cannot be taken", f"Give 1 to {MOST_PEERS} --peers.")
    if settings.batches > 1 and (settings.peers > 1 or settings.trainer != "tiny"):
        raise UsageError("only one peer with the tiny trainer takes the batches of others", "Add --trainer tiny.")
    if not 0 < settings.hours <= 24 * 366:
        raise UsageError(f"--hours {settings.hours:g} cannot be", "Give a number above 0, at most a year.")
    if not 0 <= settings.churn <= 60:
        raise UsageError(f"--churn {settings.churn:g} cannot be", "Give departures a peer and hour, from 0 to 60.")
    if settings.churn and settings.availability:
        raise UsageError("--churn and --availability both define when peers leave", "Give one of them.")
    if not 1e-3 <= settings.step_seconds <= 1e5:
        raise UsageError(f"--step-seconds {settings.step_seconds:g} cannot be", "Give seconds from 0.001 to 100000.")
    if not 64 <= settings.parameters <= 10**12:
        raise UsageError(f"--parameters {settings.parameters} cannot be simulated", "Give a number from 64 to 10^12.")
    if not 0 <= settings.closed <= 1:
        raise UsageError(f"--closed {settings.closed:g} cannot be", "Give a part of the peers, from 0 to 1.")
    if settings.closed and not round(settings.closed * settings.peers):
        reason = f"--closed {settings.closed:g} of {settings.peers} peers is nobody"
        raise UsageError(reason, f"Give at least {1 / settings.peers:.2g}, or more --peers.")
    if not 0 <= settings.relays <= MOST_RELAYS:
        raise UsageError(f"--relays {settings.relays} cannot be", f"Give a number from 0 to {MOST_RELAYS}.")
    nat_named(settings.nat)
    if settings.trainer not in TRAINERS:
        raise UsageError(f"there is no simulated trainer {settings.trainer!r}", f"Known: {', '.join(TRAINERS)}.")


def _slots(settings: SimulationSettings, method: Method, slowest_step_s: float) -> int:
    """Return how many rounds of the first round's length fit into the hours. A round clock in steps is counted at the
    speed of the slowest peer. Raises UsageError if not one fits."""
    seconds = method.round_length * (slowest_step_s if method.clock == "steps" else 1.0)
    rounds = int(settings.hours * 3600 / seconds + 1e-9)
    if rounds < 1:
        raise UsageError(
            f"not one round of {seconds:g} s fits into {settings.hours:g} hours",
            "Give more --hours, or a shorter --sync-every.",
        )
    return rounds


def _trainers(
    settings: SimulationSettings, method: Method, seed: int, speeds: Speeds, poisoned: Container[int]
) -> tuple[Layout, MakeTrainer]:
    """Return the layout, and the function that makes a peer's trainer. Raises UsageError if the tiny model cannot be
    cut as the method wants."""

    def seconds(number: int) -> float:
        return settings.step_seconds / speeds.speed(seed, number, settings.peers)

    if settings.trainer == "fake":
        layout = layout_of(method, math.ceil(min(HELD_ELEMENTS, settings.parameters) / method.fragments))

        def fake(number: int, layout: Layout, clock: VirtualClock) -> VirtualTrainer:
            return FakeTrainer(layout, clock, step_seconds=seconds(number), seed=seed * 1000 + number)

        return layout, fake

    pattern = "whole" if method.schedule == "full" else method.fragment_layout
    if reason := cut_problem(TENSORS, fragments=method.fragments, pattern=pattern, apart=method.fragments_apart):
        raise UsageError(f"the tiny trainer cannot play this method: {reason}", "Give fewer fragments.")
    tiny_layout = cut(TENSORS, fragments=method.fragments, pattern=pattern, apart=method.fragments_apart)

    def tiny(number: int, layout: Layout, clock: VirtualClock) -> VirtualTrainer:
        return TinyTrainer(
            layout,
            clock,
            step_seconds=seconds(number),
            seed=seed,
            data=f"peer {number}",
            targets=other_targets(seed) if number in poisoned else None,
            more=[f"peer {other}" for other in range(1, settings.batches)],
        )

    return tiny_layout, tiny
