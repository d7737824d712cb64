"""The baselines `single` and `ddp`, and the worth that is measured against `single` at several lengths."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from peer.lab.compare.curve import Curve, Mark, Row, SwarmCourse
from peer.lab.compare.entries import DDP, SINGLE, Entry, entries_of
from peer.lab.compare.result import compare, table
from peer.lab.compare.worth import Worth, Yardstick, measure, worths
from peer.lab.sim.tiny_model import TENSORS, TinyLoop, first_params
from peer.protocol.learning_rate import schedule
from peer.protocol.model.fragments import cut
from peer.trainer.config import TrainerConfig
from peer.trainer.data import Corpus
from peer.trainer.device import choose_device
from peer.trainer.inner_loop import InnerLoop
from peer.trainer.models import llama
from peer.trainer.models.factory import bind, decays

SMALL = ("model.num_hidden_layers=2", "train.context=16", "train.batch=2", "sync.sync_every=10")


def entries(*given: str, virtual: bool = False, settings: tuple[str, ...] = (), steps: int = 80) -> dict[str, Entry]:
    found = entries_of(given, settings, peers=4, steps=steps, step_seconds=1.0 if virtual else None)
    return {entry.name: entry for entry in found}


# -- baselines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [("streaming-diloco", SINGLE, DDP), (DDP, SINGLE, "streaming-diloco")])
def test_a_baseline_has_the_task_and_the_steps_of_the_first_method(order: tuple[str, ...]) -> None:
    found = entries(*order, settings=("optimizer.lr=0.001", "train.batch=3"))
    single, ddp, method = (found[name] for name in (SINGLE, DDP, "streaming-diloco"))

    assert (single.peers, ddp.peers, method.peers) == (1, 1, 4)
    assert (single.manifest.train.batch, ddp.manifest.train.batch) == (3, 12)
    for baseline in (single, ddp):
        manifest = baseline.manifest
        assert manifest.sync.preset == "none"
        assert manifest.optimizer == method.manifest.optimizer
        assert manifest.rounds * baseline.method.round_length == 80
        assert manifest.train.eval_every == method.manifest.train.eval_every


def test_a_baseline_alone_has_the_built_in_task() -> None:
    assert entries(SINGLE)[SINGLE].manifest.train.total_rounds == 4


def test_in_virtual_time_the_manifests_stay_alike_and_the_trainer_takes_all_batches() -> None:
    ddp = entries("gossip", DDP, virtual=True)[DDP]
    assert (ddp.batches, ddp.manifest.train.batch) == (4, entries("gossip")["gossip"].manifest.train.batch)
    assert ddp.manifest.train.total_rounds == 4


def test_the_tiny_trainer_applies_the_mean_of_the_gradients() -> None:
    layout = cut(TENSORS, fragments=1, pattern="whole")
    first = first_params(7, layout)

    def loop(data: str, *more: str) -> TinyLoop:
        return TinyLoop(layout, first, seed=7, data=data, more=more)

    apart, together = [loop(name) for name in ("a", "b")], loop("a", "b")
    losses = [one.step() for one in apart]
    assert together.step() == pytest.approx(sum(losses) / 2)
    assert together.mean == pytest.approx((apart[0].mean + apart[1].mean) / 2, abs=1e-7)
    assert not np.allclose(together.params, apart[0].params)


def test_ddp_is_a_plain_loop_with_the_batch_of_all_over_fifty_steps() -> None:
    manifest = entries("gossip", DDP, settings=SMALL, steps=50)[DDP].manifest
    text = np.random.default_rng(0).integers(0, 64, 40_000).astype(np.uint8)
    config = TrainerConfig(
        model=manifest.model,
        train=manifest.train,
        optimizer=manifest.optimizer,
        clock="steps",
        sync_every=10,
        seed=3,
        peer_id="a",
        device="cpu",
        precision="fp32",
    )
    layout = llama.layout_of(manifest.model)
    first = llama.first_params(manifest.model, 3)
    device = choose_device("cpu", "fp32")
    loop = InnerLoop(config, layout, device, Corpus(text[:30_000], text[30_000:], "0" * 64), first)
    batches = InnerLoop(config, layout, device, Corpus(text[:30_000], text[30_000:], "0" * 64), first).batches
    assert manifest.train.batch == 8

    flat = first.clone()
    model = llama.empty_model(manifest.model)
    bind(model, layout, flat)
    chosen, grouped = manifest.optimizer, ([], [])
    for param, decayed in zip(model.parameters(), decays(model), strict=True):
        grouped[decayed].append(param)
    groups = [{"params": grouped[1], "weight_decay": chosen.weight_decay}, {"params": grouped[0], "weight_decay": 0.0}]
    plain = torch.optim.AdamW(groups, lr=chosen.lr, betas=(chosen.beta1, chosen.beta2))
    for step in range(50):
        loop.move_to(*divmod(step, 10))
        loss = loop.step()
        windows = torch.from_numpy(batches.next().windows.astype(np.int64))
        expected = cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        plain.zero_grad()
        expected.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), chosen.clip)
        factor = schedule(step / 50, chosen.warmup_fraction, chosen.final_fraction)
        for group in plain.param_groups:
            group["lr"] = chosen.lr * factor * min(1.0, (step + 1) / 10)
        plain.step()
        assert loss == pytest.approx(float(expected.detach()), abs=1e-5)
    assert (loop.params - flat).abs().max() < 1e-5
    assert (first - flat).abs().max() > 1e-2


# -- worth -------------------------------------------------------------------------------------------------------------


def test_the_worth_is_read_between_two_lengths_of_single() -> None:
    yardstick = Yardstick({0: [(1.0, 2.0), (2.0, 1.8), (4.0, 1.7)]})
    assert yardstick.factor(0, 2.0) == 1.0
    assert yardstick.factor(0, 1.9) == pytest.approx(math.sqrt(2))
    assert yardstick.factor(0, 1.7) == pytest.approx(4)
    assert yardstick.factor(0, 1.6) == math.inf
    assert yardstick.factor(0, 2.1) == 0.0


def test_a_length_that_is_worse_than_a_shorter_one_is_passed_over() -> None:
    assert Yardstick({0: [(1.0, 2.0), (2.0, 2.1), (4.0, 1.8)]}).factor(0, 1.9) == pytest.approx(2)


def test_the_interval_is_students_over_the_seeds() -> None:
    found = Worth((1.0, 2.0, 3.0), None)
    assert (found.mean, found.half_width) == (2.0, pytest.approx(4.303 / math.sqrt(3)))
    assert Worth((1.5,), None).half_width is None
    assert Worth((1.0, math.inf), None).mean is None


def test_the_share_is_that_of_ddp() -> None:
    yardstick = Yardstick({0: [(1.0, 2.0), (2.0, 1.8), (4.0, 1.6)]})
    found = worths(yardstick, [0], {"gossip": [1.8], DDP: [1.6], "none": [2.0]})
    assert {name: one.share for name, one in found.items()} == {"gossip": 0.5, DDP: 1.0, "none": 0.25}
    assert worths(yardstick, [0], {"gossip": [1.8]})["gossip"].share is None


def curve(entry: Entry, seed: int) -> Curve:
    """Return a made-up curve: `single` halves its loss with each doubling of its length, and `gossip` is worth three of
    it."""
    rounds = entry.manifest.train.total_rounds
    worth = {SINGLE: 1.0, "gossip": 3.0, DDP: 3.5, "none": 0.6}[entry.name] * rounds / 4
    tokens = 1000.0 * rounds * entry.peers
    return tuple(
        Mark(at, tokens * at / 2, 0.0, 1.0 * at, 4.0 - math.log2(worth) - 0.1 * seed + (2 - at), entry.peers)
        for at in (1, 2)
    )


def course(entry: Entry, seed: int) -> SwarmCourse:
    """Return the made-up curve with one row at its end."""
    found = curve(entry, seed)
    return SwarmCourse(found, (Row(2, 1, "solo", found[-1].loss, 7, 0.0, 2.0),))


def test_single_is_played_until_it_has_the_loss_of_all_and_shorter_for_who_is_worse() -> None:
    played = list[tuple[str, int]]()

    def play(entry: Entry, seed: int) -> SwarmCourse:
        played.append((entry.name, entry.manifest.train.total_rounds))
        return course(entry, seed)

    found = entries("gossip", "none", SINGLE)
    outcome = compare(list(found.values())[:2], 4, (0, 1), "a test", play, None, found[SINGLE])

    assert [rounds for name, rounds in played if name == SINGLE] == [4, 4, 6, 6, 8, 8, 12, 12, 3, 3, 2, 2]
    worth = {one.entry.name: one.worth for one in outcome.standings}
    assert worth["gossip"] is not None
    assert worth["gossip"].values == pytest.approx((3.0, 3.0))
    assert worth["none"] is not None
    assert worth["none"].mean == pytest.approx(0.6, abs=0.02)
    lines = table(outcome).splitlines()
    assert any("single was played at 0.5 to 3 times" in line for line in lines)
    assert lines[-2].split()[-3:] == ["3.00", "0.00", "-"]
    assert outcome.to_json()["methods"][0]["worth"]["speed_up"] == pytest.approx(3.0)


def test_single_is_not_played_twice_at_the_length_of_the_others() -> None:
    played = list[int]()

    def play(entry: Entry, seed: int) -> SwarmCourse:
        played.append(entry.manifest.train.total_rounds)
        return course(entry, seed)

    found = entries("gossip", SINGLE)
    compare(list(found.values()), 4, (0,), "a test", play, None, found[SINGLE])
    assert played == [4, 4, 6, 8, 12]


def test_single_does_not_shorten_the_tokens_that_the_others_are_compared_at() -> None:
    found = entries("gossip", SINGLE)
    outcome = compare(list(found.values()), 4, (0,), "a test", course)
    assert outcome.tokens == 16_000
    assert "one of 4 parts of a swarm's tokens" in table(outcome)


def test_it_ends_at_twice_the_tokens_of_all_peers() -> None:
    single = entries("gossip", SINGLE)[SINGLE]
    far = replace(single, peers=1)
    found = measure(far, curve, (0,), {"gossip": [-100.0]}, 2)
    assert max(factor for factor, _ in found.losses[0]) == 4.0
    assert found.factor(0, -100.0) == math.inf


def test_each_swarm_has_its_rows_and_those_of_single_their_length() -> None:
    found = entries("gossip", SINGLE)
    outcome = compare(list(found.values()), 4, (0, 1), "a test", course, None, found[SINGLE])

    rows = outcome.to_json()["rows"]
    swarms = [("gossip", 4), (SINGLE, 4), ("gossip", 4), (SINGLE, 4)]
    swarms += [(SINGLE, length) for length in (6, 8, 12) for _ in (0, 1)]
    assert [(row["method"], row["total_rounds"]) for row in rows] == swarms
    assert [row["seed"] for row in rows] == [0, 0, 1, 1, *[0, 1] * 3]
    assert rows[0] == {
        "method": "gossip",
        "seed": 0,
        "total_rounds": 4,
        "round": 2,
        "peer": 1,
        "outcome": "solo",
        "loss": outcome.standings[0].losses[0],
        "tokens": 7,
        "bytes": 0,
        "seconds": 2.0,
    }
