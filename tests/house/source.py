"""The product's source as syntax trees, and the facts that names and annotations show without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

GENERATED = "peer/v1/"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One file: its path from the root, its text and its tree."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The dotted name."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @cached_property
    def definitions(self) -> dict[str, ast.stmt]:
        """Every top-level class, function and assignment by its name."""
        found: dict[str, ast.stmt] = {}
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef | Function):
                found[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {target.id: node for target in targets if isinstance(target, ast.Name)}
        return found

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """The top-level classes."""
        return {name: node for name, node in self.definitions.items() if isinstance(node, ast.ClassDef)}

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """The module and the name in it (or nothing) for every imported name."""
        found = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                found |= {one.asname or one.name: (node.module or "", one.name) for one in node.names}
            elif isinstance(node, ast.Import):
                found |= {one.asname or one.name: (one.name, "") for one in node.names}
        return found


@dataclass(frozen=True)
class Source:
    """All modules, by path."""

    modules: Mapping[str, Module] = field(default_factory=dict)

    @staticmethod
    def of(texts: Mapping[str, str]) -> Source:
        return Source({path: Module(path, text) for path, text in sorted(texts.items())})

    @staticmethod
    def read(root: Path, folder: str = "peer") -> Source:
        paths = {path.relative_to(root).as_posix(): path for path in (root / folder).rglob("*.py")}
        return Source.of({name: path.read_text() for name, path in paths.items() if not name.startswith(GENERATED)})

    @cached_property
    def _by_name(self) -> dict[str, Module]:
        return {module.name: module for module in self.modules.values()}

    def __iter__(self) -> Iterator[Module]:
        return iter(self.modules.values())

    def look_up(self, module: Module, name: str) -> tuple[Module, ast.stmt] | None:
        """Return the definition of a name in a module, following imports within the product. None: it is not in the
        product."""
        for _ in range(10):  # through at most 10 re-exports
            if (node := module.definitions.get(name)) is not None:
                return module, node
            origin, name = module.imports.get(name, ("", ""))
            if (nearer := self._by_name.get(origin)) is None:
                return None
            module = nearer
        return None


def dotted(node: ast.expr | None) -> str:
    """Return `a.b.c` for a chain of names. Empty: any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def called(node: ast.expr) -> ast.expr:
    """Return the function of a call, or any other expression unchanged."""
    return node.func if isinstance(node, ast.Call) else node


def annotation_of(node: ast.expr | None) -> ast.expr | None:
    """Return an annotation without its quotes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return ast.parse(node.value, mode="eval").body
    return node


def classes_named(annotation: ast.expr | None) -> set[str]:
    """Return every dotted name in an annotation."""
    annotation = annotation_of(annotation)
    if annotation is None:
        return set()
    return {name for node in ast.walk(annotation) if isinstance(node, ast.expr) and (name := dotted(node))}
