"""The lint of prose: `python -m tests.prose` reads all pages, and the docstrings of the files in the clean list.

`--base REV` reads the docstrings that are new or other than in that commit, too, and what left the clean list since.
`--grow` adds every Python file to the list that is found clean. Rules and their reasons: CONTRIBUTING.md."""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import tarfile
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.house.sentences import Docstring, Sentence, docstrings, sentences

ROOT = Path(__file__).parent.parent
CLEAN = "tests/house/prose_clean.txt"
PYTHON = ("peer", "tests", "benchmarks", "examples")
GENERATED = "peer/v1/"
NOT_OURS = {"CODE_OF_CONDUCT.md"}

MOST_WORDS = 25
NO_ACTOR = re.compile(r"(?:who|whoever|what|one that)\b", re.IGNORECASE)
LABEL = re.compile(r"(?:[\w'’]+ ){0,3}[\w'’]+:(?:\s|$)")
"""A label such as "What to do:", which is no sentence."""
NO_FIRST = re.compile(r"(?:of|by|as|and|for a person)\b", re.IGNORECASE)
_BEFORE_NOTHING = r"(?=\s*(?:[.,;:)]|$|of\b|is\b|was\b|and\b|or\b|in\b|at\b|to\b|for\b|has\b|from\b|with\b))"
NEVER = {
    "bear": r"bears?|bearing|bore|borne",
    "anew": r"anew",
    "beside": r"beside",
    "hear": r"hears?|heard|hearing",
    "word for a message": r"(?:last|no|any|whose|its|their) word|words? (?:from|reaches|comes)|"
    r"(?:sends?|sent|gives?|gave|keeps?|takes?) (?:a |its |the |their )?word",
    "whole as a noun": rf"(?:the|a|one) whole{_BEFORE_NOTHING}",
    "come to nothing": r"(?:comes?|coming|came) to nothing",
    "be content": r"(?:is|are|was|be) content (?:to|with)",
    "go on with": r"(?:go|goes|going|went) on with",
    "let go": r"(?:lets?|letting) go|let \w+ go",
    "the others": r"the others|the given",
}
_NEVER = {name: re.compile(rf"\b(?:{pattern})(?!\w)", re.IGNORECASE) for name, pattern in NEVER.items()}


@dataclass(frozen=True)
class Fault:
    """A sentence that breaks a rule."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text[:100]}"


def faults_of(sentence: Sentence) -> Iterator[str]:
    """Name the rules that a sentence breaks."""
    text = sentence.text.lstrip("(\"'“‘*_ ")
    if (match := NO_ACTOR.match(text)) and not (sentence.is_question or LABEL.match(text)):
        yield f"begins with {match.group()!r}; name who acts"
    if sentence.words > MOST_WORDS:
        yield f"{sentence.words} words, at most {MOST_WORDS}"
    for name, pattern in _NEVER.items():
        if pattern.search(sentence.text):
            yield f"not our word: {name}"


def faults_of_text(path: str, text: str, line: int = 1) -> Iterator[Fault]:
    """Find what is wrong in a page, or in the text of a docstring."""
    for sentence in sentences(text, line):
        for rule in faults_of(sentence):
            yield Fault(path, sentence.line, rule, sentence.text)


def faults_of_docstring(path: str, docstring: Docstring) -> Iterator[Fault]:
    """Find what is wrong in a docstring, its first words included."""
    first = docstring.text.strip()
    if match := NO_FIRST.match(first):
        rule = f"the docstring of {docstring.name} begins with {match.group()!r}; say what the thing is or does"
        yield Fault(path, docstring.line, rule, first.splitlines()[0])
    yield from faults_of_text(path, _dedented(docstring.text), docstring.line)


def _dedented(text: str) -> str:
    """Take the indentation from all lines but the first, which has none."""
    first, _, rest = text.partition("\n")
    return f"{first}\n{textwrap.dedent(rest)}"


def faults_of_python(path: str, text: str, but: frozenset[str] = frozenset()) -> Iterator[Fault]:
    """Find what is wrong in the docstrings of a file. `but`: texts that pass."""
    for docstring in docstrings(text):
        if docstring.text not in but:
            yield from faults_of_docstring(path, docstring)


def pages() -> list[Path]:
    """List the pages that we have written."""
    found = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
    return [page for page in found if page.name not in NOT_OURS]


def python_files() -> Iterator[Path]:
    """List our Python files, without generated ones."""
    for folder in PYTHON:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not name_of(path).startswith(GENERATED):
                yield path


def name_of(path: Path) -> str:
    """Return a file's name from the root."""
    return path.relative_to(ROOT).as_posix()


def clean_list(text: str) -> list[str]:
    """Read the list of files whose docstrings keep the rules."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def check_all() -> Iterator[Fault]:
    """Check the pages and the files of the clean list."""
    for page in pages():
        yield from faults_of_text(name_of(page), page.read_text())
    for name in clean_list((ROOT / CLEAN).read_text()):
        if not (ROOT / name).exists():
            yield Fault(CLEAN, 1, "no such file; it was moved or removed", name)
        else:
            yield from faults_of_python(name, (ROOT / name).read_text())


# -- what is new since a commit ----------------------------------------------------------------------------------------


def check_new(revision: str) -> Iterator[Fault]:
    """Check docstrings that the commit does not have anywhere, and whether the clean list lost a file that is there."""
    old = _texts_at(revision)
    seen = frozenset(one.text for name, text in old.items() if name.endswith(".py") for one in docstrings(text))
    clean = clean_list((ROOT / CLEAN).read_text())
    for path in python_files():
        if name_of(path) not in clean:
            yield from faults_of_python(name_of(path), path.read_text(), seen)
    for name in clean_list(old.get(CLEAN, "")):
        if name not in clean and (ROOT / name).exists():
            yield Fault(CLEAN, 1, "left the list, which may only grow", name)


def _texts_at(revision: str) -> dict[str, str]:
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        files = {one.name: tar.extractfile(one) for one in tar if one.name.endswith((".py", ".txt"))}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def grow() -> None:
    """Add every file to the clean list whose docstrings keep the rules."""
    path = ROOT / CLEAN
    text = path.read_text()
    head = [line for line in text.splitlines() if line.startswith("#")]
    kept = [name for name in clean_list(text) if (ROOT / name).exists()]
    found = [name_of(one) for one in python_files() if not any(faults_of_python(name_of(one), one.read_text()))]
    path.write_text("\n".join([*head, *sorted({*kept, *found})]) + "\n")


def report(faults: Iterable[Fault]) -> int:
    """Print every fault on a line and return how many there are."""
    found = list(faults)
    for fault in found:
        print(fault)
    return len(found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.prose", description=__doc__)
    parser.add_argument("--base", metavar="REV", help="check the docstrings that are new since this commit, too")
    parser.add_argument("--grow", action="store_true", help="add clean files to the list")
    options = parser.parse_args()
    if options.grow:
        grow()
    count = report(check_all())
    if options.base is not None:
        count += report(check_new(options.base))
    if count:
        raise SystemExit(f"{count} sentences break the rules of prose (CONTRIBUTING.md)")


if __name__ == "__main__":
    main()
