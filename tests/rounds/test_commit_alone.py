"""Only `peer/rounds/commit.py` moves `outer_params`: no other module calls a function that moves them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import peer
from peer.outer.state import OuterState

HOME = Path(peer.__file__).parent
ALONE = "rounds/commit.py"
MOVES = {"step_with", "put", "refound", "stepping"}
READS = {"ahead", "fresh", "busy", "begun", "fragment", "contribution", "digest", "layout", "params", "momentum"}
HELD = ("outer", "_outer")
"""Names of attributes that hold a state."""


def reached_by(node: ast.AST) -> list[str]:
    """Return the names in an expression: of `self._outer.fragment(f).copy_` all four."""
    match node:
        case ast.Attribute(value=value, attr=attr):
            return [*reached_by(value), attr]
        case ast.Call(func=func):
            return reached_by(func)
        case ast.Subscript(value=value):
            return reached_by(value)
        case ast.Name(id=name):
            return [name]
    return []


def moves(source: str) -> Iterator[str]:
    """Return the calls and assignments that may move a state."""
    for node in ast.walk(ast.parse(source)):
        targets: list[ast.AST] = []
        if isinstance(node, ast.Call):
            targets = [node.func]
            written = [reached_by(keyword.value) for keyword in node.keywords if keyword.arg == "out"]
            yield from (".".join(way) for way in written if any(name in HELD for name in way))
        elif isinstance(node, ast.Assign):
            targets = [*node.targets]
        elif isinstance(node, ast.AugAssign):
            targets = [node.target]
        for target in targets:
            *way, last = reached_by(target) or [""]
            on_state = any(name in HELD for name in way)
            in_place = last.endswith("_") and not last.endswith("__")
            stored = isinstance(node, ast.Assign | ast.AugAssign) and last in {"params", "momentum"}
            indexed = isinstance(target, ast.Subscript) and not isinstance(node, ast.Call)
            if last == "step_with" or (on_state and (last in MOVES or in_place or stored or indexed)):
                yield ".".join([*way, last])


def sources() -> dict[str, str]:
    found = {str(path.relative_to(HOME)): path.read_text() for path in HOME.rglob("*.py")}
    return {name: text for name, text in found.items() if not name.startswith(("outer/", "methods/", "lab/"))}


def test_the_committer_alone_moves_outer_params() -> None:
    found = {name: set(moves(text)) for name, text in sources().items()}
    assert {name: calls for name, calls in found.items() if calls}.keys() == {ALONE}
    own_part = "self._outer.ahead"  # the look-ahead of eager updates is not part of the state
    assert found[ALONE] == {"self._outer.step_with", "self._outer.stepping", "self._outer.refound", own_part}


def test_every_method_of_a_state_is_known_to_move_it_or_not() -> None:
    public = {name for name in vars(OuterState) if not name.startswith("_")}
    assert public == MOVES | READS


@pytest.mark.parametrize(
    "line",
    [
        "self._outer.params.copy_(params)",
        "self._outer.fragment(0).zero_()",
        "groups.outer.put(0, a, b)",
        "outer.params[1:3] = 0",
        "self.outer.momentum += 1",
        "torch.sub(a, b, out=self._outer.fragment(0))",
        "state.step_with(0, values, rule)",
    ],
)
def test_a_move_elsewhere_is_seen(line: str) -> None:
    assert list(moves(line))
