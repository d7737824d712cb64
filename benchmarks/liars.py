"""How much can one member of a group spoil by what it sends?

Promise 11: no stranger decides; one liar of eight costs the honest at most 2 % of loss. Bounds over the loss of eight
honest replicas: 0.5 % for ten times its work, 1.5 % for minus ten times, 2 % for anything else. About 20 s a row, and a
minute for the checkpoint.

    python -m benchmarks.liars [--seeds 2] [--attacks 10,-10,noise] [--tokens 1] [--spread 1] [--plain] [--json FILE]
                               [--results]

The real model and the production round loop play in virtual time, with the manifest of liars.toml. Its 8
replicas begin with a warm checkpoint, and do 150 steps with one exchange in 15 by `diloco`. One replica multiplies its
pseudo-gradients, or sends noise. The figures are the honest replicas' losses (nats a byte) over those of a swarm of
eight honest ones.

--tokens: the liar claims so many times the tokens that it did. --spread 20: the fastest machine is so many times as
fast as the slowest, in rounds counted in seconds. It shows what the bounds cost honest members. --plain: contributions
count as they come, without the robust mean."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import peer.exchange.group.reduce
from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.lab.sim.setting import SwarmSetting
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.observe.events import StandingLowered
from peer.protocol.model.layout import Layout
from peer.protocol.schedule import RoundClock
from peer.run.manifest import Manifest, derive, parse_manifest
from peer.run.model_layout import layout_for
from peer.run.presets import resolve
from peer.run.sections import LlamaSection
from peer.trainer.data import load_corpus
from peer.trainer.device import choose_device
from peer.trainer.inner_loop import InnerLoop
from peer.trainer.models.llama import first_params
from tests.support.lying_trainer import Lying
from tests.support.real_trainer import ModelTrainer, config_of

REGIME = Path(__file__).with_suffix(".toml")
REPLICAS, LIAR = 8, 3
MOST_PERCENT = {"10": 0.5, "-10": 1.5}
OTHER_PERCENT = 2.0
ABOUT = Benchmark(
    "liars",
    "How much can one member of a group of eight spoil by what it sends?",
    "11 (no stranger decides; one liar of eight costs the honest at most 2 % of loss)",
    smallest="--seeds 1 --attacks 10",
    is_long=True,
)
STEP_S = 0.4
STEPS, SYNC_EVERY = 150, 15
WARM = ("sync.sync_every=50", "train.total_rounds=10", "train.batch=16", "optimizer.lr=4e-3")
LYING = (f"sync.sync_every={SYNC_EVERY}", f"train.total_rounds={STEPS // SYNC_EVERY}", "train.batch=1")


class Liar(Lying, ModelTrainer):
    """See `tests.support.lying_trainer`."""


def manifest_of(preset: str, seed: int, settings: tuple[str, ...]) -> Manifest:
    return parse_manifest(derive(REGIME.read_text(), [f"sync.preset={preset}", f"seed={seed}", *settings]).encode())


def loop_of(manifest: Manifest, layout: Layout, params: Tensor) -> InnerLoop:
    config = config_of(manifest, "warm")
    corpus = load_corpus(config.data, None, config.train.context)
    return InnerLoop(config, layout, choose_device("cpu"), corpus, params)


def warmed(layout: Layout) -> Tensor:
    """The checkpoint that all begin from."""
    manifest = manifest_of("none", 0, WARM)
    assert isinstance(manifest.model, LlamaSection), manifest.model.kind
    loop = loop_of(manifest, layout, first_params(manifest.model, 0, layout))
    for round_ in range(manifest.train.total_rounds):
        loop.move_to(round_, 0)
        for _ in range(50):
            loop.step()
    return loop.params.clone()


def play(
    layout: Layout, first: Tensor, seed: int, attack: str, claims: int = 1, spread: float = 1.0
) -> tuple[float, int]:
    """The honest ones' loss, and how many of them held something against the liar. `spread`: the fastest machine's
    speed over the slowest's; rounds are then as long as fifteen steps of the middle one."""
    manifest = manifest_of("diloco", seed, LYING)
    method = resolve(manifest.sync)
    clock_kind: Literal["steps", "seconds"] = "steps" if spread == 1 else "seconds"
    length = SYNC_EVERY if spread == 1 else SYNC_EVERY * STEP_S

    def trainer(number: int, layout: Layout, clock: VirtualClock) -> ModelTrainer:
        made = (Liar if number == LIAR else ModelTrainer)(
            config_of(manifest, f"peer {number}"),
            layout,
            clock,
            step_seconds=STEP_S * spread ** (number / (REPLICAS - 1) - 0.5),
        )
        if isinstance(made, Liar):
            made.attack = None if attack == "noise" else float(attack)
        return made

    async def main() -> SimulatedSwarm:
        swarm = SimulatedSwarm(
            REPLICAS,
            SwarmSetting(
                method=method,
                rounds=RoundClock(clock_kind, length, 1, EPOCH),
                total_rounds=manifest.train.total_rounds,
                seed=seed,
                layout=layout,
                eval_every=1000,
                first=first,
                min_peers=REPLICAS,
            ),
            make_trainer=trainer,
        )
        claim(swarm, claims)
        await swarm.run()
        return swarm

    swarm = run_virtual(main())
    honest = [peer for peer in swarm.peers if peer.number != LIAR]
    judge, liar = loop_of(manifest, layout, first), swarm.peers[LIAR].peer_id
    blamed = sum(any(isinstance(e, StandingLowered) and e.peer == liar for e in peer.events) for peer in honest)
    return statistics.fmean(judge.evaluate(peer.outer.params).loss for peer in honest), blamed


