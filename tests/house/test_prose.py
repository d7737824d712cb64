"""The lint of prose finds what breaks the rules, and lets pass what only looks so."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests import prose
from tests.house.sentences import docstrings, sentences


def rules(text: str) -> list[str]:
    return [one.rule for one in prose.faults_of_text("page.md", textwrap.dedent(text))]


def spoken(text: str) -> list[str]:
    return [one.text for one in sentences(textwrap.dedent(text))]


LONG = "The leader " + "asks and " * 11 + "answers"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Who leads is asked.", "begins with 'Who'"),
        ("Whoever leads is asked.", "begins with 'Whoever'"),
        ("The leader asks. What it finds is kept.", "begins with 'What'"),
        ("* One that leads is asked.", "begins with 'One that'"),
        ("The leader asks; what it finds is kept.", "begins with 'what'"),
        ("**Who** leads is asked.", "begins with 'Who'"),
        ("(Who leads is asked.)", "begins with 'Who'"),
        (f"{LONG} and `waits for it`.", "27 words"),
        (f"{LONG} and\nwaits, e.g. again.", "29 words"),
        ("A limit that receivers bear.", "not our word: bear"),
        ("The joiner sends word to the leader.", "not our word: word for a message"),
        ("A part of the whole is sent.", "not our word: whole as a noun"),
        ("The peer goes on with the round.", "not our word: go on with"),
        ("> Quoted, and read anew.", "not our word: anew"),
    ],
)
def test_a_sentence_that_breaks_a_rule_is_found(text: str, rule: str) -> None:
    assert [one for one in rules(text) if one.startswith(rule)], rules(text)


@pytest.mark.parametrize(
    "text",
    [
        "Who leads a group?",
        "**What to do:** Ask the leader.",
        "Someone who leads is asked.",
        f"{LONG}.",
        f"{LONG}; the member waits. {LONG}.",
        f"The leader runs `{LONG}; what follows. Who leads` and waits.",
        f"```sh\n{LONG} and waits for it # What\n```",
        f"It runs:\n\n    {LONG} and waits for it\n",
        f"| {LONG} and waits for it |\n|---|",
        f"Error      {LONG} and waits\n├── Other  {LONG} and waits",
        f"# What {LONG} and waits for it",
        f"What {LONG} and waits\n======",
        f"[{LONG}](https://example.org/what/{'a/' * 30}).",
        "The leader asks all members " * 3 + "\n\n" + "The leader asks all members " * 3,
        "- The leader asks all members and waits for them\n" * 8,
        "The whole model is sent, in other words a file.",
        "A forbearing person wears a bearskin, besides.",
    ],
)
def test_a_sentence_that_keeps_the_rules_passes(text: str) -> None:
    assert rules(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It takes 1.5 s, e.g. here. It ends.", ["It takes 1.5 s, e.g. here.", "It ends."]),
        ("See Dietzfelbinger et al. 1997. It ends.", ["See Dietzfelbinger et al. 1997.", "It ends."]),
        ("Version 3.11.2 is used … and kept.", ["Version 3.11.2 is used …", "and kept."]),
        ("It ends (at once.) Then it waits!", ["It ends (at once.)", "Then it waits!"]),
        ("Frames, seats, etc. Then it waits.", ["Frames, seats, etc.", "Then it waits."]),
        ("See [the page](a.md). Now [wait][1].\n\n[1]: b.md", ["See the page.", "Now wait."]),
        ("One\n: It is the first.\n: It is odd.", ["One", "It is the first.", "It is odd."]),
        ("1. Ask.\n2. Wait\n   for it.", ["Ask.", "Wait for it."]),
        ("!!! note\n    Ask.", []),
    ],
)
def test_sentences_end_where_a_reader_ends_them(text: str, expected: list[str]) -> None:
    assert spoken(text) == expected


def test_a_sentence_has_its_line() -> None:
    page = "# Title\n\nIt begins\nhere. It `goes\non` there.\n\n* An item.\n\n```\ncode\n```\nIt ends.\n"
    assert [(one.line, one.text.split()[-1]) for one in sentences(page)] == [
        (3, "here."),
        (4, "there."),
        (7, "item."),
        (12, "ends."),
    ]


MODULE = '''"""A module."""

LIMIT = 1
"""Of the room."""


class A:
    """By name."""

    field: int
    """And more."""

    async def f(self):
        """As JSON.

        Who asks is told."""
        if True:

            def g():
                """For a person."""

    def h(self):
        """Offer it as it is."""
        "no docstring"


text = """Of nothing: this is a value."""
'''


def test_docstrings_of_all_kinds_are_read() -> None:
    found = [(one.name, one.line) for one in docstrings(MODULE)]
    assert found == [
        ("module", 1),
        ("LIMIT", 4),
        ("A", 8),
        ("A.field", 11),
        ("A.f", 14),
        ("A.f.g", 20),
        ("A.h", 23),
    ]


def test_a_docstring_that_begins_in_the_middle_is_found() -> None:
    found = {(one.line, one.rule.partition(";")[0]) for one in prose.faults_of_python("a.py", MODULE)}
    assert found == {
        (4, "the docstring of LIMIT begins with 'Of'"),
        (8, "the docstring of A begins with 'By'"),
        (11, "the docstring of A.field begins with 'And'"),
        (14, "the docstring of A.f begins with 'As'"),
        (16, "begins with 'Who'"),
        (20, "the docstring of A.f.g begins with 'For a person'"),
    }


def test_docstrings_that_were_there_pass() -> None:
    old = frozenset(one.text for one in docstrings(MODULE))
    assert list(prose.faults_of_python("a.py", MODULE, old)) == []
    new = MODULE.replace('"""By name."""', '"""By another name."""')
    assert [one.line for one in prose.faults_of_python("a.py", new, old)] == [8]


def test_the_clean_list_is_sorted_and_names_files() -> None:
    names = prose.clean_list((prose.ROOT / prose.CLEAN).read_text())
    assert names == sorted(set(names))
    assert [name for name in names if not (prose.ROOT / name).exists()] == []


def test_the_clean_list_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"a": '"""A module."""', "b": '"""Of a module."""', "c": '"""Another one."""'}.items():
        (tmp_path / "peer").mkdir(exist_ok=True)
        (tmp_path / "peer" / f"{name}.py").write_text(text)
    (tmp_path / prose.CLEAN).parent.mkdir(parents=True)
    (tmp_path / prose.CLEAN).write_text("# Files.\npeer/b.py\npeer/gone.py\n")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    assert sorted(one.rule.partition(";")[0] for one in prose.check_all()) == [
        "no such file",
        "the docstring of module begins with 'Of'",
    ]
    prose.grow()
    assert (tmp_path / prose.CLEAN).read_text() == "# Files.\npeer/a.py\npeer/b.py\npeer/c.py\n"
