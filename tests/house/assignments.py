"""Attributes that are assigned on another object than `self`: parts that are finished after they were made.

Types are inferred from annotations and constructor calls in the same module. These assignments pass:

* a field of a protobuf message;
* a setting of a tensor or an array, and the chain of an exception;
* a private record of the module itself: its class begins with an underscore;
* another instance of the class at hand."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.house.source import Function, Module, classes_named, dotted

LIBRARY = {"grad", "requires_grad", "__cause__", "__context__", "__traceback__", "__suppress_context__"}
ARRAY_FLAGS = "flags"
SETTERS = {"setattr", "object.__setattr__"}
THROUGH = {"list", "sorted", "next", "min", "max", "reversed", "enumerate", "iter", "tuple", "set", "replace", "copy"}
"""Calls whose result has the type of an argument or of its elements."""


@dataclass
class Scope:
    """The names of a function with their annotations and assigned values. Other names are looked up in `around`."""

    around: Scope | None = None
    inside: ast.ClassDef | None = None
    annotated: dict[str, ast.expr] = field(default_factory=dict)
    bound: dict[str, list[ast.expr]] = field(default_factory=dict)

    def find(self, name: str) -> tuple[ast.expr | None, list[ast.expr]]:
        if name in self.annotated or name in self.bound:
            return self.annotated.get(name), self.bound.get(name, [])
        return self.around.find(name) if self.around is not None else (None, [])


def foreign(module: Module) -> Iterator[tuple[ast.Attribute, str]]:
    """Yield every attribute assigned on another object, with the target as text."""
    yield from _Reader(module).read(module.tree, Scope())


class _Reader:
    def __init__(self, module: Module) -> None:
        self._module = module
        self._private = {name for name in module.classes if name.startswith("_")}
        self._messages = {name for name, (_, what) in module.imports.items() if f"{what or name}".endswith("_pb2")}
        self._attributes = {name: _attributes(node) for name, node in module.classes.items()}

    def read(self, tree: ast.AST, scope: Scope) -> Iterator[tuple[ast.Attribute, str]]:
        for node in ast.iter_child_nodes(tree):
            inner = scope
            if isinstance(node, ast.ClassDef):
                inner = Scope(scope, node)
            elif isinstance(node, Function):
                inner = _scope_of(node, scope)
            yield from self._told(node, scope)
            yield from self.read(node, inner)

    def _told(self, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.Attribute, str]]:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            if not self._may(node.value, node.attr, scope):
                yield node, ast.unparse(node)
        elif isinstance(node, ast.Call) and dotted(node.func) in SETTERS and not self._may(node.args[0], "", scope):
            yield ast.Attribute(node.args[0], "", ast.Store(), lineno=node.lineno), ast.unparse(node)

    def _may(self, owner: ast.expr, attribute: str, scope: Scope) -> bool:
        if dotted(owner) in ("self", "cls") or attribute in LIBRARY:
            return True
        if isinstance(owner, ast.Attribute) and owner.attr == ARRAY_FLAGS:
            return True
        kinds = self._kinds(owner, scope)
        own = scope.inside.name if scope.inside is not None else ""
        messages = {name for name in kinds if name.partition(".")[0] in self._messages}
        return bool(kinds & {*self._private, own} or messages)

    def _kinds(self, node: ast.expr | None, scope: Scope, deep: int = 0) -> set[str]:
        """Return the names of the classes that an expression may be an instance of."""
        if node is None or deep > 8:
            return set()
        if isinstance(node, ast.Name):
            annotation, values = scope.find(node.id)
            found = classes_named(annotation)
            return found.union(*(self._kinds(value, scope, deep + 1) for value in values))
        if isinstance(node, ast.Attribute):
            return self._kinds_of_attribute(node, scope, deep)
        if isinstance(node, ast.Call):
            return self._kinds_of_call(node, scope, deep)
        inner = {
            ast.Subscript: ["value"],
            ast.Await: ["value"],
            ast.NamedExpr: ["value"],
            ast.IfExp: ["body", "orelse"],
            ast.GeneratorExp: ["elt"],
            ast.ListComp: ["elt"],
        }.get(type(node), [])
        parts = [getattr(node, name) for name in inner] + (node.values if isinstance(node, ast.BoolOp) else [])
        return set().union(*(self._kinds(part, scope, deep + 1) for part in parts))

    def _kinds_of_attribute(self, node: ast.Attribute, scope: Scope, deep: int) -> set[str]:
        owners = self._kinds(node.value, scope, deep + 1)
        if dotted(node.value) == "self" and scope.inside is not None:
            owners = {scope.inside.name}
        tables = (self._attributes[name] for name in owners if name in self._attributes)
        return set().union(*(classes_named(table.get(node.attr)) for table in tables))

    def _kinds_of_call(self, node: ast.Call, scope: Scope, deep: int) -> set[str]:
        name = dotted(node.func)
        if name in self._module.classes or name.partition(".")[0] in self._messages:
            return {name}
        if isinstance(function := self._module.definitions.get(name), Function):
            return classes_named(function.returns)
        if name in THROUGH:
            return set().union(*(self._kinds(one, scope, deep + 1) for one in node.args))
        if not isinstance(node.func, ast.Attribute):
            return set()
        returned = self._kinds_of_attribute(node.func, scope, deep)
        return returned | self._kinds(node.func.value, scope, deep + 1)  # an element of a container


def _attributes(node: ast.ClassDef) -> dict[str, ast.expr]:
    """Return the annotations of a class's attributes and the return annotations of its methods."""
    found: dict[str, ast.expr] = {}
    for inner in ast.walk(node):
        if isinstance(inner, Function) and inner.returns is not None:
            found.setdefault(inner.name, inner.returns)
        elif isinstance(inner, ast.AnnAssign):
            target = inner.target
            name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
            found[name] = inner.annotation
        elif isinstance(inner, ast.Assign) and isinstance(inner.value, ast.Call):
            for target in inner.targets:
                if isinstance(target, ast.Attribute) and dotted(target.value) == "self":
                    found.setdefault(target.attr, inner.value.func)
    return found


def _scope_of(node: Function, around: Scope) -> Scope:
    scope = Scope(around, around.inside)
    arguments = node.args
    for one in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
        if one.annotation is not None:
            scope.annotated[one.arg] = one.annotation
    for inner in ast.walk(node):
        _bind(inner, scope)
    return scope


def _bind(node: ast.AST, scope: Scope) -> None:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            _bind_target(target, node.value, scope)
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        scope.annotated.setdefault(node.target.id, node.annotation)
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        _bind_target(node.target, node.iter, scope)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        _bind_target(node.optional_vars, node.context_expr, scope)
    elif isinstance(node, ast.NamedExpr):
        _bind_target(node.target, node.value, scope)


def _bind_target(target: ast.expr, value: ast.expr, scope: Scope) -> None:
    if isinstance(target, ast.Name):
        scope.bound.setdefault(target.id, []).append(value)
    elif isinstance(target, ast.Tuple):
        exact = isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
        for at, one in enumerate(target.elts):
            _bind_target(one, value.elts[at] if exact and isinstance(value, ast.Tuple) else value, scope)
