"""docs/reference/presets.md agrees with the presets."""

from __future__ import annotations

from dataclasses import MISSING, fields
from itertools import pairwise

import pytest

from peer.methods.method import Method
from peer.methods.registry import PRESETS
from tests import presets_page


def columns() -> dict[str, dict[str, str]]:
    """Return for each preset the values of its rows, as the page shows them."""
    found: dict[str, dict[str, str]] = {}
    names = list[str]()
    for line, below in pairwise(presets_page.FILE.read_text().splitlines()):
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if below.startswith("| ---"):
            names = [name.strip("`") for name in cells[1:]] if cells[0] == "" else []
        for name, value in zip(names, cells[1:], strict=False):
            found.setdefault(name, {})[cells[0].replace("`", "")] = value
    return found


@pytest.mark.parametrize("preset", PRESETS)
def test_the_page_has_the_values_of_a_preset(preset: str) -> None:
    shown, method = columns()[preset], PRESETS[preset].method
    assert (shown["schedule"], shown["topology"], shown["rule"]) == (method.schedule, method.topology, method.rule)
    assert tuple(map(float, shown["outer_lr / outer_momentum"].split("/"))) == (method.outer_lr, method.outer_momentum)
    codecs = [] if method.topology == "solo" else [method.codec, *filter(None, [method.result_codec])]
    assert shown["codec, result_codec"] == (", ".join(codecs) or "–")
    assert int(shown["fragments"].split()[0]) == method.fragments
    numbers = ("consensus", "max_group", "growth_lr")
    told = {name: float(shown[name]) for name in numbers if shown.get(name, "–") != "–"}
    assert told == {name: value for name in numbers if (value := getattr(method, name))}
    assert (shown.get("eager") == "yes") == method.eager


def test_the_page_is_current() -> None:
    assert presets_page.page() == presets_page.FILE.read_text()


def test_each_choice_that_a_preset_makes_has_a_row() -> None:
    rows = " ".join(presets_page.ROWS)
    for choice in fields(Method):
        made = any(getattr(preset.method, choice.name) != choice.default for preset in PRESETS.values())
        if choice.default is not MISSING and made and choice.name != "fragment_layout":
            assert choice.name in rows
