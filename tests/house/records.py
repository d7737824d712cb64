"""The difference between a record and a part.

A *record* is a dataclass, named tuple, typed dict or pydantic model whose fields are all plain data. It is frozen, or
its methods are properties, class methods and those of Python itself. Plain data are numbers, text, bytes, enums, paths,
literals, other records, and tuples, lists, sets and mappings of such. Every other class is a *part*."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from tests.house.source import Function, Module, Source, annotation_of, called, dotted

PLAIN = {"int", "float", "str", "bytes", "bool", "complex", "None", "Path", "pathlib.Path", "memoryview", "object"}
CONTAINERS = {
    *("tuple", "list", "set", "frozenset", "dict", "Mapping", "Sequence", "Collection", "Iterable", "deque", "Counter"),
    *("Annotated", "Optional", "Union", "NotRequired", "Required", "Final", "InitVar", "defaultdict", "type", "Set"),
}
ENUMS = {"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"}
TUPLES = {"NamedTuple", "TypedDict"}
MODEL = "BaseModel"
QUIET = {"property", "classmethod", "staticmethod", "cached_property", "model_validator", "field_validator"}


@dataclass(frozen=True)
class Constructor:
    """A class as it is made: the names of its parameters."""

    module: Module
    node: ast.ClassDef
    parameters: tuple[str, ...]
    is_record: bool


def constructor(source: Source, module: Module, node: ast.ClassDef) -> Constructor:
    """Read how a class is made: its own or inherited `__init__`, or the fields that stand for one."""
    own = _own_init(source, module, node)
    if own is not None:
        return Constructor(module, node, own, is_record=False)
    fields = _fields(source, module, node)
    return Constructor(module, node, tuple(fields), _is_record(source, module, node, ()))


def _own_init(source: Source, module: Module, node: ast.ClassDef) -> tuple[str, ...] | None:
    for inner in node.body:
        if isinstance(inner, Function) and inner.name == "__init__":
            arguments = inner.args
            named = [*arguments.posonlyargs, *arguments.args][1:] + arguments.kwonlyargs
            rest = [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
            return tuple(one.arg for one in [*named, *rest])
    if _is_dataclass(node):
        return None
    for base_module, base in _bases(source, module, node):
        if (found := _own_init(source, base_module, base)) is not None:
            return found
    return None


def _bases(source: Source, module: Module, node: ast.ClassDef) -> list[tuple[Module, ast.ClassDef]]:
    found = [source.look_up(module, dotted(base)) for base in node.bases]
    return [
        (where, base) for one in found if one is not None for where, base in [one] if isinstance(base, ast.ClassDef)
    ]


def _ancestors(source: Source, module: Module, node: ast.ClassDef) -> set[str]:
    """The last part of every base's name, those of the bases too."""
    own = {dotted(base).rpartition(".")[2] for base in node.bases}
    return own.union(*(_ancestors(source, *base) for base in _bases(source, module, node)))


def _decorator(node: ast.ClassDef) -> ast.expr | None:
    return next((one for one in node.decorator_list if dotted(called(one)).endswith("dataclass")), None)


def _is_dataclass(node: ast.ClassDef) -> bool:
    return _decorator(node) is not None


def _is_frozen(node: ast.ClassDef) -> bool:
    decorator = _decorator(node)
    return isinstance(decorator, ast.Call) and any(
        one.arg == "frozen" and isinstance(one.value, ast.Constant) and one.value.value is True
        for one in decorator.keywords
    )


def _fields(source: Source, module: Module, node: ast.ClassDef) -> dict[str, tuple[Module, ast.expr]]:
    """Parameters that fields make, with their annotations; those of the bases first."""
    found: dict[str, tuple[Module, ast.expr]] = {}
    for base in _bases(source, module, node):
        found |= _fields(source, *base)
    if not (_is_dataclass(node) or _ancestors(source, module, node) & {*TUPLES, MODEL}):
        return found
    for inner in node.body:
        if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name) and _is_parameter(inner):
            found[inner.target.id] = (module, inner.annotation)
    return found


def _is_parameter(node: ast.AnnAssign) -> bool:
    if "ClassVar" in ast.unparse(node.annotation):
        return False
    return not (
        isinstance(node.value, ast.Call)
        and any(one.arg == "init" and ast.unparse(one.value) == "False" for one in node.value.keywords)
    )


def _is_record(source: Source, module: Module, node: ast.ClassDef, above: tuple[ast.ClassDef, ...]) -> bool:
    if node in above:  # a tree of records
        return True
    is_value = bool(_ancestors(source, module, node) & {*TUPLES, MODEL})
    if not (is_value or _is_dataclass(node)):
        return False
    if not (is_value or _is_frozen(node) or _is_quiet(node)):
        return False
    return all(
        _is_plain(source, where, annotation, (*above, node))
        for where, annotation in _fields(source, module, node).values()
    )


def _is_quiet(node: ast.ClassDef) -> bool:
    """Whether it has no method of its own that does something."""
    for inner in node.body:
        if isinstance(inner, Function) and not (inner.name.startswith("__") and inner.name.endswith("__")):
            decorators = {dotted(called(one)).rpartition(".")[2] for one in inner.decorator_list}
            if not decorators & QUIET:
                return False
    return True


def _is_plain(source: Source, module: Module, node: ast.expr, above: tuple[ast.ClassDef, ...]) -> bool:
    """Whether an annotation names plain data alone."""
    read = annotation_of(node)
    if isinstance(read, ast.Constant):
        return read.value is None or read.value is Ellipsis
    if isinstance(read, ast.BinOp):
        return _is_plain(source, module, read.left, above) and _is_plain(source, module, read.right, above)
    if isinstance(read, ast.Tuple | ast.List):
        return all(_is_plain(source, module, one, above) for one in read.elts)
    if isinstance(read, ast.Subscript):
        name = dotted(read.value).rpartition(".")[2]
        if name == "Annotated" and isinstance(read.slice, ast.Tuple):
            return _is_plain(source, module, read.slice.elts[0], above)
        return name == "Literal" or (name in CONTAINERS and _is_plain(source, module, read.slice, above))
    name = dotted(read)
    if name in PLAIN or name in CONTAINERS:
        return True
    found = source.look_up(module, name) if name else None
    if found is None:
        return False
    where, definition = found
    if isinstance(definition, ast.ClassDef):
        return bool(_ancestors(source, where, definition) & ENUMS) or _is_record(source, where, definition, above)
    return isinstance(definition, ast.Assign | ast.AnnAssign) and _is_plain_alias(source, where, definition, above)


def _is_plain_alias(
    source: Source, module: Module, node: ast.Assign | ast.AnnAssign, above: tuple[ast.ClassDef, ...]
) -> bool:
    value = node.value
    if isinstance(value, ast.Call) and dotted(value.func) == "NewType":
        value = value.args[1]
    return value is not None and _is_plain(source, module, value, above)
