"""One rank of a training loop, for test_ranks.py: python -m tests.attached.rank_program CASE RANK WORLD FOLDER.

A thread plays rank 0's daemon. The last line of the output is the result as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import peer
from peer.attached.params import trained_tensors
from peer.attached.rank_tensors import LeadTensors
from peer.attached.swarm import Swarm
from peer.errors import PeerError
from peer.protocol.model.layout import Layout, TensorSpec
from peer.run.ticket import Ticket
from peer.trainer.arena import Arena, CounterFile
from tests.attached.test_loop import OPENING, PlayedDaemon

TICKET = Ticket(
    bytes(32), ("/ip4/192.0.2.1/tcp/4810/p2p/12D3KooWGRUfT4ouqGeQ5ZN6GuHAdX7FpzvFnWvJbYp9Dqzo1cbV",)
).encode()
VOCABULARY, LENGTH, BATCH, STEPS, ROUNDS = 101, 6, 12, 2, 5


class Net(nn.Module):
    """A model whose tensors have 101, 23, 7 and 2 rows, which ranks cannot share evenly. Of 2 rows, a third rank gets
    none."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 7)
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(7, 23), nn.GELU(), nn.Linear(23, 7)) for _ in range(2)])
        self.narrow = nn.Sequential(nn.Linear(7, 2), nn.Linear(2, 7))
        self.head = nn.Linear(7, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.layers(self.embedding(tokens))
        logits: Tensor = self.head(hidden + self.narrow(hidden))
        return logits


def wrapped(case: str, world: int) -> tuple[nn.Module, Layout]:
    """Return the case's model, and the layout of the run: two fragments."""
    torch.manual_seed(0)
    model = Net(tied=case == "tied")
    tensors = tuple(TensorSpec(name, tuple(one.shape)) for name, one in trained_tensors(model).items())
    layout = Layout(tensors, ((0, 3), (3, len(tensors))))
    if case == "compiled":
        return torch.compile(model, backend="eager"), layout  # type: ignore[return-value]
    if case.startswith("ddp"):
        return DistributedDataParallel(model), layout
    if case.startswith("fsdp2"):
        mesh = init_device_mesh("cpu", (world,))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model, layout


def flat(model: nn.Module) -> Tensor:
    """Return the complete params in the order of the layout."""
    whole = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in trained_tensors(model).values()]
    return torch.cat([one.detach().reshape(-1) for one in whole]).clone()


def batch(step: int, rank: int, world: int) -> Tensor:
    """Return this rank's part of the batch of a step, which is the same for any number of ranks."""
    whole = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(step))
    return whole.chunk(world)[rank]


