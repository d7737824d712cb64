"""The house stays easy to enter: what is found is known already, and what is known is still found."""

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
    """Mend it. A new line in known.txt needs a reason that holds for ever."""
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
    """Return what a check finds in modules peer/room/a.py, b.py and so on."""
    files = {f"peer/room/{letter}.py": textwrap.dedent(text) for letter, text in zip("abc", texts, strict=False)}
    return [one.name for one in check(Source.of(files))]


@pytest.mark.parametrize(("folder", "count", "large"), [("node", 21, True), ("node", 20, False), ("cli", 30, False)])
def test_a_folder_with_too_many_modules_is_found(folder: str, count: int, large: bool) -> None:
    files = dict.fromkeys([*(f"peer/{folder}/m{n}.py" for n in range(count)), f"peer/{folder}/__init__.py"], "")
    assert [one.path for one in structure.large_folders(Source.of(files))] == ([f"peer/{folder}"] if large else [])


def test_a_public_class_name_that_is_used_twice_is_found() -> None:
    assert names(structure.names_twice, "class A: ...\nclass _B: ...", "class A: ...\nclass _B: ...") == ["A", "A"]


NINE = "\n    ".join(f"n{n}: int" for n in range(9))
EIGHT = NINE.rpartition("\n")[0]
NINE_PARAMETERS = ", ".join(f"n{n}" for n in range(9))


@pytest.mark.parametrize(
    "text",
    [
        f"class A:\n  def __init__(self, {NINE_PARAMETERS}): ...",
        f"class A:\n  def __init__(self, a, *, {NINE_PARAMETERS[4:]}): ...",
        f"class Base:\n  def __init__(self, {NINE_PARAMETERS}): ...\nclass A(Base): ...",
        f"@dataclass\nclass A:\n    {EIGHT}\n    call: Callable[[], None]",
        f"@dataclass(frozen=True)\nclass A:\n    {EIGHT}\n    task: asyncio.Task[int] | None = None",
        f"class Part: ...\n@dataclass(frozen=True)\nclass A:\n    {EIGHT}\n    parts: dict[str, Part]",
        f"@dataclass\nclass A:\n    {NINE}\n    def work(self): ...",
        f"@dataclass\nclass Base:\n    {EIGHT}\n@dataclass\nclass A(Base):\n    last: 'Thing'",
    ],
)
def test_a_part_that_is_made_of_too_much_is_found(text: str) -> None:
    assert {"A"} <= set(names(structure.long_constructors, text)) <= {"A", "Base"}


@pytest.mark.parametrize(
    "text",
    [
        f"class A:\n  def __init__(self, {NINE_PARAMETERS[4:]}): ...",
        f"@dataclass\nclass A:\n    {EIGHT}\n    call: Callable[[], None] = field(init=False)",
        f"@dataclass\nclass A:\n    {EIGHT}\n    kind: ClassVar[Thing]",
        f"@dataclass\nclass A:\n    {NINE}\n    @property\n    def total(self): ...\n    def __str__(self): ...",
        f"@dataclass(frozen=True)\nclass A:\n    {NINE}\n    def total(self): ...",
        f"class A(NamedTuple):\n    {NINE}",
        f"class A(BaseModel):\n    {NINE}\n    late: Literal['a'] = 'a'",
        f"class Section(BaseModel): ...\nclass A(Section):\n    {NINE}\n    more: tuple[str, ...]",
        f"Id = NewType('Id', str)\n@dataclass\nclass A:\n    {NINE}\n    ids: Mapping[Id, 'float | None']",
        f"class Kind(enum.StrEnum): ...\n@dataclass\nclass A:\n    {EIGHT}\n    kind: Kind",
        f"@dataclass\nclass B:\n    n: int\n@dataclass\nclass A:\n    {EIGHT}\n    b: B",
    ],
)
def test_a_record_may_be_long(text: str) -> None:
    assert names(structure.long_constructors, text) == []


def test_a_record_of_another_module_is_known_as_one() -> None:
    long = f"from peer.room.b import B\n@dataclass\nclass A:\n    {EIGHT}\n    b: B"
    assert names(structure.long_constructors, long, "@dataclass\nclass B:\n    n: int") == []
    assert names(structure.long_constructors, long, "class B: ...") == ["A"]


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


ENTRY = "@dataclass(frozen=True)\nclass E{n}:\n    a: int\n    b: int\n\n"


@pytest.mark.parametrize(
    ("text", "long"),
    [
        ("x = f()\n" * 401, True),
        ("x = f()\n" * 400, False),
        ('"""The list of events."""\n' + "".join(ENTRY.format(n=n) for n in range(100)), False),
        ('"""The events."""\n' + "".join(ENTRY.format(n=n) for n in range(100)), True),
        ('"""The events.\n\nNot a list."""\n' + "".join(ENTRY.format(n=n) for n in range(100)), True),
        ('"""The table of metrics."""\nALL = (\n' + "    f(),\n" * 500 + ")\n", False),
        ('"""The list of events."""\n' + "x = f()\n" * 450 + ENTRY.format(n=1), True),
    ],
)
def test_a_long_module_is_found_unless_it_is_a_list(text: str, long: bool) -> None:
    assert names(structure.long_modules, text) == [""] * long


@pytest.mark.parametrize(
    ("head", "lines", "expected"),
    [
        ("def work():", 60, ["work"]),
        ("def work():", 59, []),
        ("async def work():", 60, ["work"]),
        ("@click.command()\ndef work():", 80, []),
        ("@peer.command(epilog='x')\ndef work():", 80, []),
        ("@cached\ndef work():", 60, ["work"]),
        ("class A:\n def work(self):", 60, ["A.work"]),
    ],
)
def test_a_long_function_is_found_unless_it_is_a_command(head: str, lines: int, expected: list[str]) -> None:
    assert names(structure.long_functions, f"{head}\n" + "  x = 1\n" * lines) == expected


def test_a_contract_that_is_gone_or_has_a_hole_is_found() -> None:
    kept = "".join(f"[[tool.importlinter.contracts]]\nname = '{name}'\n" for name in structure.CONTRACTS)
    assert list(structure.loose_contracts(kept)) == []
    gone = kept.replace(structure.CONTRACTS[1], "something else")
    assert [one.name for one in structure.loose_contracts(gone)] == [structure.CONTRACTS[1]]
    hole = kept + "ignore_imports = ['peer.a -> peer.b']\n"
    assert [one.name for one in structure.loose_contracts(hole)] == ["peer.a -> peer.b"]
