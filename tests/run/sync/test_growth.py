from __future__ import annotations

import itertools
import tomllib
from typing import Any

import numpy as np
import pytest

from peer.errors import ManifestError
from peer.identity import Identity
from peer.protocol.policy.amendments import RunPolicy
from peer.run.manifest import default_text, derive, parse_manifest, write_new
from peer.run.resolve import resolve
from peer.run.schema import Manifest


def made(*settings: str) -> Manifest:
    return parse_manifest(derive(default_text(), settings).encode())


def refused(text: str) -> str:
    with pytest.raises(ManifestError) as error:
        parse_manifest(text.encode())
    return error.value.found


def by_the_formula(manifest: Manifest) -> list[int]:
    """Return the lengths of all rounds, computed only from section 3 of the paper and the manifest's fields."""
    fields, total = manifest.optimizer, manifest.train.total_rounds
    growth_lr = resolve(manifest.sync).growth_lr
    lengths = list[int]()
    while (begun := sum(lengths)) < total:
        fall = max(0.0, (begun / total - fields.warmup_fraction) / (1 - fields.warmup_fraction))
        end = fields.final_fraction
        lr = fields.lr * (end + (1 - end) * (1 + np.cos(np.pi * fall)) / 2)
        lengths.append(min(max(1, int((growth_lr / lr) ** 2)), total - begun))
    return lengths


def lengths_of(manifest: Manifest) -> list[int]:
    clock = resolve(manifest.sync).round_clock()
    ends = [clock.due_at(round_) for round_ in range(-1, manifest.rounds)]
    return [round((end - begun) / clock.round_length) for begun, end in itertools.pairwise(ends)]


@pytest.mark.parametrize(
    "settings",
    [
        ["sync.preset=qsr"],
        ["sync.preset=qsr", "total_rounds=500", "warmup_fraction=0.2", "final_fraction=0"],
        ["growth_lr=0.006"],
        ["sync.preset=streaming-diloco", "growth_lr=0.01", "optimizer.lr=5e-3", "sync_every=300"],
    ],
)
def test_a_new_manifest_holds_the_lengths_of_its_rounds(settings: list[str]) -> None:
    manifest = made(*settings)
    assert manifest.format == 4
    assert manifest.rounds < manifest.train.total_rounds
    assert lengths_of(manifest) == by_the_formula(manifest)


def test_growth_is_made_anew_with_what_it_follows_from() -> None:
    text = derive(default_text(), ["sync.preset=qsr"])
    longer = parse_manifest(derive(text, ["total_rounds=200"]).encode())
    assert lengths_of(longer) == by_the_formula(longer)
    slower = parse_manifest(derive(text, ["optimizer.lr=1e-3"]).encode())
    assert lengths_of(slower) == by_the_formula(slower)
    assert slower.sync.growth != parse_manifest(text.encode()).sync.growth
    assert parse_manifest(derive(text, ["sync.preset=diloco"]).encode()).sync.growth is None


def test_growth_that_never_comes_is_written_too() -> None:
    manifest = made("growth_lr=1e-6")
    assert manifest.sync.growth == ()
    assert manifest.rounds == manifest.train.total_rounds


def test_many_changes_keep_the_lines_short_and_come_back() -> None:
    text = derive(default_text(), ["sync.preset=qsr", "total_rounds=100000", "final_fraction=0"])
    manifest = parse_manifest(text.encode())
    assert manifest.sync.growth is not None
    assert len(manifest.sync.growth) > 100
    assert max(map(len, text.splitlines())) < 256
    assert derive(text, []) == text


def test_what_is_signed_is_what_is_played(tmp_path: Any) -> None:
    signed = write_new(tmp_path / "run.toml", Identity.generate(), ["sync.preset=qsr"])
    assert tomllib.loads(signed.raw.decode())["sync"]["growth"] == [list(c) for c in signed.manifest.sync.growth or ()]
    assert resolve(signed.manifest.sync).round_clock().growth == signed.manifest.sync.growth


def test_a_program_takes_the_growth_that_is_written_and_computes_none() -> None:
    """The cosine of another machine may round to another integer, which would give other rounds."""
    text = 'format = 3\n[train]\ntotal_rounds = 10\n[sync]\npreset = "qsr"\ngrowth = [[2, 4]]\n'
    assert lengths_of(parse_manifest(text.encode())) == [1, 1, 4, 4]


@pytest.mark.parametrize(
    ("sync", "found"),
    [
        ('preset = "qsr"', r"sync.growth_lr: the growth of the rounds is missing. Write growth = [["),
        ('preset = "qsr"\ngrowth = [[2, 3]]', "sync.growth: round 4 would end after the run: 2 of its 3 lengths fit"),
        ('preset = "qsr"\ngrowth = [[5, 2], [5, 1]]', "sync.growth: the rounds of the changes must ascend"),
        ("growth = [[2, 4]]", "sync.growth: rounds grow with growth_lr only"),
        ('preset = "qsr"\ngrowth = [[2, 0]]', "sync.growth.0.1: Input should be greater than or equal to 1"),
        ('preset = "qsr"\ngrowth = [[2.5, 1]]', "sync.growth.0.0: Input should be a valid integer"),
        ('preset = "qsr"\ngrowth = [[2]]', "sync.growth.0.1: Field required"),
        ('preset = "none"\ngrowth_lr = 1.0', "preset none is the control and takes no growth_lr"),
        ("growth_lr = 0.0", "sync.growth_lr: Input should be greater than 0"),
    ],
)
def test_growth_that_cannot_be_is_a_finding(sync: str, found: str) -> None:
    assert found in refused(f"format = 3\n[train]\ntotal_rounds = 10\n[sync]\n{sync}\n")


def test_a_run_that_grows_has_a_bounded_length() -> None:
    text = 'format = 3\n[train]\ntotal_rounds = 1000001\n[sync]\npreset = "qsr"\n'
    assert "train.total_rounds: a run whose rounds grow has at most 1,000,000" in refused(text)


def test_an_older_format_has_no_growth() -> None:
    text = 'format = 2\n[train]\ntotal_rounds = 10\n[sync]\npreset = "qsr"\ngrowth = [[2, 4]]\n'
    found = refused(text)
    assert "sync.preset: needs format = 3" in found
    assert "sync.growth: needs format = 3" in found


def test_rounds_of_unequal_steps_need_the_format_too() -> None:
    text = '[sync]\npreset = "streaming-noloco"\nclock = "steps"\nsync_every = {}\n'
    assert parse_manifest(("format = 1\n" + text.format(8)).encode()).format == 1
    assert "sync.fragments: needs format = 3" in refused("format = 2\n" + text.format(7))
    assert parse_manifest(("format = 3\n" + text.format(7)).encode()).format == 3
    assert made("sync.preset=streaming-noloco", "clock=steps", "sync_every=7").format == 4


def test_no_amendment_moves_the_rounds() -> None:
    """No amendment may change a value from which the round clock is made."""
    assert not {"growth", "growth_lr", "sync_every", "total_rounds"} & set(RunPolicy.__slots__)
