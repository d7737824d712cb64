"""The tests that pages name as evidence exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def missing(text: str) -> list[str]:
    """Return the named tests that do not exist."""
    found = []
    for path, name in _NAMED.findall(text):
        file = ROOT / path
        if not file.exists() or (name and f"def {name}(" not in file.read_text()):
            found.append(f"{path}::{name}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_named_test_is_there(page: Path) -> None:
    assert missing(page.read_text()) == []


def test_a_name_that_is_gone_is_found() -> None:
    here = "tests/docs/test_named_tests.py"
    assert missing(f"`{here}::test_a_name_that_is_gone_is_found` and `{here}`") == []
    assert missing(f"`{here}::test_nothing` and `tests/nowhere.py`") == [f"{here}::test_nothing", "tests/nowhere.py::"]
