"""The methods of a comparison get equal tokens, and must have the same task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from peer.errors import UsageError
from peer.lab.compare.entries import Entry, entries_of
from peer.run.manifest import default_text, derive


def lengths(entries: tuple[Entry, ...]) -> dict[str, tuple[int, int]]:
    trains = {entry.name: entry.manifest.train for entry in entries}
    return {name: (train.total_rounds, train.eval_every) for name, train in trains.items()}


def real(*given: str, steps: int | None = None, settings: tuple[str, ...] = ()) -> tuple[Entry, ...]:
    return entries_of(given, settings, peers=4, steps=steps, step_seconds=None)


def written(folder: Path, name: str, *settings: str) -> str:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(derive(default_text(), ["sync.clock=steps", "sync.sync_every=20", *settings]))
    return str(file)


def test_rounds_differ_where_a_round_is_shorter() -> None:
    assert lengths(real("diloco", "streaming-diloco", "none")) == {
        "diloco": (80, 5),
        "streaming-diloco": (160, 10),
        "none": (80, 5),
    }


def test_steps_are_those_of_the_first_and_the_others_get_its_tokens(tmp_path: Path) -> None:
    wide = written(tmp_path, "wide.toml", "train.batch=8")
    assert lengths(real("noloco", wide, steps=320)) == {"noloco": (16, 1), "wide": (8, 1)}
    assert lengths(real(wide, "noloco", steps=320)) == {"wide": (16, 1), "noloco": (32, 2)}


def test_rounds_that_grow_end_with_the_steps_and_are_evaluated_as_often() -> None:
    """`total_rounds` counts rounds of the first length; a run whose rounds grow has fewer."""
    _, grown = real("diloco", "qsr", steps=2000)
    manifest = grown.manifest
    rounds, ends = manifest.rounds, grown.method.round_clock()

    assert manifest.train.total_rounds == 100 > rounds
    assert sum(ends.steps_of(round_) for round_ in range(rounds)) == 2000
    assert 12 <= rounds // manifest.train.eval_every <= 20


@pytest.mark.parametrize("fragments", [3, 4])
def test_uneven_rounds_end_with_the_steps(tmp_path: Path, fragments: int) -> None:
    """Rounds of 6 and 7 steps, and of 5. The number of rounds is a multiple of the fragments only if the steps are a
    multiple of `sync_every`."""
    cut = written(tmp_path, "cut.toml", "sync.preset=streaming-noloco", f"sync.fragments={fragments}")
    _, uneven = real("noloco", cut, steps=100)
    rounds, ends = uneven.manifest.rounds, uneven.method.round_clock()

    assert rounds == 5 * fragments
    assert sum(ends.steps_of(round_) for round_ in range(rounds)) == 100


def test_a_seed_changes_nothing_else() -> None:
    entry = real("noloco")[0]
    assert derive(entry.seeded(7), ["seed=0"]) == derive(entry.text, ["seed=0"])
    assert replace(entry, text=entry.seeded(7)).manifest.seed == 7


def test_seconds_are_steps_of_virtual_time(tmp_path: Path) -> None:
    timed = written(tmp_path, "timed.toml", "sync.clock=seconds", "sync.sync_every=60", "train.total_rounds=10")
    entries = entries_of([timed, "noloco"], [], peers=4, steps=None, step_seconds=0.5)
    assert lengths(entries) == {"timed": (10, 1), "noloco": (60, 6)}


def test_names_are_short_where_they_differ(tmp_path: Path) -> None:
    files = [written(tmp_path / folder, "run.toml") for folder in "ab"]
    assert [entry.name for entry in real(files[0], "none")] == ["run", "none"]
    assert [entry.name for entry in real(*files)] == files


@pytest.mark.parametrize(
    ("given", "steps", "fix"),
    [
        (("noloco", "noloco"), None, "once"),
        (("noloco", "diloco"), 30, "multiple"),
        (("noloco",) * 17, None, "from 1 to 16"),
        ((), None, "from 1 to 16"),
    ],
)
def test_what_cannot_be_compared_is_refused(given: tuple[str, ...], steps: int | None, fix: str) -> None:
    with pytest.raises(UsageError) as refused:
        real(*given, steps=steps)
    assert fix in refused.value.fix


def test_a_mistyped_preset_is_told_the_presets() -> None:
    with pytest.raises(UsageError, match="nolocko is neither a preset nor a file") as refused:
        real("nolocko")
    assert "noloco, streaming-noloco" in refused.value.fix


def test_real_swarms_count_steps() -> None:
    with pytest.raises(UsageError, match="unequally") as refused:
        real("noloco", settings=("sync.clock=seconds",))
    assert "--virtual" in refused.value.fix


@pytest.mark.parametrize(
    ("change", "virtual", "differs"),
    [
        ("data.kind=text", False, "data"),
        ("train.context=32", False, "train.context"),
        ("train.eval_windows=64", False, "train.eval_windows"),
        ("optimizer.lr=1e-3", True, "optimizer"),
        ("train.batch=8", True, "train.batch"),
        ("optimizer.lr=1e-3", False, ""),
        ("model.num_hidden_layers=2", False, ""),
    ],
)
def test_losses_that_do_not_compare_are_refused(tmp_path: Path, change: str, virtual: bool, differs: str) -> None:
    given = ["noloco", written(tmp_path, "other.toml", change)]
    if not differs:
        assert len(real(*given)) == 2
        return
    with pytest.raises(UsageError, match=f"differ in {differs}"):
        entries_of(given, [], peers=4, steps=None, step_seconds=1.0 if virtual else None)
