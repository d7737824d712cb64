"""What does churn cost in loss? The tiny model that really learns, a swarm with and without departures; losses (mean of
the peers' latest evaluations of outer_params, nats a symbol) at equal applied tokens: as many as the swarm with churn
applied in all.

    .venv/bin/python benchmarks/churn_loss.py [--seeds 3] [--peers 8] [--hours 1] [--churn 1.5]

Limit: within 3 % of the loss without churn."""

from __future__ import annotations

import argparse

from peer.lab.sim.run import Wish, simulate
from peer.lab.sim.swarm import SimulatedSwarm
from peer.observe import events
from peer.run.manifest import default_text, derive

Curve = list[tuple[int, float]]
"""(applied tokens times elements of the swarm, mean loss), in order of time."""


def curve(seed: int, peers: int, hours: float, churn: float) -> Curve:
    watched = list[SimulatedSwarm]()
    settings = [f"seed={seed}", "sync.preset=noloco", "sync.clock=seconds", "sync.sync_every=60"]
    wish = Wish(
        peers=peers,
        manifest=derive(default_text(), settings),
        hours=hours,
        link="home",
        churn=churn,
        speeds=20.0,
        step_seconds=10.0,
        trainer="tiny",
    )
    simulate(wish, watched.append)
    return _curve(watched[0], settled_s=0.1 * hours * 3600)


def _curve(swarm: SimulatedSwarm, settled_s: float) -> Curve:
    journal = sorted(
        ((at, peer.number, event) for peer in swarm.peers for at, event in zip(peer.times, peer.events, strict=True)),
        key=lambda line: line[:2],
    )
    applied, latest, found = 0, dict[int, float](), Curve()
    for at, number, event in journal:
        if isinstance(event, events.RoundEnded):
            applied += event.applied
        if isinstance(event, events.Evaluated):
            latest[number] = event.loss
            if at >= settled_s:
                found.append((applied, sum(latest.values()) / len(latest)))
    return found


def at(applied: int, of: Curve) -> float:
    """The loss there, on the line between its neighbours."""
    before = max((point for point in of if point[0] <= applied), default=of[0])
    after = min((point for point in of if point[0] > applied), default=of[-1])
    if after[0] <= before[0]:
        return before[1]
    part = (applied - before[0]) / (after[0] - before[0])
    return before[1] + part * (after[1] - before[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--churn", type=float, default=1.5)
    given = parser.parse_args()
    print(f"{given.peers} peers, {given.hours:g} h, {given.churn:g} departures a peer and hour")
    print("seed  applied, of without churn  loss without churn  loss with churn  difference")
    for seed in range(given.seeds):
        calm = curve(seed, given.peers, given.hours, 0.0)
        rough = curve(seed, given.peers, given.hours, given.churn)
        applied, loss = rough[-1]
        beside = at(applied, calm)
        print(f"{seed:>4}  {applied / calm[-1][0]:>25.1%}  {beside:>18.4f}  {loss:>15.4f}  {loss / beside - 1:>+10.2%}")


if __name__ == "__main__":
    main()
