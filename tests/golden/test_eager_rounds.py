"""Eager updates of the production coordinator under the virtual clock against the paper's equation, over ten periods.

Both count: the params of each trainer, and the state that all members share. Mutants show that the games notice an
error."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import numpy as np
import pytest

from peer.exchange.group import audit
from peer.exchange.group.strategy import GroupSession
from peer.lab.sim.links import Link
from peer.rounds.commit import RoundCommitter
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from tests.golden.reference import Differs, check, play
from tests.golden.test_coordinator import CUTS, Played, drawn, game_of, rounds_of, simulate, until_held

CODECS = {"codec": "fp32", "result_codec": "fp32"}
PLAIN = SyncSection(preset="eager", clock="steps", sync_every=6, **CODECS)
TWO = SyncSection(preset="eager", clock="steps", sync_every=6, outer_momentum=0.5, **CODECS)
THREE = SyncSection(
    preset="eager",
    clock="steps",
    sync_every=6,
    fragments=3,
    fragments_apart=False,
    fragment_layout="balanced",
    outer_lr=0.4,
    outer_momentum=0.9,
    **CODECS,
)
THIN = Link("thin", up=920.0, down=7000.0, latency_s=0.01)
"""A link on which an exchange takes as long as a round, but less than a period."""


def played(sync: SyncSection, members: int, link: Link | None = None) -> Played:
    """Run the game and compare every moment. Raises Differs."""
    method = resolve(sync)
    updates, first = drawn(members, method, members)
    found = simulate(method, members, updates, first, members, link)
    game = game_of(method, updates, first, found.swarm)
    assert game.meetings == ((tuple(range(members)),),) * rounds_of(method)
    expected = {at: moment for at, moment in play(game).items() if at[1] < len(updates)}
    check(until_held(found.trajectory, game), expected, game)
    return found


@pytest.mark.parametrize(("sync", "members"), [(PLAIN, 2), (TWO, 2), (TWO, 3), (THREE, 3)])
def test_ten_periods_are_the_papers_equation(sync: SyncSection, members: int) -> None:
    assert rounds_of(resolve(sync)) >= 20
    played(sync, members)


def test_an_exchange_as_long_as_a_round_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "CHANCE", 0.0)  # the line has no room for a shard that is fetched again
    found, (start, end) = played(TWO, 3, THIN), CUTS[2][0]
    at_due, before_next, in_the_end = (found.trajectory[0, step][1][start:end] for step in (3, 5, 8))
    assert np.array_equal(at_due, before_next)
    assert not np.array_equal(at_due, in_the_end)


MUTANTS: dict[str, tuple[type, str, str]] = {
    "a member more": (RoundCommitter, "/ self._strategy.members", "/ (self._strategy.members + 1)"),
    "nothing brought": (RoundCommitter, "apply(key, shift, 0, 0,", "apply(key, 0 * shift, 0, 0,"),
    "the mean merged too": (RoundCommitter, "return Merge(alpha=1.0)", "return ready.merge"),
    "its momentum lost": (RoundCommitter, "own.settle(spans, self._plan.method.outer_momentum)", "own.settle((), 0.0)"),
    "the shared state's gradient": (GroupSession, "params, base = own.ahead, own.base", "pass"),
}


@pytest.mark.parametrize(("kind", "old", "new"), MUTANTS.values(), ids=MUTANTS)
def test_these_games_notice_an_error(kind: type, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[kind.__module__]
    source = inspect.getsource(module)
    assert source.count(old) == 1, old
    made: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(source.replace(old, new), f"<mutant of {module.__name__}>", "exec"), made)
    for name, method in vars(made[kind.__name__]).items():
        if inspect.isfunction(method):
            monkeypatch.setattr(kind, name, method)
    with pytest.raises(Differs):
        played(TWO, 2)
