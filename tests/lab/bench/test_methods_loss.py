"""The table of losses by method: it uses the product's trainer, gives all methods equal tokens, and chooses learning
rates by the mean over seeds."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from benchmarks import methods_loss
from benchmarks.methods_loss import (
    BATCH,
    CONTEXT,
    METHODS,
    PEERS,
    SEEDS,
    SYNC_EVERY,
    LossRun,
    best,
    differences,
    figures,
    play,
    rows_of,
    tables,
)
from benchmarks.result import RESULTS, ROOT
from peer.methods.registry import PRESETS
from peer.run.sections import LlamaSection
from peer.trainer.config import TrainerConfig
from peer.trainer.data import Corpus
from peer.trainer.device import choose_device
from peer.trainer.inner_loop import InnerLoop
from peer.trainer.models.llama import first_params, layout_of

pytestmark = pytest.mark.nightly


@pytest.fixture(autouse=True)
def _few_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods_loss, "EVAL_WINDOWS", 16)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    text = np.random.default_rng(0).integers(0, 64, 40_000).astype(np.uint8)
    return Corpus(text[:30_000], text[30_000:], "0" * 64)


def test_a_peer_that_exchanges_nothing_ends_where_the_products_inner_loop_ends(corpus: Corpus) -> None:
    run = LossRun(1, "none", 6e-3, 1)
    manifest, losses = run.manifest, []
    assert isinstance(manifest.model, LlamaSection)
    for peer in range(PEERS):
        config = TrainerConfig.of(manifest, f"peer-{peer}")
        params = first_params(manifest.model, 1)
        loop = InnerLoop(config, layout_of(manifest.model), choose_device("cpu", "fp32"), corpus, params)
        for step in range(SYNC_EVERY):
            loop.move_to(0, step)
            loop.step()
        losses.append(loop.evaluate(loop.params).loss)

    assert play(run, corpus)["loss"] == pytest.approx(np.mean(losses), abs=2e-6)


@pytest.mark.parametrize("method", ["streaming-noloco", "qsr"])
def test_a_method_gets_its_tokens_and_sends_what_is_computed(corpus: Corpus, method: str) -> None:
    record = play(LossRun(1, method, 4e-3, 0), corpus)

    assert record["tokens"] == PEERS * SYNC_EVERY * BATCH * CONTEXT
    assert record["exchanged"] > 0
    assert [figure.name for figure in figures([record]) if figure.holds is False] == []


def test_every_preset_is_in_the_table() -> None:
    assert set(PRESETS) <= set(METHODS)
    for method in METHODS:
        manifest = LossRun(20, method, 4e-3, 0).manifest
        assert method.startswith(manifest.sync.preset)
        assert manifest.optimizer.kind == ("muon" if "muon" in method else "adamw")


def test_rounds_of_qsr_grow_at_every_rate() -> None:
    grown = [LossRun(20, "qsr", lr, 0).manifest for lr in (2e-3, 4e-3, 8e-3)]

    assert grown[0].sync.growth == grown[1].sync.growth == grown[2].sync.growth
    assert 1 < grown[0].rounds < 20


# -- the summary -------------------------------------------------------------------------------------------------------


def record(method: str, lr: float, seed: int, loss: float | None) -> dict[str, Any]:
    sent = {"bytes_each": 2.0, "bytes_computed": 2.0, "bytes_a_parameter": 40.0, "exchanged": 80}
    tokens = PEERS * 20 * SYNC_EVERY * BATCH * CONTEXT
    return {**asdict(LossRun(20, method, lr, seed)), "loss": loss, "tokens": tokens, "ledger": 0, **sent}


def test_each_method_has_the_rate_that_is_best_over_the_seeds() -> None:
    """A rate that is better for one seed only, lacks a seed, or diverged once is not chosen."""
    losses: dict[float, list[float | None]] = {2e-3: [2.0, 2.0, 2.6], 4e-3: [2.1, 2.1, 2.1], 6e-3: [1.0, 1.0, None]}
    records = [record("none", 4e-3, seed, 2.0 + seed) for seed in SEEDS]
    records += [record("diloco", lr, seed, loss) for lr, some in losses.items() for seed, loss in enumerate(some)]
    records += [record("diloco", 8e-3, seed, 1.0) for seed in SEEDS[:2]]

    assert [(one["lr"], one["loss"]) for one in best(records, "diloco")] == [(4e-3, 2.1)] * 3
    assert differences(records, "diloco") == pytest.approx([5.0, -30.0, -47.5])
    assert [(row[0], row[1], round(row[6], 6)) for row in rows_of(records)] == [("diloco", 4e-3, 5), ("none", 4e-3, 0)]


def test_a_method_that_lacks_a_rate_is_not_called_tuned() -> None:
    records = [record(name, lr, seed, 2.0) for name in ("none", "diloco") for lr in (4e-3, 8e-3) for seed in SEEDS]
    records += [record("noloco", 4e-3, seed, 1.9) for seed in SEEDS]

    assert [[row[0] for row in table.rows] for table in tables(records)] == [
        ["noloco", "none", "diloco"],
        ["none", "diloco"],
        ["none", "diloco"],
    ]


@pytest.mark.parametrize(("change", "broken"), [({"tokens": 1}, "tokens"), ({"ledger": 1}, "ledger")])
def test_a_record_that_does_not_compare_breaks_a_bound(change: dict[str, int], broken: str) -> None:
    found = list(figures([record("diloco", 4e-3, 0, 2.0) | change]))

    assert [one.name.split()[0].strip(",") for one in found if one.holds is False] == [broken]


def test_the_page_on_methods_tells_what_was_measured() -> None:
    page = (ROOT / "docs" / "explanation" / "methods.md").read_text().partition("## Losses at equal tokens")[2]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in page.splitlines() if line[:3] == "| `"]
    measured = json.loads((RESULTS / "methods_loss.json").read_text())["tables"][0]["rows"]

    assert set(PRESETS) <= {row[0] for row in rows}
    assert [row[0] for row in rows] == [row[0] for row in measured]
    for told, found in zip(rows, measured, strict=True):
        assert float(told[1]) == pytest.approx(found[3], abs=6e-4)
        assert float(told[2].split()[0].replace("−", "-")) == pytest.approx(found[4], abs=0.051)
