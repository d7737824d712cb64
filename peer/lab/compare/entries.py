"""The methods that `peer compare` plays: manifests of one task, all cut to the same number of tokens.

Two baselines are not manifests: `single` is one peer alone with the tokens of one peer, and `ddp` is one model that
takes the batches of all peers in every step, i.e. synchronous data-parallel training. Both are swarms of one peer that
exchanges nothing, so that they are trained and evaluated by the same code as all others."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from peer.errors import UsageError
from peer.lab.localswarm.plan import DEFAULT_SETTINGS
from peer.lab.run_sources import BaseManifest
from peer.methods.method import Method
from peer.methods.registry import PRESETS
from peer.methods.sgd import CONTROL
from peer.run.manifest import Manifest, default_text, derive, parse_manifest, read_text
from peer.run.overrides import with_sections
from peer.run.resolve import resolve

SINGLE, DDP = "single", "ddp"
BASELINES = (SINGLE, DDP)
MOST_ENTRIES = 16
EVALUATIONS = 16
"""Approximate number of evaluations of a swarm after its start."""
OF_ONE_TASK = ("data", "tokenizer")
"""Sections that have to agree between manifests, otherwise the losses would not be comparable."""
OF_ONE_HOLDOUT = ("context", "eval_windows")
"""Keys of [train] that have to agree as well."""
NOT_IN_VIRTUAL_TIME = ("model", "optimizer")
"""Sections that a simulation does not use, because it has its own model and optimizer."""
NOT_TRAINED_IN_VIRTUAL_TIME = ("batch",)
"""Keys of [train] that a simulation does not use."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One method of a comparison."""

    name: str
    """Its name in the table: the manifest's file name or the preset."""
    text: str
    """TOML text with the length of the comparison."""
    base: BaseManifest
    """The manifest from which it is derived."""
    peers: int
    """Number of its peers: 1 for a baseline."""
    batches: int = 1
    """Number of peers' batches that one step takes: those of all peers for `ddp`. In a real swarm the manifest's batch
    already includes them."""

    @property
    def has_fewer_tokens(self) -> bool:
        """True for `single`, which trains on the tokens of one peer; all other entries have those of all peers."""
        return self.name == SINGLE

    @property
    def manifest(self) -> Manifest:
        return parse_manifest(self.text.encode())

    @property
    def method(self) -> Method:
        return resolve(self.manifest.sync)

    def seeded(self, seed: int) -> str:
        """Return its manifest's TOML text with this seed."""
        return derive(self.text, [f"seed={seed}"])


def entries_of(
    given: Sequence[str], settings: Sequence[str], *, peers: int, steps: int | None, step_seconds: float | None
) -> tuple[Entry, ...]:
    """Read the manifests, apply `settings` to each, and cut all to the same number of tokens per peer.

    given: manifest files, names of presets (the tiny built-in run with that preset), or baselines (the task of the
    first entry that is no baseline). peers: of a swarm. steps: inner steps of a peer in the first entry; the others get
    the same number of tokens. None: as in its manifest. step_seconds: seconds of an inner step in virtual time. None:
    real swarms.

    Raises UsageError if the losses would not be comparable, ManifestError for an invalid manifest."""
    if not 1 <= len(given) <= MOST_ENTRIES:
        raise UsageError(f"{len(given)} methods cannot be compared", f"Name from 1 to {MOST_ENTRIES} manifests.")
    methods = [text for text in given if text not in BASELINES]
    bases = {text: _base(text) for text in methods or ["none"]}
    task = next(iter(bases.values()))
    changes = ["start=0", *settings]  # a swarm begins when it is ready
    virtual = step_seconds is not None
    read = [
        _baseline(text, task, changes, peers, virtual)
        if text in BASELINES
        else Entry(name, derive(bases[text].text, changes), bases[text], peers)
        for text, name in zip(given, _names(given), strict=True)
    ]
    _check_clocks(read, virtual)
    _check_task(read, virtual)
    first = next((entry for entry in read if not entry.batches > 1), read[0])
    whole = _steps_of(first, step_seconds) if steps is None else steps
    tokens = whole * _tokens_a_step(first.manifest)
    every = max(1, first.manifest.train.total_rounds // EVALUATIONS) if steps is None else 0
    between = (every * _round_steps(first, step_seconds) or whole / EVALUATIONS) * _tokens_a_step(first.manifest)
    return tuple(_cut(entry, tokens, between, step_seconds) for entry in read)


def _base(given: str) -> BaseManifest:
    """Read a manifest or a preset. Raises UsageError for a name that is neither a preset nor a file, and ManifestError
    for an unreadable file."""
    if given in PRESETS:
        return BaseManifest(derive(default_text(), [*DEFAULT_SETTINGS, f"sync.preset={given}"]))
    if not Path(given).exists():
        raise UsageError(
            f"{given} is neither a preset nor a file",
            f"The presets are {', '.join(PRESETS)}, and the baselines {' and '.join(BASELINES)}.",
        )
    return BaseManifest(read_text(Path(given)), Path(given))


def _baseline(name: str, task: BaseManifest, changes: Sequence[str], peers: int, virtual: bool) -> Entry:
    """Return a baseline of this task. It keeps the rounds of the task's method, so that it is evaluated equally
    often."""
    text = derive(task.text, changes)
    manifest = parse_manifest(text.encode())
    method, train = resolve(manifest.sync), tomllib.loads(text).get("train", {})
    length = method.round_length if method.round_length == int(method.round_length) else method.sync_every
    sync = {"preset": CONTROL, "clock": method.clock, "sync_every": int(length) if length == int(length) else length}
    batches = peers if name == DDP else 1
    if not virtual:
        train = train | {"batch": manifest.train.batch * batches}
    return Entry(name, with_sections(text, {"sync": sync, "train": train}), task, 1, batches)


def baseline_in_words(name: str, peers: int) -> str:
    """Return a sentence that explains a baseline by comparison with a swarm of `peers` peers."""
    if name == SINGLE:
        return f"{SINGLE}: one peer alone, with one of {peers} parts of a swarm's tokens"
    return f"{DDP}: one model that takes the batches of all {peers} peers in each step; no exchange of it is played"


def _names(given: Sequence[str]) -> list[str]:
    """Return a name for each entry, short if the short names differ. Raises UsageError for an entry given twice."""
    short = [text if text in (*PRESETS, *BASELINES) else Path(text).stem for text in given]
    names = short if len(set(short)) == len(short) else list(given)
    if twice := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"{min(twice)} is named twice", "Name each manifest once.")
    return names


