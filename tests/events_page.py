"""docs/reference/journal-events.md, made from peer/observe/events.py: the page and the journal cannot disagree."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields

from peer.observe import events
from peer.observe.events import KINDS, Event

HEAD = """\
# Journal events

<!-- Made from peer/observe/events.py by `python -m tests.generated --write`: edit there. -->

A peer's journal is `runs/<id>/journal.jsonl` under its home: one JSON object a line, append-only, rotated at a
size limit. Each line has `t` in seconds since the epoch, `kind`, and the fields below. Metrics, views and reports are
made from it. New fields may be added, with defaults. A field or kind never changes its meaning.
"""


def page() -> str:
    """Return the text of the page."""
    docs = {name: dict(_field_docs(node)) for name, node in _classes()}
    rows = "\n".join(f"| [`{kind}`](#{kind}) | {_first_line(event)} |" for kind, event in KINDS.items())
    index = f"\n| kind | what happened |\n| --- | --- |\n{rows}\n"
    return HEAD + index + "".join(_section(kind, event, docs[event.__name__]) for kind, event in KINDS.items())


def _section(kind: str, event: type[Event], docs: dict[str, str]) -> str:
    rows = "".join(f"| `{field.name}` | {_type(field)} | {_note(field, docs)} |\n" for field in fields(event))
    table = f"\n| field | type | meaning |\n| --- | --- | --- |\n{rows}" if rows else ""
    return f"\n## {kind}\n\n{_flat(inspect.getdoc(event) or '')}\n{table}"


def _type(field: Field[object]) -> str:
    return "[code](codes.md)" if field.type == "AnyCode" else str(field.type)


def _note(field: Field[object], docs: dict[str, str]) -> str:
    default = "" if field.default is MISSING else f" Default: {field.default!r}."
    return f"{_flat(docs.get(field.name, ''))}{default}".strip().replace("|", "\\|")


def _classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for node in ast.parse(inspect.getsource(events)).body:
        if isinstance(node, ast.ClassDef):
            yield node.name, node


def _field_docs(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield (field, string below it) for each field of a class. Read from the source, because Python does not store
    it."""
    for field, doc in zip(node.body, node.body[1:], strict=False):
        match field, doc:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, text


def _first_line(event: type[Event]) -> str:
    return _flat((inspect.getdoc(event) or "").partition(". ")[0]).rstrip(".") + "."


def _flat(text: str) -> str:
    return " ".join(text.split())
