"""A loop of a custom model, whose params are judged by the user's loss. The test plays the daemon, as in test_loop."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor, nn

from peer.attached.judging import NO_LOSS
from peer.attached.loop import AttachedTrainer
from peer.attached.own_loss import HOLDOUT_SOURCE, MOST_BATCHES, TOO_FEW, TOO_LATE, Loss, UpcomingBatches
from peer.attached.params import trained_tensors
from peer.errors import PeerError, UsageError
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.pair.probe_verdict import ProbeLosses, judge
from peer.run.files.artifact import ArtifactRef
from peer.run.sections import CustomSection, DataSection
from peer.trainer.arena import Arena, CounterFile
from peer.trainer.config import TrainerConfig
from peer.trainer.ipc import Message
from peer.trainer.probing.files import probe_file
from tests.attached.test_loop import PlayedDaemon

Batch = tuple[Tensor, Tensor]


class Classifier(nn.Module):
    """A model with everything that an evaluation could disturb: dropout, running means and a frozen part."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 6).requires_grad_(requires_grad=False)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(self.frozen(inputs))
        return outputs


def loss(model: Any, batch: Batch) -> Tensor:
    """Return the cross-entropy for disturbed inputs, and change every state that a loss could change."""
    inputs, labels = batch
    model.train(mode=random.random() < 2 and bool(np.random.random() < 2))
    with torch.no_grad():
        model.layers[1].running_mean += 1
    return F.cross_entropy(model(inputs + torch.randn_like(inputs)), labels)


def batches(seed: int = 0) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randn(16, 6, generator=generator), torch.randint(0, 3, (16,), generator=generator)


class CustomLoop:
    """A loop that trains `Classifier`, with a daemon that plays a script, and with its next batches drawn ahead."""

    def __init__(
        self,
        folder: Path,
        loss: Loss | None,
        script: Callable[[PlayedDaemon], None],
        holdout: Sequence[Batch] = (),
    ) -> None:
        torch.manual_seed(0)
        self.model, self.folder, self.faults = Classifier(), folder, list[PeerError]()
        named = trained_tensors(self.model)
        self.layout = Layout.whole(tuple(TensorSpec(name, tuple(one.shape)) for name, one in named.items()))
        reference = ArtifactRef(digest=64 * "0", size=9)
        config = TrainerConfig(
            model=CustomSection(kind="custom", parameters=self.layout.elements, layout=reference),
            data=DataSection(kind="own"),
            sync_every=5,
            seed=0,
            peer_id="me",
        )
        self.opening = {
            "config": config.model_dump(mode="json"),
            "tensors": list(named),
            "shapes": [list(one.shape) for one in named.values()],
            "fragments": self.layout.fragments,
            "folder": str(folder),
        }
        CounterFile(folder, 1)
        self.arena = Arena(folder, self.layout, create=True)
        self.arena.inn.copy_(self.flat)

        def start(round_: int) -> PlayedDaemon:
            return PlayedDaemon(folder, script)

        self.trainer = AttachedTrainer(
            self.model,
            [],
            start,  # type: ignore[arg-type]
            confirm=lambda *_: None,
            on_fault=self.faults.append,
            loss=loss,
            holdout=holdout,
        )
        self.batches = self.trainer.upcoming.prefetch(batches())

    @property
    def flat(self) -> Tensor:
        return torch.cat([one.detach().reshape(-1) for one in trained_tensors(self.model).values()])

    def run(self) -> None:
        """Join, and make steps until the daemon ends the run. Each step adds 0.5 to the params."""
        self.trainer.join()
        next(self.batches)
        for _ in range(1000):
            if self.trainer.over:
                break
            with torch.no_grad():
                for one in trained_tensors(self.model).values():
                    one.add_(0.5)
            with torch.autocast("cpu", torch.bfloat16):
                self.trainer.stepped(16)
                assert torch.is_autocast_enabled("cpu")
                assert torch.is_grad_enabled()
        assert self.trainer.over
        self.trainer.leave(1.0)

    def state(self) -> dict[str, Any]:
        """Return the state that an evaluation must not change."""
        return {
            "tensors": {name: one.clone() for name, one in self.model.state_dict().items()},
            "training": [one.training for one in self.model.modules()],
            "random": (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()),  # type: ignore[index]
        }

    def expect(self, values: Tensor, seed: int, on: Sequence[Batch] | None = None) -> list[float]:
        """Return the losses of batches with these values, computed with a copy of the model.

        `on`: the batches; None: those that were drawn ahead."""
        model, found = copy.deepcopy(self.model), list[float]()
        torch.nn.utils.vector_to_parameters(values, trained_tensors(model).values())
        for number, batch in enumerate(self.trainer.upcoming.drawn if on is None else on):
            torch.manual_seed(seed + number)
            found.append(float(loss(model, batch).detach()))
        return found