def _check_clocks(entries: Sequence[Entry], virtual: bool) -> None:
    """Raise UsageError for round clocks in seconds in real swarms, where the load of the machine would decide how much
    each method trains."""
    timed = [entry.name for entry in entries if entry.method.clock == "seconds"]
    if timed and not virtual:
        raise UsageError(
            f"{timed[0]} counts rounds in seconds, so the methods would train unequally much on this machine",
            "Add --set sync.clock=steps --set sync.sync_every=20, or --virtual.",
        )


def _check_task(entries: Sequence[Entry], virtual: bool) -> None:
    """Raise UsageError for manifests whose losses cannot be compared."""
    first = entries[0].manifest
    sections = OF_ONE_TASK + (NOT_IN_VIRTUAL_TIME if virtual else ())
    keys = OF_ONE_HOLDOUT + (NOT_TRAINED_IN_VIRTUAL_TIME if virtual else ())
    for entry in entries[1:]:
        other = entry.manifest
        unlike = [name for name in sections if getattr(other, name) != getattr(first, name)]
        unlike += [f"train.{name}" for name in keys if getattr(other.train, name) != getattr(first.train, name)]
        if unlike:
            why = "virtual time plays [sync] alone" if virtual else "their losses do not compare"
            raise UsageError(
                f"{entry.name} and {entries[0].name} differ in {', '.join(unlike)}: {why}",
                "Give both the same." if not virtual else "Give both the same, or leave --virtual out.",
            )


def _tokens_a_step(manifest: Manifest) -> int:
    """Return the tokens in one inner step of a peer."""
    return manifest.train.batch * manifest.train.context


def _round_steps(entry: Entry, step_seconds: float | None) -> float:
    method = entry.method
    return method.round_length / (step_seconds or 1.0) if method.clock == "seconds" else method.round_length


def _steps_of(entry: Entry, step_seconds: float | None) -> int:
    return round(entry.manifest.train.total_rounds * _round_steps(entry, step_seconds))


def _cut(entry: Entry, tokens: int, between: float, step_seconds: float | None) -> Entry:
    """Set the number of rounds and the evaluation interval of an entry. `between`: approximate tokens of a peer between
    two evaluations. Raises UsageError if the tokens are no whole number of rounds."""
    manifest, length = entry.manifest, _round_steps(entry, step_seconds)
    a_step = _tokens_a_step(manifest)
    if step_seconds is None:
        a_step //= entry.batches
    steps = tokens / a_step
    rounds = round(steps / length)
    exact = manifest.sync.clock == "seconds" or abs(rounds * length - steps) < 1e-6
    if rounds < 1 or not exact:
        raise UsageError(
            f"{entry.name}: {steps:g} inner steps are no whole number of its rounds of {length:g}",
            "Give --steps a multiple of every method's sync_every.",
        )
    cut = replace(entry, text=derive(entry.text, [f"train.total_rounds={rounds}"]))
    steps_a_round = steps / cut.manifest.rounds  # the mean, if rounds grow
    every = max(1, round(between / (a_step * steps_a_round)))
    return replace(cut, text=derive(cut.text, [f"train.eval_every={every}"]))
