"""Sentences of Markdown pages and of docstrings, each with its line. Code, tables and headings are left out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

CODE = "\N{LOZENGE}"
"""Stands for a piece of code, which is one word and begins a sentence as a name would."""

_ABBREVIATIONS = (
    "e.g",
    "i.e",
    "etc",
    "cf",
    "vs",
    "al",
    "approx",
    "resp",
    "vol",
    "fig",
    "no",
    "p",
    "pp",
    "ch",
    "ca",
    "St",
)
_MAY_END = {"etc", "al", "no", "p"}
"""Abbreviations, or words like them, after which a new sentence may begin."""
_END = re.compile(r"(?:[.!?…]+[)\]\"'”’*_]*|;)(?=\s|$)")
_ABBREVIATED = re.compile(rf"(?:^|[\s(\"])(?:{'|'.join(map(re.escape, _ABBREVIATIONS))}|[A-Z])$", re.IGNORECASE)
_FENCE = re.compile(r"^\s*(```+|~~~+)")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+(?:\[[ xX]\]\s+)?")
_HEADING = re.compile(r"^\s{0,3}#{1,6}\s")
_UNDERLINE = re.compile(r"^\s{0,3}(=+|-+|\*+|_+)\s*$")
_TABLE = re.compile(r"^\s*\||[├└│]|\S {3,}\S")
"""Tables of Markdown, trees that are drawn, and columns with room between."""
_HTML = re.compile(r"^\s*</?[a-zA-Z!]")
_ADMONITION = re.compile(r"^\s*(?:!!!|\?\?\?\+?|===)\s")
_DEFINITION = re.compile(r"^\s*:\s+")
_LINK_TARGET = re.compile(r"^\s*\[[^\]]+\]:\s")
_INLINE = (
    (re.compile(r"(`+)(?:(?!\1).)+\1", re.DOTALL), CODE),
    (re.compile(r"!\[[^\]]*\]\([^)]*\)", re.DOTALL), ""),
    (re.compile(r"\[([^\]]*)\]\([^)]*\)", re.DOTALL), r"\1"),
    (re.compile(r"\[([^\]]*)\]\[[^\]]*\]", re.DOTALL), r"\1"),
    (re.compile(r"\$[^$\n]+\$"), CODE),
    (re.compile(r"<?https?://[^\s)>]+[^\s)>.,;]>?"), CODE),
    (re.compile(r"</?[a-zA-Z][^>\n]*>"), ""),
    (re.compile(r"\*\*|__|(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w)"), ""),
)


@dataclass(frozen=True)
class Sentence:
    """One sentence, or a part of one that a semicolon ends."""

    text: str
    line: int

    @property
    def words(self) -> int:
        return sum(any(letter.isalnum() or letter == CODE for letter in word) for word in self.text.split())

    @property
    def is_question(self) -> bool:
        return self.text.rstrip(")\"'”’*_").endswith("?")


@dataclass(frozen=True)
class Docstring:
    """A docstring with its first line and the name of what it describes: a module, class, function or constant."""

    name: str
    text: str
    line: int


def sentences(text: str, line: int = 1) -> Iterator[Sentence]:
    """Read Markdown, or a docstring, which is written like it."""
    for block, at in _blocks(text.splitlines(), line):
        yield from _split(_plain(block), at)


def _plain(block: str) -> str:
    """Take out markup; the number of lines stays, so that a sentence finds its own."""
    for pattern, instead in _INLINE:
        block = pattern.sub(lambda match, instead=instead: _kept(match, instead), block)
    return block


def _kept(match: re.Match[str], instead: str) -> str:
    replaced = match.expand(instead) if "\\" in instead else instead
    return replaced + "\n" * (match.group().count("\n") - replaced.count("\n"))


def _split(block: str, line: int) -> Iterator[Sentence]:
    start = 0
    for end in [*_ends(block), len(block)]:
        if text := block[start:end].strip():
            before = len(block[:start]) + len(block[start:end]) - len(block[start:end].lstrip())
            yield Sentence(" ".join(text.split()), line + block[:before].count("\n"))
        start = end


def _ends(block: str) -> Iterator[int]:
    for match in _END.finditer(block):
        abbreviated = _ABBREVIATED.search(block[: match.start()]) if match.group() == "." else None
        begins = block[match.end() :].lstrip()[:1].isupper()
        if abbreviated is None or (begins and abbreviated.group().strip().lower() in _MAY_END):
            yield match.end()


def _blocks(lines: list[str], line: int) -> Iterator[tuple[str, int]]:
    """Paragraphs and items of lists, each with the number of its first line."""
    gathered: list[str] = []
    began, fence = 0, ""
    for at, raw in [*enumerate(lines, line), (line + len(lines), "")]:
        if (match := _FENCE.match(raw)) or fence:
            if match and not fence:
                fence = match.group(1)
            elif match and match.group(1).startswith(fence):
                fence = ""
            raw = ""
        text = re.sub(r"^\s*>\s?", "", raw)
        is_indented_code = not gathered and text.startswith("    ") and not _ITEM.match(text)
        is_prose = text.strip() and not is_indented_code and not _no_prose(text)
        opens = bool(_ITEM.match(text) or _DEFINITION.match(text))
        if gathered and (not is_prose or opens):
            if not (is_prose is False and _UNDERLINE.match(text)):  # the line before was a heading
                yield "\n".join(gathered), began
            gathered = []
        if is_prose:
            began = began if gathered else at
            gathered.append(_DEFINITION.sub("", _ITEM.sub("", text)) if opens else text)


def _no_prose(text: str) -> bool:
    patterns = (_HEADING, _UNDERLINE, _HTML, _ADMONITION, _LINK_TARGET)
    return any(pattern.match(text) for pattern in patterns) or _TABLE.search(text) is not None


def docstrings(text: str) -> Iterator[Docstring]:
    """Read the docstrings of a Python file, those below constants and fields too."""
    yield from _docstrings(ast.parse(text), "")


def _docstrings(node: ast.AST, prefix: str) -> Iterator[Docstring]:
    body = getattr(node, "body", [])
    name = prefix or "module"
    for at, inner in enumerate(body if isinstance(body, list) else []):
        if isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant) and isinstance(inner.value.value, str):
            if at == 0 and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield Docstring(name, inner.value.value, inner.lineno)
            elif at and isinstance(body[at - 1], ast.Assign | ast.AnnAssign):
                yield Docstring(_target(body[at - 1], prefix), inner.value.value, inner.lineno)
        for part in _bodies(inner):
            named = getattr(inner, "name", "")
            yield from _docstrings(part, f"{prefix}.{named}".strip(".") if named else prefix)


def _bodies(node: ast.stmt) -> Iterable[ast.AST]:
    return [node] if getattr(node, "body", None) else []


def _target(node: ast.stmt, prefix: str) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return f"{prefix}.{ast.unparse(target) if target is not None else ''}".strip(".")
