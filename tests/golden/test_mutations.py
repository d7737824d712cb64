"""Changes every constant and operation of the rules, one at a time. The golden games must detect each mutation;
otherwise they would not protect that number."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from peer.methods.entry import MethodEntry
from peer.methods.registry import RULES
from peer.outer import arithmetic, state
from tests.golden.driver import Driver
from tests.golden.games import GAMES
from tests.golden.reference import Differs, Game, check, play

EXPECTED = {name: play(game) for name, game in GAMES.items()}
SWAPPED = {"add_": "sub_", "sub_": "add_"}
CONSTANTS = ("outer_lr", "outer_momentum", "consensus", "share", "alpha")
OF_STATE = ("step_with", "_meet", "_descend", "contribution")
"""Functions of the outer state that are not part of a rule: adopting another peer's state."""
SCALED = ("scale_work_", "pseudo_gradient_", "step_along_")
IN_FILES = (arithmetic, *(sys.modules[type(rule).__module__] for rule in RULES.values()))
STEPS = ("step", "descend", "correct")
"""The functions of a rule that change values."""


def noticed(make: Callable[[Game], Driver]) -> bool:
    """Return whether the result of some game differs."""
    for name, game in GAMES.items():
        try:
            check(make(game).play(), EXPECTED[name], game)
        except Differs:
            return True
    return False


def test_without_a_mutation_nothing_is_noticed() -> None:
    assert not noticed(Driver)


# -- one operation in the source ---------------------------------------------------------------------------------------


def changes(node: ast.AST) -> Iterator[ast.expr]:
    """Return replacements for an expression: inverted sign, omitted operation, constant reduced by 1 %."""
    match node:
        case ast.Call(func=ast.Attribute(attr="add_" | "sub_", value=target)) as call:
            turned = ast.Attribute(target, SWAPPED[call.func.attr], ast.Load())  # type: ignore[attr-defined]
            yield ast.Call(turned, call.args, call.keywords)
            yield target
        case ast.Call(func=ast.Attribute(attr="mul_" | "mul", value=target), args=[factor]):
            yield target
            shrunk = ast.BinOp(factor, ast.Mult(), ast.Constant(0.99))
            yield ast.Call(node.func, [shrunk], [])
        case ast.Call(func=ast.Attribute(attr="copy_", value=target)):
            yield target
        case ast.Call(func=ast.Attribute(attr="sub"), args=[first, second]):
            yield ast.Call(node.func, [second, first], node.keywords)
        case ast.keyword(arg=name, value=value) if name in CONSTANTS:
            yield ast.BinOp(value, ast.Mult(), ast.Constant(0.99))
        case ast.Call(func=ast.Name(id=name), args=[first, second, share]) if name in SCALED:
            yield ast.Call(node.func, [first, second, ast.BinOp(share, ast.Mult(), ast.Constant(0.99))], [])


def is_step(function: str) -> bool:
    """Return whether a function changes values; the names of those that do so in place end with an underscore."""
    return function in (*STEPS, *OF_STATE) or function.endswith("_")


def mutants(module: ModuleType) -> Iterator[tuple[str, Callable[[], ast.Module]]]:
    """Return pairs of the changed code and a function that makes the mutated module."""
    original = ast.parse(inspect.getsource(module))
    functions: dict[ast.AST, str] = {}
    for function in ast.walk(original):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                functions.setdefault(node, function.name)
    times = Counter[str]()
    for at, node in enumerate(ast.walk(original)):
        for change in changes(node):
            if not is_step(functions.get(node, "")):
                continue
            what = f"{functions[node]}: {ast.unparse(node)} -> {ast.unparse(change)}"
            times[what] += 1
            nth = f" ({times[what]})" if times[what] > 1 else ""
            yield what + nth, functools.partial(mutant_of, original, at, change)


