"""The pages that `peer help` shows: those of `docs/`, which the wheel holds beside this module (`setup.py`).

A checkout, and an installation that is editable, read `docs/` itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from peer.errors import UsageError

KINDS = ("tutorials", "guides", "results", "explanation", "reference", "decisions")
"""Folders of pages, in the order in which they are listed."""
BUILT = Path(__file__).with_name("docs")
"""Where a wheel has the pages."""
CHECKOUT = Path(__file__).parents[2] / "docs"

_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_FENCE = re.compile(r"^(```sh) no-run .*$", re.MULTILINE)
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
_IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)\n?")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
_PAGE = re.compile(r"(?:[\w./-]*/)?([\w-]+)\.md(?:#([\w-]+))?")


@dataclass(frozen=True, slots=True)
class HelpPage:
    """A page of the documentation. `kind`: its folder, as `guides`."""

    topic: str
    kind: str
    text: str

    @property
    def title(self) -> str:
        """Its first heading."""
        found = _HEADING.search(self.text)
        return found[2] if found else self.topic

    def headings(self) -> list[str]:
        """The names that `section` takes."""
        return [_slug(name) for _, name in _HEADING.findall(self.text)][1:]

    def section(self, name: str) -> str:
        """Return one section, with those below it. Raises UsageError."""
        heads = list(_HEADING.finditer(self.text))
        for at, head in enumerate(heads):
            if _slug(head[2]) == _slug(name):
                later = (other.start() for other in heads[at + 1 :] if len(other[1]) <= len(head[1]))
                return self.text[head.start() : next(later, len(self.text))]
        raise UsageError(f"the page {self.topic} has no section {name!r}", _nearest(name, self.headings(), self.topic))


def pages() -> list[HelpPage]:
    """Read all pages: by kind, and by name within one. Empty when this installation lacks them."""
    folder = BUILT if BUILT.is_dir() else CHECKOUT
    files = [file for kind in KINDS for file in sorted((folder / kind).glob("*.md"))]
    return [HelpPage(file.stem, file.parent.name, _for_terminals(file.read_text("utf-8"))) for file in files]


def page(topic: str) -> HelpPage:
    """Return a page by its name. Raises UsageError, with the names that are like it."""
    found = {one.topic: one for one in pages()}
    if topic in found:
        return found[topic]
    raise UsageError(f"no page is called {topic!r}", _nearest(topic, list(found)))


def _nearest(name: str, names: Sequence[str], topic: str = "") -> str:
    near = [f"`peer help {f'{topic} {one}'.strip()}`" for one in get_close_matches(name.lower(), names, n=2)]
    return (f"Did you mean {' or '.join(near)}? " if near else "") + f"See: {f'peer help {topic}'.strip()}"


def _slug(heading: str) -> str:
    """The name of a heading in a link, as MkDocs makes it."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def _for_terminals(text: str) -> str:
    """Take out what a terminal cannot show, and let links name the command that shows their page."""
    text = _IMAGE.sub("", _FENCE.sub(r"\1", _COMMENT.sub("", text)))
    return _LINK.sub(_linked, text)


def _linked(match: re.Match[str]) -> str:
    words, target = match.groups()
    if target.startswith("http"):
        return f"{words} ({target})"
    found = _PAGE.fullmatch(target)
    return f"{words} (`peer help {' '.join(filter(None, found.groups()))}`)" if found else words
