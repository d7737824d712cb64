"""The means of a group against their equations in float64 numpy, over ten rounds of five members of unequal work.

The fragment lies in three shards. In a round, with g = phi - theta of each member that is there, and n its length in
the shard:

    f = min(1, 1.5 median(n) / n), and 10 for 1.5 among three or fewer
    w = the share of the tokens, of which none counts for more than twice the median, or the same for all
    mean = sum w f g;   m <- mu m + mean;   phi <- phi - lr (mean + mu m)

With rda, in each tensor of a block, where |.| is its length in the tensor, among four or more of them:

    u = sum w g/|g|;   mean = (sum w f |g|) u / |u|,   unless |u| < .5 / sqrt(how many they are)

The shards then end with tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from peer.codec.registry import EVERY
from peer.exchange.build import mean_terms_of
from peer.exchange.group import radial
from peer.exchange.group.contribution import Contribution
from peer.exchange.group.reduce import reduce_contributions
from peer.methods.method import Method
from peer.outer import robust_mean
from peer.outer.state import OuterState
from peer.outer.values import MeanGradient
from peer.protocol.group.shards import cut
from peer.protocol.messages import PeerId
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.wire.payload import BytesSource
from peer.run.resolve import resolve
from peer.run.sections import SyncSection

Vector = NDArray[np.float64]
ROUNDS, MEMBERS, OWNERS = 10, 5, 3
TOLERANCE = 1e-6
TENSORS = (
    TensorSpec("model.embed_tokens.weight", (8, 16)),
    TensorSpec("model.layers.0.up.weight", (16, 24)),
    TensorSpec("model.layers.0.norm.weight", (24,)),
    TensorSpec("model.layers.1.up.weight", (24, 16)),
    TensorSpec("model.norm.weight", (24,)),
    TensorSpec("lm_head.weight", (8, 16)),
)
LAYOUT = Layout.whole(TENSORS)
ELEMENTS = 1072
AWAY = {4: (0, 3), 7: (2,)}
"""Round -> the members that are absent in it."""
LONG_ONES = {(2, 1): 3.0, (5, 4): 6.0, (4, 1): 15.0, (7, 0): 3.0}
"""(round, member) -> factor of that member's update."""

OPPOSED = {(1, 128, 512): (1.0, 1.1, 0.9, -1.0, -0.3), (6, 512, 536): (1.0, -1.0, 1.2, 1.0, -0.2)}
"""(round, first and last element) -> each member's factor of one common direction."""


@dataclass(frozen=True)
class Numbers:
    """The constants of the equations."""

    weights: str
    lr: float = 0.7
    momentum: float = 0.5
    heavy: float = 2.0
    long: float = 1.5
    wide: float = 10.0
    few: int = 3
    edges: tuple[int, ...] = (0, 384, 768, ELEMENTS)
    radial: tuple[tuple[int, int], ...] = ()
    fewest: int = 4
    cancelled: float = 0.5


RADIAL = ((128, 512), (512, 536), (536, 920))
"""The element ranges of the tensors in blocks."""


def tokens() -> NDArray[np.int64]:
    """Return the tokens, [round, member]. The last member has a fast machine."""
    drawn = np.random.default_rng(3).integers(50, 200, size=(ROUNDS, MEMBERS))
    drawn[:, -1] *= 4
    return drawn


def updates() -> Vector:
    """Return the updates, [round, member, element], representable in fp32: a common part, and one of each member's
    own."""
    rng = np.random.default_rng(4)
    drawn = 0.02 * rng.normal(size=(ROUNDS, MEMBERS, ELEMENTS)) + 0.01 * rng.normal(size=(ROUNDS, 1, ELEMENTS))
    for (round_, who), times in LONG_ONES.items():
        drawn[round_, who] *= times
    for (round_, start, end), signs in OPPOSED.items():
        drawn[round_, :, start:end] = drawn[round_, :1, start:end] * np.array(signs)[:, None]
    drawn[8, 1, 536:920] = 0.0
    return drawn.astype(np.float32).astype(np.float64)


def start() -> Vector:
    return np.random.default_rng(8).normal(size=ELEMENTS).astype(np.float32).astype(np.float64)


def there(round_: int) -> list[int]:
    return [who for who in range(MEMBERS) if who not in AWAY.get(round_, ())]


# -- the equations -----------------------------------------------------------------------------------------------------