def differs(one: Any, other: Any) -> str:
    """Return the names of the parts in which two states differ."""
    for name in one["tensors"]:
        if not torch.equal(one["tensors"][name], other["tensors"][name]):
            return name
    if not torch.equal(one["random"][0], other["random"][0]):
        return "random generator of torch"
    return (
        "" if (one["training"], one["random"][1:]) == (other["training"], other["random"][1:]) else "training, random"
    )


def open_and_start(daemon: PlayedDaemon, loop: CustomLoop) -> Message:
    """Start the loop, and have it held in round 0 after five steps."""
    daemon.post(loop.opening)
    daemon.start(0)
    return daemon.work(0)


def probe(daemon: PlayedDaemon, loop: CustomLoop, partner: Tensor, **more: Any) -> Message:
    partner.numpy().tofile(probe_file(loop.folder, 0))
    terms = {"fragment": 0, "in_place": True, "seed": 7, "share": 1.0, "taken": 0.5, "within_s": 60.0}
    return daemon.call("probe", **(terms | more))


def test_a_probe_has_the_losses_of_all_candidates_and_leaves_no_trace(tmp_path: Path) -> None:
    found: dict[str, Any] = {}

    def script(daemon: PlayedDaemon) -> None:
        open_and_start(daemon, loop)  # the loop is held now, so that its state can be read here
        before, partner = loop.state(), 2 * loop.flat
        found["expected"] = {
            "base": loop.expect(loop.arena.inn, 7),
            "own": loop.expect(loop.arena.out, 7),
            "partner": loop.expect(partner, 7),
            "mixed": loop.expect(loop.arena.out.lerp(partner, 0.25), 7),
        }
        before["random"] = loop.state()["random"]
        found["probe"] = probe(daemon, loop, partner)
        found["evaluation"] = daemon.call("evaluate", number=1)
        found["own evaluation"] = daemon.call("evaluate", own=True, number=2)
        found["weigh"] = daemon.call("weigh", seed=3, within_s=60.0)
        found["differs"] = differs(before, loop.state())
        found["expected state"] = loop.expect(loop.arena.inn, 3)
        daemon.post({"op": "over", "code": 0})

    loop = CustomLoop(tmp_path, loss, script)
    loop.run()
    assert found["differs"] == ""
    answer = found["probe"]
    assert {name: answer[name] for name in found["expected"]} == found["expected"]
    assert len(answer["own"]) == MOST_BATCHES
    assert answer["guess"] == float("inf")
    assert found["weigh"]["windows"] == found["expected state"]
    assert found["evaluation"]["tokens"] == MOST_BATCHES
    assert found["evaluation"]["loss"] != found["own evaluation"]["loss"]
    assert loop.faults == []


