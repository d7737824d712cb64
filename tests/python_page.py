"""docs/reference/python.md, made from the docstrings of what `import peer` offers.

The sources are parsed and not imported: the libraries that the callbacks serve take seconds to load."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from pathlib import Path

import peer

HEAD = """\
# Python interface

<!-- Made from docstrings by `python -m tests.generated --write`: edit there. -->

Only these names are the public interface. Everything else is internal, and may change without notice.
[The tutorial](../tutorials/own-loop.md) shows them at work. Every error is a `peer.PeerError` with `found`, `why` and
`fix`; [the exit codes](exit-codes.md) list its kinds, which are in `peer.errors`. `peer.events` has
[the events of the journal](journal-events.md), and [the manifest](manifest.md) has a page of its own.

In the signatures `Named` is an `nn.Module` or a mapping of names to tensors, `Loss` is a function of the model and a
batch that returns a float or a tensor of one element, `Batch` is whatever the loader yields, and `Option` is a value of
a command's option. A `DaemonStatus` has the fields of `peer status --json`. A `ReportCurve` has a `name`, its `losses`,
and in `along` the places of the losses by measure, as `"tokens"`.

"""
ORDER = ("join", "Swarm", "JoinOptions", "check", "found", "FoundedRun", "simulate", "swarm", "compare", "LabReport")
"""Public names with a section; `ELSEWHERE` are linked above."""
ELSEWHERE = {"Manifest", "PeerError", "Ticket", "errors", "events"}
CALLBACKS = ("peer.hf", "peer.lightning")
SECTIONS = re.compile(r"^(Args|Raises):\n((?: {4}.*\n?|\n)+)", re.MULTILINE)
ITEM = re.compile(r"^ {4}(\w[\w, .]*): ", re.MULTILINE)

Definition = ast.FunctionDef | ast.ClassDef


def page() -> str:
    """Return the text of the file."""
    assert {*ORDER, *ELSEWHERE} == set(peer.__all__), "a public name needs a section here"
    sections = [_section(f"peer.{name}", _defined(peer._PLACES[name], name)) for name in ORDER]
    sections += [_section(f"{module}.PeerCallback", _defined(module, "PeerCallback")) for module in CALLBACKS]
    return HEAD + "\n".join(sections)


def _defined(module: str, name: str) -> Definition:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    for node in ast.parse(Path(spec.origin).read_text()).body:
        if isinstance(node, Definition) and node.name == name:
            return node
    raise AssertionError(f"{module} does not define {name}")


def _section(title: str, node: Definition) -> str:
    parts = [f"## {title}"]
    if isinstance(node, ast.FunctionDef):
        parts += [_signature(title, node), _text(node)]
        return "\n\n".join(parts) + "\n"
    parts.append(_text(node))
    fields = _fields(node)
    if fields:
        parts.append("\n".join(fields))
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and _is_shown(title, member):
            parts.append(_member(title, member))
    return "\n\n".join(parts) + "\n"


def _is_shown(owner: str, member: ast.FunctionDef) -> bool:
    """Return whether users call this. A callback's methods are called by its Trainer."""
    if owner.endswith("Callback"):
        return member.name == "__init__"
    return owner in ("peer.Swarm", "peer.LabReport") and not member.name.startswith("_")


def _member(owner: str, member: ast.FunctionDef) -> str:
    name = owner.split(".")[-1]
    if any(isinstance(one, ast.Name) and one.id == "property" for one in member.decorator_list):
        kind = f" : `{ast.unparse(member.returns)}`" if member.returns is not None else ""
        return f"### {name}.{member.name}{kind}\n\n{_text(member)}".rstrip()
    called = name if member.name == "__init__" else f"{name}.{member.name}"
    return f"### {called}()\n\n{_signature(called, member)}\n\n{_text(member)}".rstrip()


def _signature(name: str, node: ast.FunctionDef) -> str:
    """Return the call as a block of code: on one line, or a line for each argument."""
    own = node.args
    if own.args and own.args[0].arg == "self":
        own.args = own.args[1:]
    shown = ast.unparse(own)
    result = "" if node.returns is None or node.name == "__init__" else f" -> {ast.unparse(node.returns)}"
    line = f"{name}({shown}){result}"
    if len(line) > 100:
        line = f"{name}(\n    " + ",\n    ".join(_arguments(own)) + f",\n){result}"
    return f"```python\n{line}\n```"


def _arguments(own: ast.arguments) -> list[str]:
    """Return each argument with its type and its default."""
    plain = [None] * (len(own.args) - len(own.defaults)) + list(own.defaults)
    found = [_argument(one, default) for one, default in zip(own.args, plain, strict=True)]
    if own.kwonlyargs:
        found.append("*")
    found += [_argument(one, default) for one, default in zip(own.kwonlyargs, own.kw_defaults, strict=True)]
    return [*found, f"**{own.kwarg.arg}"] if own.kwarg is not None else found


def _argument(one: ast.arg, default: ast.expr | None) -> str:
    typed = one.arg if one.annotation is None else f"{one.arg}: {ast.unparse(one.annotation)}"
    return typed if default is None else f"{typed} = {ast.unparse(default)}"


def _fields(node: ast.ClassDef) -> list[str]:
    """Return a line for each public field of a dataclass, with the text below it."""
    found = list[str]()
    for number, field in enumerate(node.body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        default = "" if field.value is None else f" = {ast.unparse(field.value)}"
        below = node.body[number + 1] if number + 1 < len(node.body) else None
        text = ""
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            text = f" {_joined(str(below.value.value))}"
        found.append(f"- `{field.target.id}: {ast.unparse(field.annotation)}{default}`{text}")
    return found


def _text(node: Definition) -> str:
    """Return a docstring as Markdown: arguments and errors as lists."""
    text = inspect.cleandoc(ast.get_docstring(node, clean=False) or "") + "\n"
    return re.sub(r"\n{3,}", "\n\n", SECTIONS.sub(_listed, text)).strip()


def _listed(section: re.Match[str]) -> str:
    heads = {"Args": "Arguments", "Raises": "Errors"}
    parts = ITEM.split("\n" + section[2])[1:]
    items = [f"- `{name}`: {_joined(text)}" for name, text in zip(parts[::2], parts[1::2], strict=True)]
    return f"**{heads[section[1]]}**\n\n" + "\n".join(items) + "\n\n"


def _joined(text: str) -> str:
    return " ".join(text.split())