class Program:
    """The program of one rank."""

    def __init__(self, case: str, rank: int, world: int, folder: Path) -> None:
        self.case, self.rank, self.world, self.folder = case, rank, world, folder
        self.model, self.layout = wrapped(case, world)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.optimizer.register_step_post_hook(lambda *_: self.note_truth())  # before the hook of `join`
        self.truth = torch.zeros(0)
        self.steps = 0
        self.found: dict[str, Any] = {"exact": [], "merged": [], "works": [], "states": []}
        self.daemons = list[RankDaemon]()
        if rank == 0:
            CounterFile(folder, len(self.layout.fragments))
            self.arena = Arena(folder, self.layout, create=True)

    def note_truth(self) -> None:
        self.truth = flat(self.model)

    def join(self, script: Callable[[RankDaemon], None], **given: Any) -> Swarm:
        def start(*_: Any) -> RankDaemon:
            self.daemons.append(RankDaemon(self, script))
            return self.daemons[-1]

        with mock.patch("peer.attached.swarm.DaemonChild", start):
            return peer.join(TICKET, self.model, self.optimizer, home=self.folder / "home", **given)

    def step(self, swarm: Swarm) -> None:
        tokens = batch(self.steps, self.rank, self.world)
        loss = F.cross_entropy(self.model(tokens).flatten(0, 1), tokens.flatten())
        swarm.log(loss=loss)
        swarm.count(tokens)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1

    def train(self, swarm: Swarm) -> None:
        """Train to the end, and compare the arena with the params of all ranks."""
        arena = Arena(self.folder, self.layout, create=False)
        round_ = swarm.round
        while not swarm.over:
            self.step(swarm)
            if swarm.round != round_:
                start, end = self.layout.fragment_span(round_ % 2)
                self.found["exact"].append(torch.equal(arena.out[start:end], self.truth[start:end]))
                expected = self.truth.clone()
                expected[start:end] = arena.inn[start:end]
                self.found["merged"].append(torch.equal(flat(self.model), expected))
                self.found["states"].append([swarm.round, swarm.tokens, swarm.peers, swarm.progress, swarm.lr_factor])
                round_ = swarm.round

    # -- cases -------------------------------------------------------------------------------------------------------

    def exact(self) -> None:
        with self.join(play) as swarm:
            self.found["first"] = bool((flat(self.model) == 0.03).all())
            self.train(swarm)
        if self.rank == 0:
            (self.folder / "final.json").write_text(json.dumps(self.truth.tolist()))

    def same(self) -> None:
        """Begin with the model's own values, and train in rounds whose outer step has no effect."""
        own = flat(self.model)
        if self.rank == 0:
            self.arena.inn.copy_(own)
        with self.join(lambda daemon: play(daemon, factor=1.0, first=None)) as swarm:
            self.train(swarm)
        last = flat(self.model)
        if self.rank == 0:
            (self.folder / "final.json").write_text(json.dumps([own.tolist(), last.tolist()]))

    def save(self) -> None:
        def script(daemon: RankDaemon) -> None:
            play(daemon, rounds=3, over=False)
            (self.folder / "saved").mkdir()
            daemon.call("save", folder=str(self.folder / "saved"))
            daemon.post({"op": "over", "code": 0})

        with self.join(script) as swarm:
            self.train(swarm)
        torch.save(self.optimizer.state_dict(), self.folder / f"optimizer-{self.rank}.pt")
        torch.save(flat(self.model), self.folder / "params.pt")

    def restore(self) -> None:
        def script(daemon: RankDaemon) -> None:
            daemon.open()
            self.arena.inn.fill_(0.03)
            daemon.start(3, resume=str(self.folder / "saved"))
            play(daemon, rounds=1, opened=True, first=None)

        with self.join(script) as swarm:
            params = torch.load(self.folder / "params.pt")
            self.found["params"] = torch.equal(flat(self.model), params)
            self.found["run"] = bool((flat(self.model) == 0.03).all())
            if (file := self.folder / f"optimizer-{self.rank}.pt").exists():
                before = torch.load(file, weights_only=False)["state"]  # our own file: not only tensors
                now = self.optimizer.state_dict()["state"]
                self.found["optimizer"] = before.keys() == now.keys() and all(
                    torch.equal(parts(before[index][name]), parts(now[index][name]))
                    for index in before
                    for name in before[index]
                )
            while not swarm.over:
                self.step(swarm)

    def dead(self) -> None:
        """The rank of the case's number ends in its third step, after the collectives of torch."""
        with self.join(lambda daemon: play(daemon, rounds=9)) as swarm:
            while True:
                if self.steps == 2 and self.rank == int(self.case[-1]):
                    self.optimizer.register_step_pre_hook(lambda *_: os._exit(9))
                self.step(swarm)

    def mismatch(self) -> None:
        with self.join(lambda daemon: play(daemon, rounds=9)) as swarm:
            self.step(swarm)
            if self.rank:
                swarm.evaluate()
            else:
                swarm.step()  # a training step would wait for rank 1 in a collective of torch

    def live(self) -> None:
        """Rank 0 gets the live params of all ranks for an evaluation.

        A result that waits for its step is merged with its own values, although the daemon reuses its slot
        meanwhile."""
        result = 0.25

        def script(daemon: RankDaemon) -> None:
            self.arena.inn.fill_(0.03)
            daemon.open()
            daemon.start(0)
            work = daemon.call(**{**daemon.order(0), "steps": STEPS, "hold": False})
            self.arena.in_slot(0).fill_(result)
            terms = {"alpha": 0.5, "after_steps": 0, "after": time.monotonic() + 1e6, "shift": False}
            daemon.post({"id": 0, "op": "apply", "fragment": 0, "base": work["processed"], "next_round": 1, **terms})
            daemon.call("clear")
            self.arena.in_slot(0).fill_(float("nan"))
            daemon.post({"op": "hold"})
            daemon.post({"op": "over", "code": 0})

        with self.join(script) as swarm:
            if self.rank == 0:
                trainer: Any = swarm._trainer
                trainer._judging.judge = LiveJudge(self, trainer.params)
            seen = list[float]()
            while not swarm.over:
                self.step(swarm)
                if not torch.equal(now := flat(self.model), self.truth):
                    _, end = self.layout.fragment_span(0)
                    self.truth[:end].mul_(0.5).add_(result / 2)
                    self.found["halved"] = torch.equal(now, self.truth)
                seen += [swarm.evaluate(), swarm.evaluate()]
        self.found["seen"] = seen

    def refused(self) -> None:
        """Each way of training that is not supported raises an error that names it, on each rank."""
        from torch.distributed.optim import ZeroRedundancyOptimizer  # its import warns, which fails a test

        mesh = init_device_mesh("cpu", (self.world,))
        parallel = Net(tied=False)
        parallelize_module(parallel, mesh, {"head": ColwiseParallel()})
        zero = ZeroRedundancyOptimizer(self.model.parameters(), torch.optim.AdamW, lr=1e-3)
        cases: dict[str, Callable[[], Any]] = {
            "tensor parallel": lambda: peer.join(TICKET, parallel, None),
            "fsdp1": lambda: peer.join(
                TICKET, FullyShardedDataParallel(Net(tied=False), device_id=torch.device("cpu")), None
            ),
            "zero": lambda: peer.join(TICKET, self.model, zero),
            "loss": lambda: peer.join(TICKET, self.model, self.optimizer, loss=lambda model, one: 0.0),
        }
        with mock.patch.dict(os.environ, {"LOCAL_WORLD_SIZE": "1"}):
            self.found["hosts"] = sentence(lambda: peer.join(TICKET, self.model, self.optimizer))
        self.found |= {name: sentence(call) for name, call in cases.items()}

    def other_model(self) -> None:
        """A difference on one rank ends `join` on all."""
        if self.rank:
            self.model.head = nn.Linear(8, VOCABULARY, bias=False)
        self.found["error"] = sentence(lambda: self.join(lambda daemon: daemon.open()))