def claim(swarm: SimulatedSwarm, times: int) -> None:
    """The liar's daemon says that it did so many times the tokens."""
    lives = swarm.peers[LIAR].lives
    transport = lives[-1].transport.group
    contribute = transport.contribute

    async def inflated(*args: object, **kwargs: object) -> object:
        to, opening, *rest = args
        object.__setattr__(opening, "tokens", times * opening.tokens)  # type: ignore[attr-defined]
        return await contribute(to, opening, *rest, **kwargs)  # type: ignore[arg-type]

    if times != 1:
        transport.contribute = inflated  # type: ignore[method-assign,assignment]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--attacks", default="10,-10,-1,noise")
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--spread", type=float, default=1.0)
    parser.add_argument("--plain", action="store_true")
    given = parsed(parser, ABOUT)
    torch.set_num_threads(1)
    if given.plain:
        setattr(peer.exchange.group.reduce, "factors", lambda norms, tokens: [1.0] * len(norms))  # noqa: B010
    layout = layout_for(manifest_of("diloco", 0, LYING).model, resolve(manifest_of("diloco", 0, LYING).sync))
    first = warmed(layout)
    rows, over = list[list[float | str]](), dict[str, list[float]]()
    for seed in range(given.seeds):
        honest, _ = play(layout, first, seed, "1", spread=given.spread)
        rows.append([seed, "none", honest, 0.0, 0])
        for attack in filter(None, given.attacks.split(",")):
            loss, blamed = play(layout, first, seed, attack, given.tokens, given.spread)
            more = 100 * (loss / honest - 1) if math.isfinite(loss) else math.inf
            over.setdefault(attack, []).append(more)
            rows.append([seed, attack, loss, more, blamed])
            print(*rows[-1], flush=True)
    figures = [
        Figure(
            f"{attack} times its work" if attack != "noise" else attack, "% of loss", max(found), bound(given, attack)
        )
        for attack, found in over.items()
    ]
    heads = ["seed", "attack", "loss", "% over honest", "honest members that lowered its standing"]
    publish(given, ABOUT, figures, Table("", heads, rows), variant="claiming" if given.tokens != 1 else "")


def bound(given: Any, attack: str) -> float | None:
    """Percent; None where the question is another one: unequal machines, no robust mean."""
    if given.spread != 1 or given.plain:
        return None
    return MOST_PERCENT.get(attack, OTHER_PERCENT) if given.tokens == 1 else OTHER_PERCENT


if __name__ == "__main__":
    main()