def mutant_of(original: ast.Module, at: int, change: ast.expr) -> ast.Module:
    """Return a copy of the module with `change` instead of node number `at`."""
    tree, new = copy.deepcopy(original), copy.deepcopy(change)
    place = next(other for number, other in enumerate(ast.walk(tree)) if number == at)
    if isinstance(place, ast.keyword):
        place.value = new
    else:
        tree = Exchanged(place, new).visit(tree)
    return ast.fix_missing_locations(tree)


class Exchanged(ast.NodeTransformer):
    """Replaces one node by another."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self._new if node is self._old else self.generic_visit(node)


def namespace(tree: ast.Module, module: ModuleType) -> dict[str, Any]:
    made: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(tree, f"<mutant of {module.__name__}>", "exec"), made)
    return made


IN_RULES = {
    f"{module.__name__.rpartition('.')[2]}.{what}": (module, mutant)
    for module in IN_FILES
    for what, mutant in mutants(module)
}
IN_STATE = dict(mutants(state))


def some(of: Mapping[str, Any]) -> list[Any]:
    """Return them as parameters. All except every fourth are nightly: they show that the games can fail, and they
    rarely change."""
    marks = [[], *[[pytest.mark.nightly]] * 3]
    return [pytest.param(one, id=name, marks=marks[at % 4]) for at, (name, one) in enumerate(of.items())]


@pytest.mark.parametrize("change", some(IN_RULES))
def test_an_operation_of_a_rule_matters(
    change: tuple[ModuleType, Callable[[], ast.Module]], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, mutant = change
    for name, made in namespace(mutant(), module).items():
        if isinstance(made, MethodEntry) and made.rule is not None:
            monkeypatch.setitem(RULES, made.rule.name, made.rule)
        elif inspect.isfunction(made):
            for user in (*IN_FILES, state):
                if hasattr(user, name):
                    monkeypatch.setattr(user, name, made)
    assert noticed(Driver)


@pytest.mark.parametrize("mutant", some(IN_STATE))
def test_a_constant_handed_to_a_rule_matters(mutant: Callable[[], ast.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "OuterState", namespace(mutant(), state)["OuterState"])
    assert noticed(Driver)


def test_every_rule_has_a_game() -> None:
    assert {game.rule for game in GAMES.values()} == set(RULES)


def test_every_rule_has_mutants() -> None:
    functions = {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in IN_FILES
        for name, made in vars(module).items()
        if inspect.isfunction(made) and made.__module__ == module.__name__ and is_step(name)
    }
    steps = {f"{type(rule).__module__.rpartition('.')[2]}.{name}" for rule in RULES.values() for name in STEPS}
    assert functions <= {what.split(":")[0] for what in IN_RULES} <= functions | steps
    assert {what.split(":")[0] for what in IN_STATE} == {"_meet", "contribution"}


# -- the wiring --------------------------------------------------------------------------------------------------------


ARGUMENTS: dict[str, Callable[[Game], Game]] = {
    "outer_lr 1 % less": lambda game: replace(game, outer_lr=0.99 * game.outer_lr),
    "outer_momentum 1 % less": lambda game: replace(game, outer_momentum=0.99 * game.outer_momentum),
    "consensus 1 % less": lambda game: replace(game, consensus=0.99 * game.consensus),
    "consensus always outer_lr": lambda game: replace(game, consensus=game.outer_lr),
    "alpha .5 is .49": lambda game: replace(game, alpha=game.alpha and game.alpha - 0.01),
    "alpha for 1 - alpha": lambda game: replace(game, alpha=1 - game.alpha),
    "alpha 0 everywhere": lambda game: replace(game, alpha=0.0),
    "merged a step later": lambda game: replace(game, delay=game.delay + 1),
    "merged at once": lambda game: replace(game, delay=0),
    "equal weights in a group": lambda game: replace(game, tokens=None if game.tokens is None else game.tokens**0),
    "work after missed rounds sent whole": lambda game: replace(game, shares={}),
    "lost shards descended": lambda game: replace(game, lost={}),
    "rounds do not grow": lambda game: replace(game, slots=()),
    "rounds one step late": lambda game: replace(game, updates=game.updates[[0, *range(len(game.updates) - 1)]]),
    "always alone": lambda game: replace(game, meetings=_each_alone(game)),
}


def _each_alone(game: Game) -> Any:
    return tuple(tuple((who,) for meeting in round_ for who in meeting) for round_ in game.meetings)


@pytest.mark.parametrize("change", some(ARGUMENTS))
def test_an_argument_matters(change: Callable[[Game], Game]) -> None:
    assert noticed(lambda game: Driver(change(game)))


class AgainstMerged(Driver):
    """Mutation: the pseudo-gradient is computed from the merged params."""

    def __init__(self, game: Game) -> None:
        super().__init__(game)
        self.merged = [replica.params.clone() for replica in self.world]

    def merge(self, who: int, fragment: int) -> None:
        super().merge(who, fragment)
        self.merged[who][slice(*self.game.fragments[fragment])] = self.snapshot(who, fragment)

    def gradient(self, round_: int, fragment: int, who: int) -> Tensor:
        base = self.merged[who][slice(*self.game.fragments[fragment])]
        return arithmetic.pseudo_gradient_(self.snapshot(who, fragment), base, self.game.share(round_, who))


class MergedIsOuter(Driver):
    """Mutation: the merged params become the outer params."""

    def merge(self, who: int, fragment: int) -> None:
        super().merge(who, fragment)
        self.world[who].outer.fragment(fragment).copy_(self.snapshot(who, fragment))


class SnapshotAtMerge(Driver):
    """Mutation: the snapshot is taken at the merge instead of at the due step."""

    def __init__(self, game: Game) -> None:
        super().__init__(game, late=True)

    def _outer_step(self, round_: int, fragment: int, who: int, partner: Any) -> Callable[[], None]:
        return lambda: super(SnapshotAtMerge, self)._outer_step(round_, fragment, who, partner)()


class NextFragment(Driver):
    """Mutation: the index of the fragment is off by one."""

    def fragment_due(self, round_: int) -> int:
        return super().fragment_due(round_ + 1)


class PartnerSendsWhole(Driver):
    """Mutation: the partner does not scale accumulated work before it sends."""

    def sent(self, round_: int, fragment: int, who: int) -> tuple[Tensor, Tensor]:
        return self.snapshot(who, fragment), self.world[who].outer.fragment(fragment).clone()


class OwnOuterAsPartners(Driver):
    """Mutation: the consensus term uses the partner's params instead of its outer params."""

    def sent(self, round_: int, fragment: int, who: int) -> tuple[Tensor, Tensor]:
        params, _ = super().sent(round_, fragment, who)
        return params, params.clone()