def sentence(call: Callable[[], Any]) -> str:
    try:
        call()
    except PeerError as error:
        return error.found
    return "nothing was raised"


def parts(value: Any) -> Tensor:
    part: Tensor = value.to_local() if hasattr(value, "to_local") else torch.as_tensor(value)
    return part


class RankDaemon(PlayedDaemon):
    """Plays the daemon. The outer step of its rounds multiplies a fragment by a constant."""

    def __init__(self, program: Program, script: Callable[[RankDaemon], None]) -> None:
        self.program = program
        super().__init__(program.folder, script)  # type: ignore[arg-type]

    def open(self) -> None:
        layout = self.program.layout
        shapes = {"tensors": [one.name for one in layout.tensors], "shapes": [one.shape for one in layout.tensors]}
        self.post({**OPENING, **shapes, "fragments": layout.fragments, "folder": str(self.folder)})

    def round(self, round_: int, factor: float) -> None:
        fragment, arena = round_ % 2, self.program.arena
        work = self.call(**{**self.order(round_), "fragment": fragment, "steps": STEPS})
        self.program.found["works"].append([work["steps"], work["tokens"], work["loss"]])
        arena.in_slot(fragment).copy_(arena.out_slot(fragment) * factor)
        terms = {"alpha": 0.0, "after_steps": None, "after": None, "shift": False}
        self.call("apply", fragment=fragment, base=work["processed"], next_round=round_ + 1, **terms)


def play(
    daemon: RankDaemon,
    *,
    rounds: int = ROUNDS,
    factor: float = 0.5,
    first: float | None = 0.03,
    opened: bool = False,
    over: bool = True,
) -> None:
    """Play a whole run. `first`: the value that all params get in its first state; None: the values in the arena."""
    if first is not None:
        daemon.program.arena.inn.fill_(first)
    if not opened:
        daemon.open()
        daemon.start(0)
    for round_ in range(rounds):
        daemon.round(round_, factor)
    if over:
        daemon.post({"op": "over", "code": 0})


class LiveJudge:
    """A judge whose loss is 1 if rank 0 has the live params of all ranks, else 0."""

    holdout_awaited = False

    def __init__(self, program: Program, params: LeadTensors) -> None:
        self._program, self._params = program, params

    def evaluate(self, own: bool, given_up: Callable[[], bool]) -> dict[str, float]:
        live = torch.cat([one.reshape(-1) for one in self._params.whole_named().values()])
        return {"loss": float(torch.equal(live, self._program.truth))}


def main() -> None:
    case, rank, world, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    how, _, wrapper = case.partition(":")
    program = Program(wrapper or "plain", rank, world, folder)
    try:
        getattr(program, how)()
    except PeerError as error:
        program.found["raised"] = [type(error).__name__, error.found]
    print(json.dumps(program.found), flush=True)
    os._exit(0)  # no collective of torch at the end: another rank may be gone


if __name__ == "__main__":
    main()
