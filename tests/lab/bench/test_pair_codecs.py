"""The replicas of the pair codecs' benchmark: what a codec loses and takes is told of each payload."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.pair_codecs import mean_row
from benchmarks.pair_replicas import PEERS, PairRun, Size, wire_of
from peer.run.sections import LlamaSection
from peer.trainer.data import Corpus

SIZE, ROUNDS = Size(LlamaSection(), steps=2, batch=1, lr=4e-3), 2


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    text = np.random.default_rng(0).integers(0, 64, 4000).astype(np.uint8)
    return Corpus(text[:3000], text[3000:], "0" * 64)


def test_codecs_are_measured_next_to_the_one_that_is_sent(corpus: Corpus) -> None:
    run = PairRun(SIZE, corpus, 0, ROUNDS, wire_of("fp32"), [wire_of(name) for name in ("bf16", "modulo7", "modulo6")])
    run.play(lambda line: None)

    assert {name: len(found) for name, found in run.found.items()} == dict.fromkeys(run.found, ROUNDS * PEERS)
    assert len(run.distances) == ROUNDS * PEERS // 2
    means = {name: mean_row(found) for name, found in run.found.items()}
    assert [means[name][0] for name in ("fp32", "bf16")] == [32.0, 16.0]
    assert 7.25 <= means["modulo7"][0] < 8.5
    errors = {name: row[2] for name, row in means.items()}
    assert errors["fp32"] == 0.0
    assert 1.7 < errors["modulo6"] / errors["modulo7"] < 2.3, "a bit is a factor of two"


def test_replicas_in_files_learn_what_those_in_memory_do(corpus: Corpus, tmp_path: Path) -> None:
    made = [PairRun(SIZE, corpus, 0, ROUNDS, wire_of("modulo7"), (), files) for files in (None, tmp_path)]
    for run in made:
        run.play(lambda line: None)

    assert len(list(tmp_path.iterdir())) == 5 * PEERS
    for one, other in zip(made[0].replicas, made[1].replicas, strict=True):
        assert torch.equal(one.outer.params, other.outer.params)
    assert not torch.equal(made[0].replicas[0].outer.params, made[0].replicas[1].outer.params)