class GaslocSendsParams(Driver):
    """Mutation: the work is not multiplied by outer_lr before it is sent."""

    def sent_lr(self) -> float:
        return 1.0


class NoMomentumKept(Driver):
    """Mutation: momentum is reset at each merge."""

    def merge(self, who: int, fragment: int) -> None:
        super().merge(who, fragment)
        self.world[who].outer.momentum.zero_()


class SumNotMean(Driver):
    """Mutation: the pseudo-gradients of a group are summed instead of averaged."""

    def mean(self, round_: int, fragment: int, meeting: tuple[int, ...]) -> Tensor:
        return super().mean(round_, fragment, meeting) * len(meeting)


class Bf16Outer(Driver):
    """Mutation: outer params lose fp32 precision."""

    def merge(self, who: int, fragment: int) -> None:
        outer = self.world[who].outer.params
        outer.copy_(outer.to(torch.bfloat16))
        super().merge(who, fragment)


WIRINGS = [
    AgainstMerged,
    MergedIsOuter,
    SnapshotAtMerge,
    NextFragment,
    PartnerSendsWhole,
    OwnOuterAsPartners,
    GaslocSendsParams,
    NoMomentumKept,
    SumNotMean,
    Bf16Outer,
]


@pytest.mark.parametrize("wiring", WIRINGS, ids=lambda wiring: wiring.__name__)
def test_an_error_of_wiring_is_noticed(wiring: type[Driver]) -> None:
    assert noticed(wiring)
