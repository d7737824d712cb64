"""Structure that a reader relies on: `python -m tests.house.structure` prints every finding with its line.

`known.txt` lists today's findings. It may only get shorter: `--forget` takes out the lines that are not needed."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.house.assignments import foreign
from tests.house.source import Module, Source

ROOT = Path(__file__).parents[2]
KNOWN = Path(__file__).with_name("known.txt")

CONTRACTS = (
    "The core does no I/O: no loop, no sockets, no clock, no torch",
    "A round reads downwards",
    "Pairs and groups do not know each other",
    "The rounds know no topology",
    "Nothing but the registry knows an experimental method",
)


@dataclass(frozen=True, order=True)
class Finding:
    """A violation of a rule of structure. `key` identifies it without its line number, so that it is stable when lines
    move."""

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


def names_twice(source: Source) -> Iterator[Finding]:
    """Find public class names that are defined in more than one module."""
    places: dict[str, list[tuple[Module, ast.ClassDef]]] = defaultdict(list)
    for module in source:
        for name, node in module.classes.items():
            if not name.startswith("_"):
                places[name].append((module, node))
    for name, found in places.items():
        if len(found) > 1:
            for module, node in found:
                yield Finding("twice", module.path, name, node.lineno, f"{len(found)} classes have this name")


def foreign_assignments(source: Source) -> Iterator[Finding]:
    """Find attributes that are assigned on another object."""
    for module in source:
        for node, target in foreign(module):
            yield Finding("assigned", module.path, target, node.lineno)


def loose_contracts(pyproject: str) -> Iterator[Finding]:
    """Find import contracts that were removed, and imports that they do not check."""
    contracts = {one["name"]: one for one in tomllib.loads(pyproject)["tool"]["importlinter"]["contracts"]}
    for name in CONTRACTS:
        if name not in contracts:
            yield Finding("contract", "pyproject.toml", name, 0, "is gone")
    for contract in contracts.values():
        for exception in contract.get("ignore_imports", []):
            yield Finding("contract", "pyproject.toml", exception, 0, "is not looked at")


CHECKS = (names_twice, foreign_assignments)


def findings(root: Path = ROOT) -> list[Finding]:
    """Return all findings, in the order of the files."""
    source = Source.read(root)
    found = [one for check in CHECKS for one in check(source)]
    return sorted([*found, *loose_contracts((root / "pyproject.toml").read_text())], key=lambda one: str(one))


def known(text: str) -> dict[str, str]:
    """Return the keys of accepted findings, each with its reason or an empty one."""
    lines = [line.partition("  #") for line in text.splitlines() if line and not line.startswith("#")]
    return {key.strip(): reason.strip() for key, _, reason in lines}


def without(text: str, keys: Iterable[str]) -> str:
    """Return the list without the given lines."""
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
