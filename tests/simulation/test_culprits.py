"""Swarms with one culprit: it is found, and no other peer is blamed. The table over many seeds is in
docs/decisions/0009-strangers-and-lines.md."""

from __future__ import annotations

import pytest

from tests.simulation.culprits import watch
from tests.support.seeds import nightly


@pytest.mark.parametrize("fault", ["late_trainer", *nightly(["slow_uplink"])])
def test_the_culprit_is_named_and_nobody_else(fault: str) -> None:
    said = watch(fault, seed=1, peers=8, rounds=30)
    assert said.confesses(), said.said
    assert said.witnesses() >= 3, said.said
    assert not said.wrong(), said.wrong()


@pytest.mark.nightly
def test_where_nobody_is_slow_nobody_is_named() -> None:
    said = watch("none", seed=1, peers=8, rounds=30)
    assert not any(said.changes.values()), said.changes
