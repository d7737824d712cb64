"""The pages of `peer help`: all that a text of ours points at is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from peer.errors import PeerError, UsageError
from peer.help import pages as module
from peer.help.pages import HelpPage, page, pages
from peer.help.rendering import rendered

ROOT = Path(__file__).parents[2]
_POINTER = re.compile(r"peer help ([a-z][\w-]*)(?: (\d+|which-kernels|extras|update))?")


def strings() -> Iterator[tuple[str, str]]:
    """Every string in the program, with its file: messages, help texts and docstrings."""
    for path in sorted((ROOT / "peer").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path.relative_to(ROOT).as_posix(), node.value
    yield "peer/run/default.toml", (ROOT / "peer/run/default.toml").read_text()


def test_what_texts_point_at_is_a_page() -> None:
    pointers = [(path, *found) for path, text in strings() for found in _POINTER.findall(text)]
    assert len(pointers) > 10
    for path, topic, section in pointers:
        shown = page(topic)
        assert not section or shown.section(section), path


def test_no_command_points_at_a_file_that_an_installation_lacks() -> None:
    shown = (ROOT / "docs/reference/cli.md").read_text() + (ROOT / "peer/run/default.toml").read_text()
    assert re.findall(r"docs/[\w/-]+", shown) == []


def test_no_text_names_a_package_that_no_index_has() -> None:
    assert [path for path, text in strings() if re.search(r"pip install (-U )?'?peer-swarm", text)] == []


@pytest.mark.parametrize("kind", PeerError.__subclasses__())
def test_every_error_shows_its_own_section(kind: type[PeerError]) -> None:
    program, verb, topic, section = kind("x").page.split()
    assert (program, verb) == ("peer", "help")
    assert kind.__name__ in page(topic).section(section)


def test_pages_have_names_of_their_own() -> None:
    topics = [one.topic for one in pages()]
    assert len(topics) == len(set(topics)) == len(list((ROOT / "docs").glob("*/*.md")))
    assert pages()[0].kind == "tutorials"


def test_a_section_ends_where_the_next_of_its_level_begins() -> None:
    text = "# Page\n\n## One thing\n\na\n\n### Below\n\nb\n\n## Two\n\nc\n"
    one = HelpPage("topic", "guides", text)
    assert (one.title, one.headings()) == ("Page", ["one-thing", "below", "two"])
    assert one.section("one-thing") == one.section("One thing") == "## One thing\n\na\n\n### Below\n\nb\n\n"
    assert one.section("two") == "## Two\n\nc\n"
    with pytest.raises(UsageError, match="no section 'tow'") as caught:
        one.section("tow")
    assert "`peer help topic two`" in caught.value.fix


def test_a_name_that_is_none_gets_those_that_are_like_it() -> None:
    with pytest.raises(UsageError, match="no page is called 'reachabilty'") as caught:
        page("reachabilty")
    assert "Did you mean `peer help reachability`?" in caught.value.fix


def test_links_name_the_command_that_shows_their_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "guides").mkdir()
    (tmp_path / "guides" / "a.md").write_text(
        "# A\n<!-- made by\na program -->\n![picture](../images/x.svg)\n[b](../reference/b.md#c-d), [far](https://x.org)"
        ", [here](#below)\n```sh no-run a reason\nls\n```\n"
    )
    monkeypatch.setattr(module, "BUILT", tmp_path)
    (found,) = pages()
    assert found.text == "# A\nb (`peer help b c-d`), far (https://x.org), here\n```sh\nls\n```\n"


def test_an_installation_without_pages_says_that_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECKOUT", tmp_path)
    assert pages() == []
    with pytest.raises(UsageError):
        page("joining")


def test_a_page_is_shown_without_its_markup() -> None:
    text = rendered("# Title\n\n* one `word` and **two**\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n")
    assert "Title" in text
    assert "one word and two" in text
    assert not set("#*`|") & set(text)