def lower_median(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def weights_of(numbers: Numbers, counts: list[float]) -> list[float]:
    if numbers.weights == "equal":
        return [1 / len(counts) for _ in counts]
    most = (numbers.heavy if len(counts) > numbers.few else numbers.wide) * lower_median(counts)
    capped = [min(count, most) for count in counts]
    return [count / sum(capped) for count in capped]


def shard_mean(numbers: Numbers, parts: list[Vector], counts: list[float], begin: int) -> Vector:
    lengths = [float(np.sqrt((part**2).sum())) for part in parts]
    most = (numbers.long if len(parts) > numbers.few else numbers.wide) * lower_median(lengths)
    clipped = [part * min(1.0, most / length) for part, length in zip(parts, lengths, strict=True)]
    weights = weights_of(numbers, counts)
    mean = sum(w * part for w, part in zip(weights, clipped, strict=True))
    for first, last in numbers.radial:
        span = slice(first - begin, last - begin)
        if begin <= first < begin + len(mean) and len(parts) >= numbers.fewest:
            mean[span] = tensor_mean(numbers, [part[span] for part in clipped], weights)
    return mean


def tensor_mean(numbers: Numbers, parts: list[Vector], weights: list[float]) -> Vector:
    lengths = [float(np.sqrt((part**2).sum())) for part in parts]
    units = [part / length if length else part for part, length in zip(parts, lengths, strict=True)]
    u = sum(w * unit for w, unit in zip(weights, units, strict=True))
    resultant = float(np.sqrt((u**2).sum()))
    if resultant < numbers.cancelled / np.sqrt(len(parts)):
        return sum(w * part for w, part in zip(weights, parts, strict=True))
    return sum(w * length for w, length in zip(weights, lengths, strict=True)) * u / resultant


def expected(numbers: Numbers) -> list[Vector]:
    """Return phi after each round, which is equal on all members."""
    phi, m, after = start(), np.zeros(ELEMENTS), list[Vector]()
    for round_, work in enumerate(updates()):
        counts = [float(tokens()[round_, who]) for who in there(round_)]
        gradients = [-work[who] for who in there(round_)]
        mean = np.concatenate(
            [
                shard_mean(numbers, [g[begin:end] for g in gradients], counts, begin)
                for begin, end in zip(numbers.edges, numbers.edges[1:], strict=False)
            ]
        )
        m = numbers.momentum * m + mean
        phi = phi - numbers.lr * (mean + numbers.momentum * m)
        after.append(phi)
    return after


# -- the program -------------------------------------------------------------------------------------------------------


@dataclass
class Played:
    """The program's own parts, connected as in a group."""

    method: Method
    after: list[Tensor] = field(default_factory=list)

    def play(self) -> list[Tensor]:
        outer = OuterState.fresh(LAYOUT, torch.tensor(start(), dtype=torch.float32))
        for round_, work in enumerate(updates()):
            gradients = {
                who: outer.contribution(
                    0, outer.fragment(0) + torch.tensor(work[who], dtype=torch.float32), self.method.outer_rule
                )
                for who in there(round_)
            }
            mean = self._mean(round_, gradients)
            outer.step_with(0, MeanGradient(mean, [(0, ELEMENTS)]), self.method)
            self.after.append(outer.params.clone())
        return self.after

    def _mean(self, round_: int, gradients: dict[int, Tensor]) -> Tensor:
        terms, mean = mean_terms_of(self.method, LAYOUT), torch.empty(ELEMENTS)
        owners = [PeerId(name) for name in "abc"]
        for shard in cut(b"roster", owners, ELEMENTS, whole=terms.tensors_in(0)):
            part = slice(shard.start, shard.end)
            parts = {
                PeerId(str(who)): Contribution(
                    int(tokens()[round_, who]), BytesSource(EVERY["fp32"].encode(gradient[part]))
                )
                for who, gradient in gradients.items()
            }
            tensors = terms.tensors_of(0, shard)
            into = torch.empty(shard.elements)
            got = reduce_contributions(parts, terms, into, lambda peers: "", lambda peer, part: True, tensors)
            assert got.payload is not None
            assert not got.bad
            mean[part] = EVERY["fp32"].decode(got.payload, shard.elements)
        return mean


def off(played: list[Tensor], exact: list[Vector]) -> float:
    """Return the largest error relative to the largest parameter."""
    pairs = zip(played, exact, strict=True)
    return max(float(np.abs(got.double().numpy() - phi).max() / np.abs(phi).max()) for got, phi in pairs)


def method_of(**choices: Any) -> Method:
    return resolve(SyncSection.model_validate({"preset": "diloco", **choices}))


METHODS = {
    "tokens": method_of(),
    "equal": method_of(weights="equal"),
    "rda": method_of(mean="rda"),
    "rda, equal": method_of(mean="rda", weights="equal", outer_lr=0.7),
}
RADIALLY = {"radial": RADIAL, "edges": (0, 512, 920, ELEMENTS)}
NUMBERS = {
    "tokens": Numbers("tokens"),
    "equal": Numbers("equal"),
    "rda": Numbers("tokens", lr=0.49, **RADIALLY),
    "rda, equal": Numbers("equal", **RADIALLY),
}


@pytest.mark.parametrize("name", METHODS)
def test_ten_rounds_of_a_mean_are_its_equations(name: str) -> None:
    assert off(Played(METHODS[name]).play(), expected(NUMBERS[name])) <= TOLERANCE


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("change", [{"lr": 0.69}, {"long": 1.49}, {"wide": 9.9}, {"few": 4}, {"few": 2}], ids=str)
def test_another_number_is_noticed(name: str, change: dict[str, float]) -> None:
    assert off(Played(METHODS[name]).play(), expected(replace(NUMBERS[name], **change))) > TOLERANCE


def test_other_weights_are_noticed() -> None:
    assert off(Played(METHODS["tokens"]).play(), expected(Numbers("equal"))) > TOLERANCE
    assert off(Played(METHODS["equal"]).play(), expected(Numbers("tokens"))) > TOLERANCE
    assert off(Played(METHODS["tokens"]).play(), expected(Numbers("tokens", heavy=1.99))) > TOLERANCE


MUTANTS: dict[str, Callable[[Any], Any]] = {
    "all count for one less": lambda tokens: [1 / (len(tokens) + 1)] * len(tokens),
    "the first counts twice": lambda tokens: [2 / (len(tokens) + 1)] + [1 / (len(tokens) + 1)] * (len(tokens) - 1),
    "tokens": robust_mean.fractions,
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutation_of_equal_weights_is_noticed(mutant: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(robust_mean.WEIGHTS, "equal", mutant)
    assert off(Played(METHODS["equal"]).play(), expected(NUMBERS["equal"])) > TOLERANCE


# -- the radial mean ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"fewest": 6},
        {"fewest": 2},
        {"cancelled": 0.0},
        {"cancelled": 1.2},
        {"radial": ()},
        {"radial": RADIAL[:-1]},
        {"radial": ((0, 128), *RADIAL)},
        {"radial": (*RADIAL, (944, ELEMENTS))},
        {"radial": (RADIAL[0], (512, 920))},
        {"radial": ((128, 320), (320, 512), *RADIAL[1:])},
        {"edges": (0, ELEMENTS)},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["rda", "rda, equal"])
def test_another_radial_mean_is_noticed(name: str, change: dict[str, Any]) -> None:
    assert off(Played(METHODS[name]).play(), expected(replace(NUMBERS[name], **change))) > TOLERANCE


RADIAL_MUTANTS: dict[str, tuple[str, Any]] = {
    "the plain direction": ("direction", lambda weight, length: weight),
    "directions of equal weight": ("direction", lambda weight, length: 0.2 / length if length else 0.0),
    "never cancelled": ("stretch", lambda w, n, u: sum(a * b for a, b in zip(w, n, strict=True)) / u),
    "always cancelled": ("stretch", lambda w, n, u: None),
    "unweighted length": ("stretch", lambda w, n, u: sum(n) / len(n) / u),
    "not of unit length": ("stretch", lambda w, n, u: sum(a * b for a, b in zip(w, n, strict=True))),
}


@pytest.mark.parametrize(("function", "mutant"), RADIAL_MUTANTS.values(), ids=RADIAL_MUTANTS)
def test_a_mutation_of_the_radial_mean_is_noticed(
    function: str, mutant: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(radial, function, mutant)
    assert off(Played(METHODS["rda"]).play(), expected(NUMBERS["rda"])) > TOLERANCE


def test_the_radial_mean_is_as_long_as_its_parts_and_the_weighted_one_is_not() -> None:
    """Uses round 0, in which no member is absent and no contribution is unusually long."""
    gradients = {who: -torch.tensor(updates()[0, who], dtype=torch.float32) for who in there(0)}
    lengths = {}
    for name in ("equal", "rda, equal"):
        mean = Played(METHODS[name])._mean(0, gradients)
        lengths[name] = float(mean[128:512].norm())
    usual = sum(float(gradient[128:512].norm()) for gradient in gradients.values()) / MEMBERS
    assert lengths["rda, equal"] == pytest.approx(usual, rel=1e-5)
    assert lengths["equal"] < 0.75 * usual
