"""Makes docs/reference/performance.md from the results in `results/`.

`python -m tests.generated --write` writes the page, and `make lint` reports when it is not current."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.result import NOT_HERE, RESULTS, Benchmark, limits

SCRIPTS = Path(__file__).parent

INTRO = f"""# Performance

<!-- Made by benchmarks/performance_page.py of results/*.json. To change it: python -m tests.generated --write -->

Each benchmark in `benchmarks/` guards a [promise](invariants.md) or a bound. With `--results` it writes its figures to
`results/`, with the commit, the machine and its load; the newest run replaces the one before. A figure *holds* when it
keeps its bound. The load is the mean number of processes that run or wait for a processor. On a loaded machine times
are too long, but bytes, counts, losses, and ratios of times that were measured by turns remain meaningful.

`python -m benchmarks.NAME` runs a benchmark at its full size. `--smallest` runs it with the options of the last column
and checks no bound, only that the benchmark still works. `make test` does this for the benchmarks that take about a
second, and `make bench-smallest` for all. A benchmark ends with exit code {NOT_HERE} if this machine lacks something
that it needs, and prints what. `make bench` runs the benchmarks that need a quiet machine and little time.

A benchmark without a result was measured last at commit 807ffbb, or at one that is not in this history. Its figures are
in the folder `results/` of commit 4e4b9f2. That commit also has twelve benchmarks and thirty studies that guarded no
promise and were removed after it. `git show 4e4b9f2:benchmarks/NAME.py` prints one of them, which runs in a checkout of
that commit.
"""


def page(folder: Path = RESULTS, scripts: Path = SCRIPTS) -> str:
    """Return the page for the results in a folder and the benchmarks in another."""
    results = _read(folder)
    return "\n".join([INTRO, _benchmarks(scripts, results), *map(_section, results)]).rstrip() + "\n"


def _read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


@dataclass(frozen=True, slots=True)
class Script:
    """The facts about a benchmark that its source contains."""

    about: Benchmark
    bound: str
    """The bounds and the duration, from the docstring."""


@functools.cache
def scripts_in(folder: Path = SCRIPTS) -> list[Script]:
    """Read every benchmark in a folder without importing it, which would take seconds and packages."""
    return [found for file in sorted(folder.glob("*.py")) if (found := _script(file)) is not None]


def _script(file: Path) -> Script | None:
    """Read a benchmark's `ABOUT` and docstring. None: the file is only a part of benchmarks."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "ABOUT"
            and isinstance(node.value, ast.Call)
        ):
            words = [ast.literal_eval(one) for one in node.value.args]
            more = {str(one.arg): ast.literal_eval(one.value) for one in node.value.keywords}
            return Script(Benchmark(*words, **more), _bound(ast.get_docstring(tree) or ""))
    return None


def _bound(doc: str) -> str:
    """Return the part of a docstring's paragraph from its word `Bound` on."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in doc.split("\n\n"))
    return next((found[0] for paragraph in paragraphs if (found := re.search(r"Bounds?\b.*", paragraph))), "")


def _benchmarks(folder: Path, results: Sequence[dict[str, Any]]) -> str:
    """Return the table of all benchmarks."""
    lines = [
        "| benchmark | guards promise | bound | needs | result: bounds that hold | smallest size |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for one in scripts_in(folder):
        name = one.about.name
        found = [_kept(result) for result in results if result["command"].split()[2] == f"benchmarks.{name}"]
        options = f"`{one.about.smallest}`" if one.about.smallest else "the only one"
        size = f"{options}, in `make bench-smallest`" if one.about.is_long else options
        needs = ", ".join(one.about.needs)
        cells = [f"`{name}`", one.about.promise, one.bound, needs, "<br>".join(found) or "none", size]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _kept(result: dict[str, Any]) -> str:
    """Return how many bounds hold in a result, at which commit and under which load."""
    bounded = [figure for figure in result["figures"] if figure["holds"] is not None]
    held = sum(figure["holds"] for figure in bounded)
    kept = f"{held} of {len(bounded)}" if bounded else "no bound"
    kept = kept if held == len(bounded) else f"**{kept}**"
    load = "" if result["load"] is None else f", load {_cell(result['load'])}"
    return f"[{result['benchmark']}](#{result['benchmark']}): {kept}, `{result['commit']}`{load}"


def _linked(promise: str) -> str:
    """Return a benchmark's promise. One with a number gets a link to the page that lists them."""
    return f"[promise](invariants.md) {promise}" if promise[0].isdigit() else promise


def _section(one: dict[str, Any]) -> str:
    lines = [f"## {one['benchmark']}", "", one["question"], "", f"Guards: {_linked(one['promise'])}.", ""]
    if one["figures"]:
        lines += _figures(one["figures"])
    if one["command"]:
        lines += [f"How to run it: `{one['command']}`", ""]
    lines += [_where(one), ""]
    for table in one["tables"]:
        lines += _table(table)
    for note in one.get("notes", []):
        lines += [note, ""]
    return "\n".join(lines)


def _figures(figures: Iterable[dict[str, Any]]) -> list[str]:
    lines = ["| figure | value | bound | holds |", "| --- | --- | --- | --- |"]
    words = {None: "", True: "yes", False: "**no**"}
    for figure in figures:
        value = "not measured" if figure["value"] is None else f"{_cell(figure['value'])} {figure['unit']}".strip()
        lines.append(f"| {figure['name']} | {value} | {limits(figure['bound'])} | {words[figure['holds']]} |")
    return [*lines, ""]


def _where(one: dict[str, Any]) -> str:
    """Return commit, day, machine, load and source, as far as known."""
    machine_facts: list[str] = []
    if machine := one["machine"]:
        cores = f"{machine['cores']} cores" if machine.get("cores") else ""
        memory = f"{machine['memory_gib']:g} GiB" if machine.get("memory_gib") else ""
        python = f"Python {machine['python']}" if machine.get("python") else ""
        torch = f"torch {machine['torch']}" if machine.get("torch") else ""
        machine_facts = [machine["cpu"], cores, memory, python, torch]
    said = {
        "Commit": ", ".join(filter(None, (f"`{one['commit']}`", one["date"]))),
        "Machine": ", ".join(filter(None, machine_facts)),
        "Load": "" if one["load"] is None else f"{one['load']:g}",
        "Source": one["source"],
    }
    return "\n".join(f"* {name}: {fact}" for name, fact in said.items() if fact)


def _table(table: dict[str, Any]) -> list[str]:
    heads = "| " + " | ".join(table["heads"]) + " |"
    rows = ["| " + " | ".join(map(_cell, row)) + " |" for row in table["rows"]]
    title = [f"*{table['title']}*", ""] if table["title"] else []
    return [*title, heads, "|" + " --- |" * len(table["heads"]), *rows, ""]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"
    return str(value)
