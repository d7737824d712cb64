"""The structure of the code does not get worse: every finding is in known.txt, and every line there is still found."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable

import pytest

from tests.house import structure
from tests.house.source import Source
from tests.house.structure import Finding

Check = Callable[[Source], Iterable[Finding]]


@pytest.fixture(scope="module")
def found() -> list[Finding]:
    return structure.findings()


def test_nothing_gets_worse(found: list[Finding]) -> None:
    """Fix the finding. A new line in known.txt needs a permanent reason."""
    allowed = structure.known(structure.KNOWN.read_text())
    assert [str(one) for one in found if one.key not in allowed] == []


def test_what_is_mended_is_forgotten(found: list[Finding]) -> None:
    """`python -m tests.house.structure --forget` takes these lines out of known.txt."""
    allowed = structure.known(structure.KNOWN.read_text())
    assert sorted(allowed.keys() - {one.key for one in found}) == []


def test_forgetting_keeps_the_other_lines() -> None:
    text = "# Findings.\ntwice a.py A\nassigned b.py x.y  # the library has no parameter for it\n"
    assert structure.known(text) == {"twice a.py A": "", "assigned b.py x.y": "the library has no parameter for it"}
    assert structure.without(text, ["twice a.py A"]) == text.replace("twice a.py A\n", "")
    assert structure.without(text, ["assigned b.py x.y"]) == "# Findings.\ntwice a.py A\n"


# -- every check finds what it is for, and nothing else ----------------------------------------------------------------


def names(check: Check, *texts: str) -> list[str]:
    """Return the findings of a check in modules peer/room/a.py, b.py and so on."""
    files = {f"peer/room/{letter}.py": textwrap.dedent(text) for letter, text in zip("abc", texts, strict=False)}
    return [one.name for one in check(Source.of(files))]


def test_a_public_class_name_that_is_used_twice_is_found() -> None:
    assert names(structure.names_twice, "class A: ...\nclass _B: ...", "class A: ...\nclass _B: ...") == ["A", "A"]


@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("part.hook = f", "part.hook"),
        ("self.part.hook = f", "self.part.hook"),
        ("self.a, part.hook = f, f", "part.hook"),
        ("part.count += 1", "part.count"),
        ("part.hook: int = 1", "part.hook"),
        ("for part.at in []: ...", "part.at"),
        ("with f() as part.file: ...", "part.file"),
        ("del part.hook", "part.hook"),
        ("setattr(part, 'hook', f)", "setattr(part, 'hook', f)"),
        ("Public().hook = f", "Public().hook"),
        ("self.make().hook = f", "self.make().hook"),
    ],
)
@pytest.mark.parametrize("method", ["__init__", "work"])
def test_an_assignment_on_another_object_is_found(line: str, target: str, method: str) -> None:
    text = f"class Public: ...\nclass A:\n  def make(self) -> Public: ...\n  def {method}(self, part):\n    {line}"
    assert names(structure.foreign_assignments, text) == [target]


@pytest.mark.parametrize(
    "body",
    [
        "self.a = 1",
        "cls.a = 1",
        "object.__setattr__(self, 'a', 1)",
        "error.__cause__ = None",
        "param.grad = None",
        "array.flags.writeable = False",
        "body = pb.Open(n=1)\n    body.n, body.have = 2, 3",
        "message.n = 2",
        "entry.at = 1",
        "self._all['a'].at = 1",
        "for one in self._all.values():\n      one.at = 1",
        "for key, one in self._all.items():\n      one.at = 1",
        "one = self._all.setdefault('a', _Entry())\n    one.at = 1",
        "one = self._all.get('a')\n    one.at = 1",
        "one = self._entry()\n    one.at = 1",
        "self._last.at = 1",
        "one = A()\n    one.a = 1",
        "other.a = 1",
    ],
)
def test_an_assignment_on_a_record_of_the_module_passes(body: str) -> None:
    text = f"""
from peer.v1 import exchange_pb2 as pb
class _Entry: ...
class A:
  def __init__(self):
    self._all: dict[str, _Entry] = {{}}
    self._last = _Entry()
  def _entry(self) -> _Entry | None: ...
  def work(self, message: pb.Reply, entry: "_Entry", other: A):
    {body}
"""
    assert names(structure.foreign_assignments, text) == []


def test_a_contract_that_is_gone_or_has_a_hole_is_found() -> None:
    kept = "".join(f"[[tool.importlinter.contracts]]\nname = '{name}'\n" for name in structure.CONTRACTS)
    assert list(structure.loose_contracts(kept)) == []
    gone = kept.replace(structure.CONTRACTS[1], "something else")
    assert [one.name for one in structure.loose_contracts(gone)] == [structure.CONTRACTS[1]]
    hole = kept + "ignore_imports = ['peer.a -> peer.b']\n"
    assert [one.name for one in structure.loose_contracts(hole)] == ["peer.a -> peer.b"]