def test_a_partner_that_lies_is_refused_by_the_loss_and_an_honest_one_is_not(tmp_path: Path) -> None:
    found: dict[str, Any] = {}

    def plain(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    def script(daemon: PlayedDaemon) -> None:
        open_and_start(daemon, loop)
        own, generator = loop.arena.out, torch.Generator().manual_seed(1)
        noise = torch.randn(own.numel(), generator=generator)
        partners = {"near": own + 1e-3 * noise, "noise": 30 * noise, "NaN": torch.full_like(own, torch.nan)}
        for name, partner in partners.items():
            answer = probe(daemon, loop, partner)
            losses = {key: tuple(answer[key]) for key in ("base", "own", "mixed", "partner")}
            found[name] = judge(ProbeLosses(**losses, guess=answer["guess"], source=answer["source"]))
        daemon.post({"op": "over", "code": 0})

    loop = CustomLoop(tmp_path, plain, script)
    loop.run()
    assert {name: verdict.accepted for name, verdict in found.items()} == {"near": True, "noise": False, "NaN": False}
    assert "batches that this loop trains on next" in found["noise"].reason
    assert found["NaN"].nonsense


def test_a_loss_that_fails_is_reported_once_and_changes_nothing(tmp_path: Path) -> None:
    found: dict[str, Any] = {}

    def failing(model: nn.Module, batch: Batch) -> Tensor:
        raise RuntimeError("no such key")

    def script(daemon: PlayedDaemon) -> None:
        open_and_start(daemon, loop)
        before = loop.state()
        found["answers"] = [probe(daemon, loop, loop.flat) for _ in range(2)]
        found["evaluation"] = daemon.call("evaluate", own=True, number=1)
        found["differs"] = differs(before, loop.state())
        daemon.post({"op": "over", "code": 0})

    loop = CustomLoop(tmp_path, failing, script)
    loop.run()
    assert found["answers"] == 2 * [{"why": "loss(model, batch) raised RuntimeError: no such key"}]
    assert found["evaluation"]["tokens"] == 0
    assert found["differs"] == ""
    assert [type(fault) for fault in loop.faults] == [UsageError]
    assert loop.faults[0].fix


@pytest.mark.parametrize(("given", "why"), [(None, NO_LOSS), (loss, TOO_LATE)])
def test_without_loss_or_time_the_answer_says_why(tmp_path: Path, given: Loss | None, why: str) -> None:
    found = list[Message]()

    def script(daemon: PlayedDaemon) -> None:
        open_and_start(daemon, loop)
        found.append(probe(daemon, loop, loop.flat, within_s=-1.0))
        daemon.post({"op": "over", "code": 0})

    loop = CustomLoop(tmp_path, given, script)
    loop.run()
    assert found == [{"why": why}]


def test_a_state_is_not_weighed_before_the_first_batch(tmp_path: Path) -> None:
    found = list[Message]()

    def script(daemon: PlayedDaemon) -> None:
        daemon.post(loop.opening)
        found.append(daemon.call("weigh", seed=1, within_s=60.0))
        open_and_start(daemon, loop)
        daemon.post({"op": "over", "code": 0})

    loop = CustomLoop(tmp_path, loss, script)
    loop.run()
    assert found == [{"why": TOO_FEW}]


def test_a_holdout_weighs_a_state_before_the_first_batch_and_serves_evaluations(tmp_path: Path) -> None:
    found, holdout = dict[str, Any](), list(islice(batches(5), MOST_BATCHES + 2))

    def script(daemon: PlayedDaemon) -> None:
        daemon.post(loop.opening)
        found["weigh"] = daemon.call("weigh", seed=3, within_s=60.0)
        found["expected"] = loop.expect(loop.arena.inn, 3, holdout[:MOST_BATCHES])
        open_and_start(daemon, loop)
        found["own"] = daemon.call("evaluate", own=True, number=2)
        found["expected own"] = loop.expect(loop.flat, 0, holdout)
        daemon.post({"op": "over", "code": 0})

    loop = CustomLoop(tmp_path, loss, script, holdout)
    loop.run()
    assert found["weigh"]["windows"] == found["expected"]
    assert found["weigh"]["source"] == HOLDOUT_SOURCE
    assert found["own"]["tokens"] == len(holdout)
    assert found["own"]["loss"] == pytest.approx(sum(found["expected own"]) / len(holdout), rel=1e-6)


def test_batches_keep_their_order_and_an_error_waits_for_those_before_it() -> None:
    def numbers(count: int) -> Iterator[int]:
        yield from range(count)
        raise UsageError("exhausted", "Give more.")

    upcoming = UpcomingBatches()
    given = upcoming.prefetch(numbers(MOST_BATCHES + 3))
    assert list(islice(given, 2)) == [0, 1]
    assert upcoming.drawn == list(range(2, 2 + MOST_BATCHES))
    assert list(islice(given, MOST_BATCHES + 1)) == list(range(2, MOST_BATCHES + 3))
    with pytest.raises(UsageError, match="exhausted"):
        next(given)
    few = upcoming.prefetch(numbers(3))
    assert list(islice(few, 3)) == [0, 1, 2]
    with pytest.raises(UsageError, match="exhausted"):
        next(few)


def test_an_infinite_guess_passes_through_the_socket() -> None:
    assert json.loads(json.dumps({"guess": float("inf")})) == {"guess": float("inf")}
