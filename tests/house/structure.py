"""Measures of how hard the house is to enter: `python -m tests.house.structure` prints every finding with its line.

`known.txt` lists today's findings. It may only get shorter: `--forget` takes out the lines that are not needed."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.house.assignments import foreign
from tests.house.records import constructor
from tests.house.source import Module, Source, called, docstring_span, dotted, functions

ROOT = Path(__file__).parents[2]
KNOWN = Path(__file__).with_name("known.txt")

MOST_MODULES = 20
ROOMY = {"peer/cli", "peer/lab/sim"}
MOST_PARAMETERS = 8
MOST_LINES = 400
MOST_FUNCTION_LINES = 60
LIST_SHARE = 0.8
"""Part of a list's lines that are definitions of records or tables."""
CONTRACTS = (
    "The core does no I/O: no loop, no sockets, no clock, no torch",
    "A round reads downwards",
    "Pairs and groups do not know each other",
)
_SAYS_LIST = re.compile(r"\b(list|table)s?\b")


@dataclass(frozen=True, order=True)
class Finding:
    """One thing that should be otherwise. `key` names it without its line, so that it stays while lines move."""

    check: str
    path: str
    name: str
    line: int = 0
    what: str = ""

    @property
    def key(self) -> str:
        return f"{self.check} {self.path} {self.name}".strip()

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.check}: {self.name} {self.what}".strip()


def large_folders(source: Source) -> Iterator[Finding]:
    """Find folders with too many modules."""
    counts: dict[str, int] = defaultdict(int)
    for module in source:
        counts[module.folder] += not module.path.endswith("__init__.py")
    for folder, count in counts.items():
        if count > MOST_MODULES and folder not in ROOMY:
            yield Finding("folder", folder, "", 0, f"{count} modules, at most {MOST_MODULES}")


def names_twice(source: Source) -> Iterator[Finding]:
    """Find public class names that stand in more than one module."""
    places: dict[str, list[tuple[Module, ast.ClassDef]]] = defaultdict(list)
    for module in source:
        for name, node in module.classes.items():
            if not name.startswith("_"):
                places[name].append((module, node))
    for name, found in places.items():
        if len(found) > 1:
            for module, node in found:
                yield Finding("twice", module.path, name, node.lineno, f"{len(found)} classes have this name")


def long_constructors(source: Source) -> Iterator[Finding]:
    """Find parts that are made of too much."""
    for module in source:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                made = constructor(source, module, node)
                if len(made.parameters) > MOST_PARAMETERS and not made.is_record:
                    what = f"{len(made.parameters)} parameters, at most {MOST_PARAMETERS}"
                    yield Finding("constructor", module.path, node.name, node.lineno, what)


def foreign_assignments(source: Source) -> Iterator[Finding]:
    """Find attributes that are assigned on another object."""
    for module in source:
        for node, target in foreign(module):
            yield Finding("assigned", module.path, target, node.lineno)


def long_modules(source: Source) -> Iterator[Finding]:
    """Find modules that are long and no list."""
    for module in source:
        if module.lines > MOST_LINES and not is_list(module):
            yield Finding("module", module.path, "", 1, f"{module.lines} lines, at most {MOST_LINES}")


def is_list(module: Module) -> bool:
    """Whether a module says in its first paragraph that it is a list or a table, and for the most part is one."""
    says = (ast.get_docstring(module.tree) or "").split("\n\n")[0]
    body = [node for node in module.tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    total = sum(map(_span, body)) - docstring_span(module.tree)
    listed = sum(_span(node) for node in body if _is_entry(node))
    return bool(_SAYS_LIST.search(says)) and listed >= LIST_SHARE * total


def _span(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(one.lineno for one in decorators)])
    return (node.end_lineno or node.lineno) - first + 1


def _is_entry(node: ast.stmt) -> bool:
    """Whether a definition is one of a record or of a table."""
    if isinstance(node, ast.ClassDef):
        return any(dotted(called(one)).endswith("dataclass") for one in node.decorator_list)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return isinstance(node.value, ast.Tuple | ast.List | ast.Dict | ast.Set | ast.DictComp)
    return False


def long_functions(source: Source) -> Iterator[Finding]:
    """Find functions that are long and no command of the command line."""
    for module in source:
        for name, node in functions(module.tree):
            span = (node.end_lineno or node.lineno) - node.lineno + 1
            decorators = [dotted(called(one)).rpartition(".")[2] for one in node.decorator_list]
            if span > MOST_FUNCTION_LINES and not {"command", "group"} & set(decorators):
                what = f"{span} lines, at most {MOST_FUNCTION_LINES}"
                yield Finding("function", module.path, name, node.lineno, what)


def loose_contracts(pyproject: str) -> Iterator[Finding]:
    """Find import contracts that are gone, and imports that they do not look at."""
    contracts = {one["name"]: one for one in tomllib.loads(pyproject)["tool"]["importlinter"]["contracts"]}
    for name in CONTRACTS:
        if name not in contracts:
            yield Finding("contract", "pyproject.toml", name, 0, "is gone")
    for contract in contracts.values():
        for exception in contract.get("ignore_imports", []):
            yield Finding("contract", "pyproject.toml", exception, 0, "is not looked at")


CHECKS = (
    large_folders,
    names_twice,
    long_constructors,
    foreign_assignments,
    long_modules,
    long_functions,
)


def findings(root: Path = ROOT) -> list[Finding]:
    """Find all there is, in the order of the files."""
    source = Source.read(root)
    found = [one for check in CHECKS for one in check(source)]
    return sorted([*found, *loose_contracts((root / "pyproject.toml").read_text())], key=lambda one: str(one))


def known(text: str) -> dict[str, str]:
    """Keys of findings that are allowed, each with the reason why it stays, or none."""
    lines = [line.partition("  #") for line in text.splitlines() if line and not line.startswith("#")]
    return {key.strip(): reason.strip() for key, _, reason in lines}


def without(text: str, keys: Iterable[str]) -> str:
    """The list without some of its lines."""
    gone = set(keys)
    return "".join(line for line in text.splitlines(keepends=True) if line.partition("  #")[0].strip() not in gone)


def main() -> None:
    found = findings()
    allowed = known(KNOWN.read_text())
    if "--forget" in sys.argv:
        KNOWN.write_text(without(KNOWN.read_text(), allowed.keys() - {one.key for one in found}))
        return
    if "--keys" in sys.argv:
        print("\n".join(sorted({one.key for one in found})))
        return
    for one in found:
        print(one, "(known)" if one.key in allowed else "")


if __name__ == "__main__":
    main()
