"""`peer simulate --attack`: a simulated swarm with lying peers, and the same swarm without them."""

from __future__ import annotations

from dataclasses import dataclass

from peer.errors import UsageError
from peer.lab.attack.liar import ensure_fits, liar_of
from peer.lab.attack.lies import BACKDOOR, DONOR, ensure_kind
from peer.lab.attack.report import AttackReport, Excluded, excluded, mean_last_loss
from peer.lab.sim.report import Report
from peer.lab.sim.run import SimulationRoles, SimulationSettings, simulate
from peer.lab.sim.swarm import SimulatedSwarm
from peer.run.manifest import parse_manifest
from peer.run.resolve import resolve

FEWEST_PEERS = 3
"""Fewest peers: one liar, and two honest peers that can meet."""


def simulate_attack(settings: SimulationSettings, kind: str, share: float) -> tuple[Report, AttackReport]:
    """Simulate the swarm with and without liars. The first report is of the swarm with liars. `share`: of the peers
    that lie.

    Raises UsageError or ManifestError for impossible settings."""
    ensure_kind(kind)
    manifest = parse_manifest(settings.manifest.encode())
    ensure_fits(kind, resolve(manifest.sync))
    if kind == DONOR:
        raise UsageError(
            "nobody joins a simulated swarm later", f"Play it with: peer swarm --attack K@{DONOR} --join K@S."
        )
    if kind == BACKDOOR and settings.trainer != "tiny":
        raise UsageError("a backdoor needs a trainer that learns", "Add --trainer tiny.")
    numbers = liars_among(settings.peers, share)
    alone = honest_alone(settings, numbers)
    played = play_attack(settings, kind, numbers)
    attack = AttackReport(
        kind=kind,
        liars=played.liars,
        honest_loss=played.honest_loss,
        honest_loss_alone=alone,
        excluded=played.excluded,
    )
    return played.report, attack


@dataclass(frozen=True, slots=True)
class Played:
    """The outcome of a simulation with liars."""

    report: Report
    liars: tuple[str, ...]
    """Peer ids of the liars."""
    honest_loss: float | None
    excluded: Excluded


def play_attack(settings: SimulationSettings, kind: str, numbers: tuple[int, ...]) -> Played:
    """Simulate the swarm with these peers lying."""
    seed = parse_manifest(settings.manifest.encode()).seed
    liars = {number: liar_of(kind, seed) for number in numbers}
    swarms: list[SimulatedSwarm] = []
    report = simulate(
        settings, swarms.append, SimulationRoles(liars=liars, poisoned=numbers if kind == BACKDOOR else ())
    )
    peers = swarms[0].peers
    ids = tuple(peers[number].peer_id for number in numbers)
    honest = [peer.events for peer in peers if peer.number not in numbers]
    return Played(report, ids, mean_last_loss(honest), excluded(honest, ids))


def honest_alone(settings: SimulationSettings, numbers: tuple[int, ...]) -> float | None:
    """Simulate the swarm without these peers. Return the mean of the last losses, as `mean_last_loss` does."""
    swarms: list[SimulatedSwarm] = []
    simulate(
        settings, swarms.append, SimulationRoles(numbers=tuple(n for n in range(settings.peers) if n not in numbers))
    )
    return mean_last_loss(peer.events for peer in swarms[0].peers)


def liars_among(peers: int, share: float) -> tuple[int, ...]:
    """Return the numbers of the liars, evenly spread from the slowest to the fastest peer. Raises UsageError."""
    if peers < FEWEST_PEERS:
        reason = f"one liar and two honest peers are {FEWEST_PEERS}, and --peers is {peers}"
        raise UsageError(reason, f"Give --peers {FEWEST_PEERS} or more.")
    if not 0 <= share <= 1:
        raise UsageError(f"--share {share:g} is no part of the peers", "Choose one between 0 and 1, e.g. 0.125.")
    count = round(share * peers)
    if not 1 <= count <= peers - 2:
        raise UsageError(
            f"--share {share:g} of {peers} peers is {count} liars",
            "Choose a share that gives at least one liar and two honest peers.",
        )
    return tuple((2 * place + 1) * peers // (2 * count) for place in range(count))
