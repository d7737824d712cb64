"""What do faults cost in loss, and how surely is that known? The plans of `benchmarks/chaos.py`, seed after seed, in
the simulator, whose trainer really learns under the falling learning rate that runs have. Three swarms a seed:

* with the faults;
* without, as `chaos.py` has it: it does more in a round, for nobody is away, so at equal applied tokens its learning
  rate stands higher than that of the swarm with faults;
* without, each trainer slower by what the faults took: equal tokens in the same rounds, and the same rates.

Losses are means over the peers' last evaluations of outer_params, the controls' by interpolation at the tokens that
the swarm with faults had applied in all. A third control, of other batches and otherwise as the slower one, shows what
chance alone does.

    .venv/bin/python -m benchmarks.chaos_loss [--preset streaming-diloco] [--seeds 20] [--minutes 10] [--every 20]

`stall_trainer` is left out of the plans: a virtual trainer has no steps to be stopped between."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.chaos import Curve, curve_of, loss_at
from peer.lab.sim.fault_profiles import chaos_plan, parse_profile
from peer.lab.sim.faults import Fault
from peer.lab.sim.learning_trainer import TENSORS, TinyTrainer, first_params
from peer.lab.sim.links import PROFILES
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.trainer import VirtualTrainer
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.observe.events import RoundEnded
from peer.protocol.model.fragments import cut
from peer.protocol.model.layout import Layout
from peer.protocol.schedule import RoundClock
from peer.run.presets import resolve
from peer.run.sections import OptimizerSection, SyncSection
from peer.trainer.optimizer import progress_of, schedule

RATE = OptimizerSection()


class Falling(TinyTrainer):
    """Its learning rate follows the rounds, as the real trainer's does."""

    total_rounds = 1

    def _train(self, steps: int) -> float:
        wished, rate = self.lr_scales[-1], progress_of(self.round, self.step_in_round, None, self.total_rounds)
        self._loop.lr_scale = wished * schedule(rate, RATE.warmup_fraction, RATE.final_fraction)
        return super()._train(steps)


@dataclass(frozen=True, slots=True)
class Played:
    curve: Curve
    applied: float
    """By all, tokens x elements."""


def play(given: argparse.Namespace, seed: int, faults: Iterable[Fault], step_s: float, data: str = "peer") -> Played:
    section = SyncSection(preset=given.preset, clock="seconds", sync_every=given.sync_every)
    method = resolve(section)
    rounds = RoundClock("seconds", given.sync_every, method.fragments, EPOCH)
    total = int(given.minutes * 60 / method.round_length)
    pattern = "whole" if method.schedule == "full" else method.fragment_layout
    layout = cut(TENSORS, fragments=method.fragments, pattern=pattern, apart=method.fragments_apart)

    def trainer(number: int, layout: Layout, clock: VirtualClock) -> VirtualTrainer:
        made = Falling(layout, clock, step_seconds=step_s, seed=seed, data=f"{data} {number}")
        made.total_rounds = total
        return made

    async def main() -> SimulatedSwarm:
        swarm = SimulatedSwarm(
            given.peers,
            method=method,
            rounds=rounds,
            total_rounds=total,
            seed=seed,
            layout=layout,
            links=PROFILES["lan"],
            eval_every=3,
            first=first_params(seed, layout),
            make_trainer=trainer,
        )
        await swarm.run(faults)
        return swarm

    events = [event for peer in run_virtual(main()).peers for event in peer.events]
    return Played(curve_of(events), float(sum(event.applied for event in events if isinstance(event, RoundEnded))))


def at(tokens: float, of: Curve) -> float:
    """The loss there; beyond the curve, that of its nearest end."""
    found = loss_at(of, tokens)
    return found if found is not None else (of[-1] if tokens > of[-1][0] else of[0])[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="streaming-diloco")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--every", type=float, default=20.0)
    parser.add_argument("--sync-every", type=float, default=10.0)
    parser.add_argument("--step-seconds", type=float, default=0.2)
    given = parser.parse_args()
    seconds = given.minutes * 60
    print("seed  faults  tokens, of the control's   loss  beside: the control  a slower one (tokens)  other batches")
    differences: list[tuple[float, float, float]] = []
    for seed in range(given.seeds):
        plan = chaos_plan(parse_profile(f"all@{given.every}"), seed, given.peers, seconds, given.sync_every)
        plan = tuple(fault for fault in plan if fault.kind != "stall_trainer")
        rough = play(given, seed, plan, given.step_seconds)
        calm = play(given, seed, (), given.step_seconds)
        part = rough.applied / calm.applied
        slow = play(given, seed, (), given.step_seconds / part)
        other = play(given, seed, (), given.step_seconds / part, data="another")
        tokens, loss = rough.curve[-1]
        beside = [loss / at(tokens, one.curve) - 1 for one in (calm, slow)]
        chance = slow.curve[-1][1] / other.curve[-1][1] - 1
        differences.append((beside[0], beside[1], chance))
        print(
            f"{seed:>4}  {len(plan):>6}  {part:>24.1%}  {loss:.4f}  {beside[0]:>+20.2%}"
            f"  {beside[1]:>+13.2%} {slow.applied / rough.applied:>7.1%}  {chance:>+13.2%}",
            flush=True,
        )
    for name, found in zip(("the control", "a slower one", "chance"), zip(*differences, strict=True), strict=True):
        error = statistics.stdev(found) / len(found) ** 0.5 if len(found) > 1 else float("nan")
        beyond = sum(one > 0.02 for one in found)
        print(f"{name}: mean {statistics.fmean(found):+.2%} +- {error:.2%}, {beyond} of {len(found)} beyond +2 %")


if __name__ == "__main__":
    main()
