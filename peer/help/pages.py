"""Finds the pages of the documentation for `peer help`.

A wheel contains the pages beside this module (see `setup.py`). A checkout or an editable installation reads them from
`docs/`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from peer.errors import UsageError

KINDS = ("tutorials", "guides", "results", "explanation", "reference", "decisions")
"""Folders of pages, in the order of the list that `peer help` prints."""
BUILT = Path(__file__).with_name("docs")
"""Folder of the pages in a wheel."""
CHECKOUT = Path(__file__).parents[2] / "docs"

_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_FENCE = re.compile(r"^(```sh) no-run .*$", re.MULTILINE)
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
_IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)\n?")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
_PAGE = re.compile(r"(?:[\w./-]*/)?([\w-]+)\.md(?:#([\w-]+))?")


@dataclass(frozen=True, slots=True)
class HelpPage:
    """A page of the documentation. `kind`: the name of its folder, such as `guides`."""

    topic: str
    kind: str
    text: str

    @property
    def title(self) -> str:
        """The page's first heading."""
        found = _HEADING.search(self.text)
        return found[2] if found else self.topic

    def headings(self) -> list[str]:
        """Return the names of the sections, as `section` accepts them."""
        return [_slug(name) for _, name in _HEADING.findall(self.text)][1:]

    def section(self, name: str) -> str:
        """Return one section with its subsections. Raises UsageError for an unknown name."""
        heads = list(_HEADING.finditer(self.text))
        for at, head in enumerate(heads):
            if _slug(head[2]) == _slug(name):
                later = (other.start() for other in heads[at + 1 :] if len(other[1]) <= len(head[1]))
                return self.text[head.start() : next(later, len(self.text))]
        raise UsageError(f"the page {self.topic} has no section {name!r}", _nearest(name, self.headings(), self.topic))


def pages() -> list[HelpPage]:
    """Return all pages, sorted by kind and name. Empty when this installation lacks them."""
    folder = BUILT if BUILT.is_dir() else CHECKOUT
    files = [file for kind in KINDS for file in sorted((folder / kind).glob("*.md"))]
    return [HelpPage(file.stem, file.parent.name, _for_terminals(file.read_text("utf-8"))) for file in files]


def page(topic: str) -> HelpPage:
    """Return a page by its name. Raises UsageError, which suggests similar names."""
    found = {one.topic: one for one in pages()}
    if topic in found:
        return found[topic]
    raise UsageError(f"no page is called {topic!r}", _nearest(topic, list(found)))


def _nearest(name: str, names: Sequence[str], topic: str = "") -> str:
    near = [f"`peer help {f'{topic} {one}'.strip()}`" for one in get_close_matches(name.lower(), names, n=2)]
    return (f"Did you mean {' or '.join(near)}? " if near else "") + f"See: {f'peer help {topic}'.strip()}"


def _slug(heading: str) -> str:
    """Return the anchor of a heading, as MkDocs makes it."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def _for_terminals(text: str) -> str:
    """Remove what a terminal cannot show, and replace links to pages by the command that shows the page."""
    text = _IMAGE.sub("", _FENCE.sub(r"\1", _COMMENT.sub("", text)))
    return _LINK.sub(_linked, text)


def _linked(match: re.Match[str]) -> str:
    words, target = match.groups()
    if target.startswith("http"):
        return f"{words} ({target})"
    found = _PAGE.fullmatch(target)
    return f"{words} (`peer help {' '.join(filter(None, found.groups()))}`)" if found else words
