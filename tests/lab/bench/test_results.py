"""The result files of benchmarks, and the page generated from them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import performance_page, result
from benchmarks.performance_page import page, scripts_in
from benchmarks.result import Benchmark, Figure, Table, options, publish

BENCHMARKS = Path(result.__file__).parent
ABOUT = Benchmark("tried", "Does it hold?", "5 (control beats bulk)", "--mb 1")
SOURCE = (
    '"""Tried.\n\nBound: 20 ms."""\n\nABOUT = Benchmark("tried", "Does it hold?", "5 (control beats bulk)", "--mb 1")\n'
)
KEYS = [
    "benchmark",
    "question",
    "promise",
    "commit",
    "date",
    "machine",
    "load",
    "command",
    "source",
    "figures",
    "tables",
]
FIGURE_KEYS = {"name", "unit", "value", "bound", "holds"}


def results() -> list[Path]:
    return sorted(result.RESULTS.rglob("*.json"))


@pytest.mark.parametrize(
    ("figure", "holds"),
    [
        (Figure("", "", 2.0, at_most=2.0), True),
        (Figure("", "", 2.1, at_most=2.0), False),
        (Figure("", "", 0.9, at_least=0.98), False),
        (Figure("", "", 0.5, at_most=1.0, at_least=0.4), True),
        (Figure("", "", 2.0), None),
        (Figure("", "", None, at_most=2.0), None),
    ],
)
def test_a_figure_holds_when_it_keeps_its_bounds(figure: Figure, holds: bool | None) -> None:
    assert figure.holds is holds
    assert figure.as_json()["holds"] is holds


@pytest.mark.processes
def test_a_result_tells_what_where_and_under_which_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "deep" / "found.json"
    monkeypatch.setattr(sys, "argv", ["tried.py", "--json", str(file), "--mb", "4"])
    parser = options("Does it hold?")
    parser.add_argument("--mb")

    kept = publish(parser.parse_args(), ABOUT, [Figure("stall", "ms", 30.123456, 20.0)], Table("", ["a"], [[1.0]]))

    assert not kept
    found = json.loads(file.read_text())
    assert [name for name in found if name != "load_after"] == KEYS
    assert found["command"] == "python -m benchmarks.tried --mb 4"
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["torch"].startswith("2.")
    assert found["figures"] == [
        {"name": "stall", "unit": "ms", "value": 30.12, "bound": {"at_most": 20.0}, "holds": False}
    ]


def test_a_command_names_no_folder_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = str(result.ROOT / "examples")
    monkeypatch.setattr(sys, "argv", ["tried.py", "--old", "/home/me/old", f"--new={inside}", "--home=/tmp/x"])
    assert result.command("tried") == "python -m benchmarks.tried --old old --new=examples --home=x"


@pytest.mark.parametrize("file", results(), ids=lambda file: file.name)
def test_a_kept_result_names_no_folder_of_a_machine(file: Path) -> None:
    command = json.loads(file.read_text()).get("command", "")
    assert " /" not in command
    assert "=/" not in command


@pytest.mark.processes
def test_results_go_into_their_folder_and_overwrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["tried.py", "--results"])
    for value in (1.0, 3.0):
        publish(options(None).parse_args(), ABOUT, [Figure("stall", "ms", value)], variant="home")

    assert [file.name for file in tmp_path.iterdir()] == ["tried-home.json"]
    assert json.loads((tmp_path / "tried-home.json").read_text())["figures"][0]["value"] == 3.0


@pytest.mark.processes
def test_nothing_is_written_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "RESULTS", tmp_path)

    assert publish(options(None).parse_args([]), ABOUT, [Figure("stall", "ms", 1.0)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_the_page_shows_a_broken_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["tried.py", "--results"])
    figures = [Figure("stall", "ms", 30.0, 20.0), Figure("calls", "", 7)]
    publish(options(None).parse_args(), ABOUT, figures, Table("turns", ["", "ms"], [["swap", 30.0]]))

    (tmp_path / "tried.py").write_text(SOURCE)

    made = page(tmp_path, tmp_path)

    assert "| `tried` | 5 (control beats bulk) | Bound: 20 ms. |  | [tried](#tried): **0 of 1**, " in made
    assert "| stall | 30 ms | at most 20 | **no** |" in made
    assert "| calls | 7 |  |  |" in made
    assert "| swap | 30 |" in made
    assert "`python -m benchmarks.tried`" in made


@pytest.mark.parametrize("file", results(), ids=lambda file: file.stem)
def test_a_kept_result_has_every_key_and_keeps_what_it_says(file: Path) -> None:
    found = json.loads(file.read_text())

    assert [name for name in found if name not in ("load_after", "notes")] == KEYS
    assert found["benchmark"] == file.stem
    assert found["commit"]
    assert found["source"] or (found["machine"] and found["load"] is not None and found["date"])
    for figure in found["figures"]:
        assert set(figure) == FIGURE_KEYS
        made = Figure(figure["name"], figure["unit"], figure["value"], **(figure["bound"] or {}))
        assert made.holds is figure["holds"]
    for table in found["tables"]:
        assert all(len(row) == len(table["heads"]) for row in table["rows"])


def test_every_result_is_of_a_benchmark_that_is_here() -> None:
    known = {f"benchmarks.{one.about.name}" for one in scripts_in()}
    assert {json.loads(file.read_text())["command"].split()[2] for file in result.RESULTS.glob("*.json")} <= known


@pytest.mark.parametrize("file", results(), ids=lambda file: file.stem)
def test_a_kept_result_asks_what_its_benchmark_asks(file: Path) -> None:
    found = json.loads(file.read_text())
    (about,) = (one.about for one in scripts_in() if f"benchmarks.{one.about.name}" == found["command"].split()[2])
    assert (found["question"], found["promise"]) == (about.question, about.promise)
    assert file.stem.startswith(about.name)
    assert "not measured again" not in (found["source"] or "")


def test_the_table_says_what_each_benchmark_guards() -> None:
    made = performance_page.page()
    for one in scripts_in():
        assert one.bound, f"the docstring of {one.about.name} has a sentence that begins with Bound or Bounds"
        assert one.about.promise
        assert f"| `{one.about.name}` | {one.about.promise} | {one.bound} |" in made


def test_the_page_is_made_of_every_result() -> None:
    made = performance_page.page()

    for file in results():
        assert f"# {file.stem}\n" in made
