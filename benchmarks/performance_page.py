"""Make docs/reference/performance.md of the results in `results/`.

`python -m tests.generated --write` writes the page, and `make lint` says when it is not current. Results of
studies lie in `results/studies/` and come last."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.result import RESULTS, limits

INTRO = """# Performance

<!-- Made by benchmarks/performance_page.py of results/*.json. To change it: python -m tests.generated --write -->

Each benchmark in `benchmarks/` guards a promise or a bound. It writes its figures to `results/` with the commit, the
machine and its load, and the newest run overwrites the one before. A figure *holds* when it keeps its bound. A load of
1 is one process that runs or waits all the time. Seconds of a loaded machine are too long. Ratios of turns, bytes,
counts and losses still mean something. Figures whose source is the docs of a commit were measured there or earlier.

`make bench` runs the seven that need a quiet machine and little time.
"""
STUDIES = """## Studies

These measurements decided something, or were made by tests and commands that are no benchmarks. Scripts that are not in
the tree are in commit 807ffbb (tag `experiments-2026-11`): `git show` prints one, and it runs in a checkout of that
commit.
"""


def page(folder: Path = RESULTS) -> str:
    """The page of the results below this folder."""
    results, studies = _read(folder), _read(folder / "studies")
    parts = [INTRO, _summary(results), *map(_section, results)]
    if studies:
        parts += [STUDIES, *(_section(study, "###") for study in studies)]
    return "\n".join(parts).rstrip() + "\n"


def _read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def _summary(results: Iterable[dict[str, Any]]) -> str:
    lines = ["| benchmark | guards promise | bounds that hold | commit | load |", "| --- | --- | --- | --- | --- |"]
    for one in results:
        bounded = [figure for figure in one["figures"] if figure["holds"] is not None]
        held = sum(figure["holds"] for figure in bounded)
        kept = f"{held} of {len(bounded)}" if bounded else "no bound"
        kept = kept if held == len(bounded) else f"**{kept}**"
        name = one["benchmark"]
        lines.append(f"| [{name}](#{name}) | {one['promise']} | {kept} | `{one['commit']}` | {_cell(one['load'])} |")
    return "\n".join([*lines, ""])


def _section(one: dict[str, Any], level: str = "##") -> str:
    lines = [f"{level} {one['benchmark']}", "", one["question"], "", f"Guards: {one['promise']}.", ""]
    if one["figures"]:
        lines += _figures(one["figures"])
    if one["command"]:
        label = "Its script" if one["command"].startswith("git show") else "How to run it"
        lines += [f"{label}: `{one['command']}`", ""]
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
    """List commit, day, machine, load and source, as far as they are known."""
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
