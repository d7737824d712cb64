"""Two peers train a tiny model in virtual time, once with random pairs (NoLoCo) and once without any exchange.

Run it: python examples/two_peers_in_virtual_time.py

Both swarms train on the same batches with a shared random seed. Alone, each replica goes its own way. With pairs, the
replicas stay close together, so that they are one model in the end. An hour of the swarm takes a few seconds."""

from __future__ import annotations

from peer.lab.sim.report import Report
from peer.lab.sim.run import SimulationSettings, simulate
from peer.run.manifest import default_text, derive


def train(preset: str, hours: float = 0.5) -> Report:
    """Simulate two peers on cable lines that exchange once per minute."""
    settings = [f"sync.preset={preset}", "sync.clock=seconds", "sync.sync_every=60", "seed=1"]
    manifest = derive(default_text(), settings)
    return simulate(SimulationSettings(peers=2, manifest=manifest, hours=hours, link="cable", trainer="tiny"))


def main() -> None:
    print(f"{'preset':8}  {'loss':>14}  {'exchanged':>9}  {'spread':>6}")
    for preset in ("noloco", "none"):
        report = train(preset)
        loss = f"{report.loss_first:.2f} -> {report.loss_last:.2f}"
        print(f"{preset:8}  {loss:>14}  {report.exchanged:>9}  {report.spread:>6.3f}")
        assert report.ledger_imbalance == 0, "work was lost or counted twice"


if __name__ == "__main__":
    main()
