"""Which metrics and labels a PromQL expression names: enough of the syntax for our own dashboard and rules."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>"[^"]*")
  | (?P<number>[0-9.]+(?:e[+-]?\d+)?(?![\w.]))
  | (?P<range>\[(?:\d+[smhd]|\$__rate_interval)\])
  | (?P<name>[a-zA-Z_:][\w:]*)
  | (?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^<>=(){},])
    )""",
    re.X,
)
_WORDS = {"and", "or", "unless", "bool"}
_GROUPING = {"by", "without", "on", "ignoring"}


@dataclass
class Selector:
    """A metric and its label matchers, as (label, value) pairs."""

    name: str
    matchers: list[tuple[str, str]] = field(default_factory=list)
    ranged: bool = False


@dataclass
class Expression:
    selectors: list[Selector] = field(default_factory=list)
    functions: set[str] = field(default_factory=set)
    labels: set[str] = field(default_factory=set)
    """Labels in groupings such as `by (…)`."""


def tokens(text: str) -> list[tuple[str, str]]:
    """Split an expression into (kind, text) tokens. Raises ValueError for unsupported syntax."""
    found, at = [], 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"cannot read {text[at : at + 30]!r}")
        kind = match.lastgroup
        assert kind is not None
        found.append((kind, match[kind]))
        at = match.end()
    return found


def parse(text: str) -> Expression:
    """Parse an expression. Raises ValueError for unbalanced brackets and unsupported syntax."""
    words, expression, depth, at = tokens(text), Expression(), 0, 0
    while at < len(words):
        kind, word = words[at]
        following = words[at + 1][1] if at + 1 < len(words) else ""
        at += 1
        if word in _GROUPING:
            at, labels = _until(words, at, "(", ")")
            expression.labels |= {it for kind, it in labels if kind == "name"}
        elif kind == "name" and word not in _WORDS:
            if following == "(" or following in _GROUPING:
                expression.functions.add(word)
            else:
                expression.selectors.append(Selector(word))
        elif word == "{":
            at, inner = _until(words, at - 1, "{", "}")
            expression.selectors[-1].matchers = _matchers(inner)
        elif kind == "range":
            expression.selectors[-1].ranged = True
        depth += {"(": 1, ")": -1}.get(word, 0)
        if depth < 0:
            break
    if depth:
        raise ValueError(f"unbalanced: {text}")
    return expression


def _until(words: list[tuple[str, str]], at: int, opening: str, closing: str) -> tuple[int, list[tuple[str, str]]]:
    """Return the position after the closing bracket, and the tokens between the brackets that open at `at`."""
    if at >= len(words) or words[at][1] != opening:
        raise ValueError(f"{opening} expected")
    end = next((i for i in range(at, len(words)) if words[i][1] == closing), None)
    if end is None:
        raise ValueError(f"{closing} is missing")
    return end + 1, words[at + 1 : end]


def _matchers(inner: list[tuple[str, str]]) -> list[tuple[str, str]]:
    found = []
    for at in range(0, len(inner), 4):
        group = inner[at : at + 3]
        if [kind for kind, _ in group] != ["name", "sign", "string"]:
            raise ValueError(f"cannot read the matcher {group}")
        found.append((group[0][1], group[2][1].strip('"')))
    return found
