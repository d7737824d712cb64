"""A process that stops for a while in a swarm that continues: the rounds it missed are reported, and it returns."""

from __future__ import annotations

import pytest

from peer.lab.sim.faults import Fault
from peer.lab.sim.setting import SwarmSetting, SwarmWorld, layout_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.observe import events
from peer.protocol.schedule import RoundClock
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from tests.support.invariants import Witness
from tests.support.seeds import seeds

ROUND_S = 20.0
ROUNDS = 12
STOPPED_AT, STOPPED_S = 71.0, 95.0


@pytest.mark.parametrize("stops", [True, False])
def test_who_was_never_stopped_takes_no_long_round_for_a_sleep(stops: bool) -> None:
    async def main() -> SimulatedSwarm:
        swarm = SimulatedSwarm(
            4,
            SwarmSetting(
                method=resolve(SyncSection(preset="noloco", clock="seconds", sync_every=300.0)),
                rounds=RoundClock("seconds", 300.0, 1, EPOCH),
                total_rounds=3,
                seed=1,
            ),
            SwarmWorld(stops=stops),
            step_seconds=1.0,
        )
        await swarm.run()
        return swarm

    for peer in run_virtual(main()).peers:
        told = list(zip(peer.times, peer.events, strict=True))
        assert not [event for _, event in told if isinstance(event, events.Woke)]
        due = [at for at, event in told if isinstance(event, events.RoundDue)]
        assert due == pytest.approx([300.0, 600.0, 900.0], abs=1.1), "at the end of a step; none waits for a refresh"


@pytest.mark.parametrize("preset", ["noloco", "diloco"])
@pytest.mark.parametrize("seed", seeds(1, 5))
def test_a_stopped_peer_skips_what_it_slept_through_and_goes_on(preset: str, seed: int) -> None:
    print(f"seed {seed} preset {preset}")
    method = resolve(SyncSection(preset=preset, clock="seconds", sync_every=ROUND_S))

    async def main() -> tuple[SimulatedSwarm, Witness]:
        swarm = SimulatedSwarm(
            6,
            SwarmSetting(
                method=method,
                rounds=RoundClock("seconds", ROUND_S, 1, EPOCH),
                total_rounds=ROUNDS,
                seed=seed,
                layout=layout_of(method, 16 if preset == "noloco" else 256),
            ),
            step_seconds=1.0,
        )
        witness = Witness(swarm)
        await swarm.run([Fault(kind="stall", peer=seed, at=STOPPED_AT, seconds=STOPPED_S)])
        return swarm, witness

    swarm, witness = run_virtual(main())
    assert witness.broken() == []
    sleeper = swarm.peers[seed]
    told = list(zip(sleeper.times, sleeper.events, strict=True))
    ((at, woke),) = [(at, event) for at, event in told if isinstance(event, events.Woke)]
    assert at == pytest.approx(STOPPED_AT + STOPPED_S, abs=1.0), "noticed within a beat"
    assert woke.seconds == pytest.approx(STOPPED_S, abs=1.0)
    (skipped,) = [event for _, event in told if isinstance(event, events.Skipped)]
    assert skipped.reason.startswith("was stopped for 9")
    assert (skipped.from_round, skipped.to_round) == (4, int((STOPPED_AT + STOPPED_S) / ROUND_S))
    assert not any(isinstance(event, events.RoundMissed) and event.round in range(4, 8) for _, event in told)
    ended = [e.round for _, e in told if isinstance(e, events.RoundEnded) and e.outcome == "exchanged"]
    assert max(ended) == ROUNDS - 1, "and it exchanges again"
    assert all(not isinstance(event, events.Woke) for p in swarm.peers if p is not sleeper for event in p.events)
