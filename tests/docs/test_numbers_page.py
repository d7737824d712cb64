"""The page of the numbers that are shown names each number of the views, how it comes about, and what compares it."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from peer.observe.status.text import status_text

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "numbers.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("|") and not line.startswith(("| ---", "| number"))
]
NAMES = {"id", "address", "peer id", "log", "page", "ticket", "agreed", "data", "model", "method", "quiet hours"}
"""Rows of `peer status` whose digits are parts of names, of settings or of dates."""
OTHERS = {"admission", "for joiners", "tells", "gives way", "device", "ends", "memory", "disk", "a day", "micro-batch"}
"""Rows that the consent shows, too, or that say in words where their numbers are from."""


def test_each_number_is_measured_estimated_or_extrapolated() -> None:
    assert len(ROWS) > 30
    for number, source, kind, _ in ROWS:
        assert source, number
        assert re.match(r"measured|estimated|given|simulated|reported|counted", kind), (number, kind)


def test_what_compares_a_number_exists() -> None:
    for number, *_, compared in ROWS:
        named = re.findall(r"`((?:tests|benchmarks)/[^`]+)`", compared)
        assert named, number
        assert [path for path in named if not (ROOT / path).exists()] == [], number


def test_amounts_are_in_powers_of_1000() -> None:
    """No message of the program prints KiB, MiB or GiB. Docstrings name the exact bounds of formats by them."""
    found = []
    for path in sorted((ROOT / "peer").rglob("*.py")):
        tree = ast.parse(path.read_text())
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                found += [f"{path}:{node.lineno}: {unit}" for unit in re.findall(r"[KMGT]iB\b", node.value)]
    assert found == []


@pytest.mark.parametrize("state", ["training", "bootstrap"])
def test_each_number_of_the_status_is_on_the_page(state: str) -> None:
    report = json.loads((ROOT / "tests" / "observe" / "status" / f"{state}.json").read_text())
    if state == "training":
        report["line_bytes"] = {"sent": 5_000_000, "received": 5_000_000, "measured": True}
    lines = status_text(report, 1795648000.0).splitlines()
    labels = {line[2:13].strip() for line in lines if line.startswith("  ") and re.search(r"\d", line[13:])}
    named = {label.strip() for number, *_ in ROWS for label in re.sub(r"\(.*?\)|:.*", "", number).split(",")}
    shown = {label for label in labels if label and not label.startswith("…")} - NAMES - OTHERS
    assert sorted(shown - named) == []
