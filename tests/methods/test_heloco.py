"""HeLoCo's correction in its three cases, and the methods with which it is refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from peer.errors import ManifestError
from peer.methods.experimental.heloco import CONFIDENCE, Heloco, correct_
from peer.methods.registry import PRESETS
from peer.outer.state import OuterState
from peer.protocol.model.layout import Layout, TensorSpec
from peer.run.manifest import default_text, derive, parse_manifest
from peer.run.resolve import resolve
from peer.run.sections import SyncSection

MOMENTUM = torch.tensor([0.5, 0.0])


def corrected(cosine: float, length: float = 2.0) -> Tensor:
    """Return the correction of a gradient of this norm, with this cosine to the momentum."""
    gradient = torch.tensor([cosine, math.sqrt(1 - cosine**2)]) * length
    correct_(gradient, MOMENTUM)
    return gradient


@pytest.mark.parametrize("cosine", [0.2001, 0.7, 1.0])
def test_what_agrees_with_the_momentum_stays(cosine: float) -> None:
    assert corrected(cosine).tolist() == pytest.approx([2 * cosine, 2 * math.sqrt(1 - cosine**2)], abs=1e-6)


@pytest.mark.parametrize("cosine", [-0.1, -0.5, -1.0])
def test_what_is_against_the_momentum_is_taken_back_in_part(cosine: float) -> None:
    confidence = 2.0 / (2.0 + CONFIDENCE * 0.5)
    left = 2 * cosine * (1 - 0.5 * -cosine * confidence)
    assert corrected(cosine).tolist() == pytest.approx([left, 2 * math.sqrt(1 - cosine**2)], abs=1e-6)


@pytest.mark.parametrize("cosine", [0.0, 0.1, 0.1999])
def test_what_hardly_agrees_is_turned_towards_the_momentum_and_keeps_its_length(cosine: float) -> None:
    found = corrected(cosine)
    assert float(found.norm()) == pytest.approx(2.0, abs=1e-5)
    assert float(found[0]) / 2.0 > cosine


def test_a_momentum_that_is_much_longer_corrects_less() -> None:
    assert corrected(-1.0, length=0.01)[0] / 0.01 < corrected(-1.0, length=2.0)[0] / 2.0 < 0


def test_without_a_momentum_nothing_is_corrected() -> None:
    gradient = torch.tensor([1.0, -2.0])
    correct_(gradient, torch.zeros(2))
    assert gradient.tolist() == [1.0, -2.0]


def test_each_tensor_of_a_fragment_has_a_cosine_of_its_own() -> None:
    layout = Layout.whole([TensorSpec("a", (2,)), TensorSpec("b", (2,))])
    state = OuterState.fresh(layout, torch.zeros(4))
    state.momentum.copy_(torch.cat([MOMENTUM, MOMENTUM]))
    against, along = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 0.0])
    found = state.contribution(0, -torch.cat([against, along]), Heloco())
    assert found[2:].tolist() == along.tolist()
    assert -2.0 < float(found[0]) < 0.0


def test_it_is_for_groups_that_take_nothing_early() -> None:
    for choices in ({"eager": True, "schedule": "streaming"}, {"topology": "solo"}, {"topology": "pair"}):
        with pytest.raises(ManifestError):
            resolve(SyncSection.model_validate({"preset": "heloco", "codec": "fp32", **choices}))


def test_an_older_program_refuses_it_by_its_format() -> None:
    text = derive(default_text(), ["preset=heloco"])
    assert f"format = {PRESETS['heloco'].since}" in text
    with pytest.raises(ManifestError, match=r"preset: needs format = 8"):
        parse_manifest(text.replace("format = 8", "format = 7").encode())
