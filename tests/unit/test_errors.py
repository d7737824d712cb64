from __future__ import annotations

from pathlib import Path

from peer import errors

PAGE = Path(__file__).parents[2] / "docs" / "exit-codes.md"


def leaves() -> list[type[errors.PeerError]]:
    return sorted(errors.PeerError.__subclasses__(), key=lambda kind: kind.exit_code)


def test_every_user_error_has_its_own_code() -> None:
    codes = [kind.exit_code for kind in leaves()]
    assert len(set(codes)) == len(codes)
    assert all(2 <= code < 126 for code in codes)


def test_the_page_lists_exactly_the_tree() -> None:
    expected = {
        f"| {kind.exit_code} | {kind.__name__} | {(kind.__doc__ or '').strip()} | {'yes' if kind.retry else 'no'} |"
        for kind in leaves()
    }
    listed = {line for line in PAGE.read_text().splitlines() if any(f" {k.__name__} |" in line for k in leaves())}
    assert listed == expected


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
