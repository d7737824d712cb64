from __future__ import annotations

from pathlib import Path

import pytest

from peer import errors

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "exit-codes.md"


def leaves() -> list[type[errors.PeerError]]:
    return sorted(errors.PeerError.__subclasses__(), key=lambda kind: kind.exit_code)


def test_every_user_error_has_its_own_code() -> None:
    codes = [kind.exit_code for kind in leaves()]
    assert len(set(codes)) == len(codes)
    assert all(2 <= code < 126 for code in codes)


@pytest.mark.parametrize("kind", leaves())
def test_every_leaf_says_why_and_what_to_do(kind: type[errors.PeerError]) -> None:
    for told in (kind.why, kind.fix):
        assert len(told) > 20
        assert told not in (errors.PeerError.why, errors.PeerError.fix)
    assert kind.fix not in {other.fix for other in leaves() if other is not kind}
    assert kind.why not in {other.why for other in leaves() if other is not kind}


def test_who_raises_may_say_more_exactly() -> None:
    plain, exact = errors.DataError("none"), errors.DataError("none", "give some", "it is needed")
    assert (plain.fix, plain.why) == (errors.DataError.fix, errors.DataError.why)
    assert (exact.fix, exact.why) == ("give some", "it is needed")
    assert plain.page == "peer help exit-codes 22"


def test_the_page_has_a_section_for_every_code() -> None:
    text = PAGE.read_text()
    for kind in leaves():
        section = text.split(f"\n## {kind.exit_code}\n")[1].split("\n## ")[0]
        for words in (kind.__name__, kind.why, kind.fix, (kind.__doc__ or "").strip()):
            assert words in section, (kind, words)
        assert ("may help" in section) == kind.retry


def test_the_drawn_tree_names_every_class() -> None:
    drawing = errors.__doc__ or ""
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, Exception) and kind.__module__ == errors.__name__
    ]
    assert len(kinds) > 15
    for kind in kinds:
        assert kind.__name__ in drawing
        if issubclass(kind, errors.PeerError) and kind is not errors.PeerError:
            assert any(kind.__name__ in line and f" {kind.exit_code} " in line for line in drawing.splitlines())
