"""The page about displayed numbers lists every number of every view, and names tests that check them.

The numbers of a view are derived from the code that makes it. Those of `peer status` come from the frozen names, which
a test with real daemons keeps current; those of the pages, reports and plans come from a sample."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from peer.joining.contract import JoinContract
from peer.lab.attack.report import AttackReport
from peer.lab.compare.entries import DDP, SINGLE
from peer.lab.compare.result import compare
from peer.lab.localswarm.chaos import FaultRecord
from peer.lab.localswarm.processes import Daemon
from peer.lab.localswarm.report import account, swarm_report
from peer.lab.planning.planner import Intent, plan
from peer.lab.sim.faults import Fault
from peer.lab.sim.links import profile
from peer.node.doctor.prediction import Prediction
from peer.node.page import PageSource
from peer.observe.journal import Listener
from peer.observe.status.notices import read_status
from peer.observe.status.text import status_text
from peer.observe.terminal_frame import History, render_frame
from peer.run.manifest import SignedManifest, default_text, sign_text
from peer.web.public import PublicAccount
from peer.web.volunteer import VolunteerAccount
from tests.golden.names import identity
from tests.lab.compare.test_baselines_and_worth import course, entries
from tests.lab.compare.test_compare_outcome import outcome
from tests.web.test_accounts import ended, nothing

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "numbers.md").read_text()
STATUS, VOLUNTEER, RUN, CONSENT = "Status and live view", "Page of a volunteer", "Page of a run", "Consent"
DOCTOR, PLAN, SWARM, COMPARE = "`peer doctor`", "`peer plan`", "Report of `peer swarm`", "`peer compare`"
NAMES = {"id", "address", "peer id", "log", "page", "ticket", "agreed", "data", "model", "method", "quiet hours"}
"""Rows of `peer status` whose digits belong to names, settings or dates."""
OTHERS = {"admission", "tells", "gives way", "device", "ends", "memory", "disk", "a day", "micro-batch"}
"""Rows that the contract also shows, or that state the source of their numbers in words."""


def rows_of(title: str) -> list[list[str]]:
    """Return the cells of a section's table."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


SECTIONS = {title: rows_of(title) for title in re.findall(r"^## (.+)$", PAGE, re.MULTILINE)}
ROWS = [row for rows in SECTIONS.values() for row in rows]


def named(*titles: str) -> set[str]:
    """Return the fields, with wildcards, that these sections name."""
    return {field for title in titles for row in SECTIONS[title] for field in re.findall(r"`([^`]+)`", row[1])}


def missing(shown: Iterator[str] | set[str], *titles: str) -> list[str]:
    """Return the displayed numbers that no row of these sections lists."""
    patterns = named(*titles)
    return sorted(name for name in set(shown) if not any(fnmatchcase(name, pattern) for pattern in patterns))


def numbers(value: Any, path: str = "") -> Iterator[str]:
    """Return the paths of the numbers in a JSON value, and of values that may be numbers but are unknown in the
    sample."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from numbers(inner, path)
    elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        yield path


def sample(shape: Any) -> Any:
    """Return a value with a frozen shape, with a number wherever there may be one."""
    if isinstance(shape, dict):
        return {key: sample(inner) for key, inner in shape.items()}
    if isinstance(shape, list):
        return [sample(shape[0]), 2.0, 3.0] if shape and shape[0] == "float|int" else [sample(one) for one in shape]
    kinds = {"int": 1, "float": 1.5, "bool": True, "null": "nothing"}
    return next((kinds[kind] for kind in str(shape).split("|") if kind in kinds), "word")


def status_of(role: str, kind: str = "pair") -> dict[str, Any]:
    """Return a status that has every field."""
    frozen = json.loads((ROOT / "tests" / "golden" / "frozen" / f"swarm_{kind}.json").read_text())
    return dict(sample(frozen["status"][role]))


# -- what is shown is on the page --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("role", "kind"), [("pair", "pair"), ("group", "group"), ("bootstrap", "pair")])
def test_each_number_of_the_status_report_is_on_the_page(role: str, kind: str) -> None:
    shown = {name for name in numbers(status_of(role, kind)) if not name.startswith("view.")}
    assert len(shown) > 40
    assert missing(shown, STATUS, CONSENT) == []


def test_each_number_of_the_run_s_view_is_on_the_page() -> None:
    shown = {name.removeprefix("view.") for name in numbers(status_of("bootstrap")) if name.startswith("view.")}
    assert len(shown) > 20
    assert missing(shown, RUN) == []


def test_each_number_of_a_volunteers_page_is_on_the_page() -> None:
    heard: list[Listener] = []
    told = status_of("pair") | {"leaving": {"told": "now"}}
    source = PageSource(
        home=Path(),
        report=lambda: read_status(told),
        control=nothing,
        evaluations=lambda: ((0, 5.5, 8.0),),
        listen=heard.append,
    )
    account = VolunteerAccount(source)
    heard[0](ended(3), 100.0)
    shown = set(numbers(dict(account())))
    assert {"bytes.line.sent", "work.tokens_per_s", "rounds.bytes_sent", "curve.validation"} <= shown
    assert missing(shown, VOLUNTEER) == []


def test_each_number_of_a_runs_page_is_on_the_page() -> None:
    told = status_of("bootstrap")
    shown = set(numbers(dict(PublicAccount(PageSource(home=Path(), report=lambda: read_status(told)))())))
    assert {"totals.participation", "peers.loss", "totals.networks", "curve.median"} <= shown
    assert missing(shown, RUN) == []


def test_each_number_of_the_consent_is_on_the_page() -> None:
    shown = {f"contract.{one.name}" for one in fields(JoinContract) if re.search(r"\b(int|float)\b", str(one.type))}
    assert len(shown) >= 9
    assert missing(shown, CONSENT, STATUS) == []


def test_each_number_and_finding_of_doctor_is_on_the_page() -> None:
    prediction = {f"prediction.{one.name}" for one in fields(Prediction) if "int" in one.type or "float" in one.type}
    findings = set()
    for path in (ROOT / "peer" / "node" / "doctor").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                first = node.args[0]
                if node.func.id in ("fine", "warning", "failure", "unchecked") and isinstance(first, ast.Constant):
                    findings.add(f"finding.{first.value}")
    assert len(findings) > 15
    assert missing(prediction | findings, DOCTOR, CONSENT) == []


def test_each_number_of_a_plan_is_on_the_page() -> None:
    planned = plan(Intent(params=1e7, tokens=None, peers=4, link=profile("home"), flops=1e12))
    shown = {f"plan.{name}" for name in (*planned.numbers, *planned.asides)}
    assert missing(shown, PLAN, CONSENT) == []


def test_each_number_of_a_swarms_report_is_on_the_page(tmp_path: Path) -> None:
    signed = sign_text(default_text(), identity(1), tmp_path / "run.toml")
    killed = FaultRecord(Fault("kill", 0, at=1.0), 1.0, 1.0)
    report = swarm_report(signed, 0, 1.0, [account_of(signed, tmp_path)], [killed])
    attack = {one.name for one in fields(AttackReport)}
    shown = {*numbers(report), *(f"attack.{name}" for name in attack)}
    assert {"swarm.tokens_per_s", "peers.bytes_sent", "peers.rounds.paired", "faults.recovered_s"} <= shown
    assert missing(shown, SWARM) == []


def account_of(signed: SignedManifest, folder: Path) -> Any:
    """Return the account of a peer that has never begun."""
    return account(Daemon("peer 1", folder), "12D3", None, signed, 0.0)


def test_each_number_of_a_comparison_is_on_the_page() -> None:
    baselines = entries("gossip", DDP, SINGLE)
    worth = compare(list(baselines.values()), 4, (0, 1), "a test", course, None, baselines[SINGLE]).to_json()
    found = {*numbers(outcome().to_json()), *numbers(worth)}
    shown = {name for name in found if not name.startswith(("methods.method.", "single."))}
    assert {"methods.to_target.seconds", "methods.worth.speed_up"} <= shown
    assert missing(shown, COMPARE) == []


@pytest.mark.parametrize("state", ["training", "bootstrap"])
def test_each_line_of_the_status_with_a_number_is_on_the_page(state: str) -> None:
    report = json.loads((ROOT / "tests" / "observe" / "status" / f"{state}.json").read_text())
    if state == "training":
        report["line_bytes"] = {"sent": 5_000_000, "received": 5_000_000, "measured": True}
    lines = status_text(read_status(report), 1795648000.0).splitlines()
    labels = {line[2:13].strip() for line in lines if line.startswith("  ") and re.search(r"\d", line[13:])}
    shown = {label for label in labels if label and not label.startswith("…")} - NAMES - OTHERS
    assert sorted(shown - labels_of_status()) == []


def test_each_line_of_the_live_view_with_a_number_is_on_the_page() -> None:
    report = json.loads((ROOT / "tests" / "observe" / "status" / "training.json").read_text())
    wait = {"name": "fetching", "done": 3, "total": 5, "unit": "bytes", "seconds": 9.0, "rate": 1.0}
    console = Console(width=100, record=True)
    with console.capture() as captured:
        console.print(render_frame(read_status(report | {"wait": wait}), History()))
    lines = [line for line in captured.get().splitlines()[2:] if re.search(r"\d", line[10:])]
    shown = {line[:10].strip() for line in lines} - {"", "diagnosis"}
    assert len(shown) > 8
    assert sorted(shown - labels_of_status()) == []


def labels_of_status() -> set[str]:
    return {label.strip() for number, *_ in SECTIONS[STATUS] for label in number.split(",")}


# -- what the page says holds ------------------------------------------------------------------------------------------


def test_each_number_is_measured_estimated_or_extrapolated() -> None:
    assert len(ROWS) > 70
    for number, field, source, kind, _ in ROWS:
        assert source, number
        assert re.search(r"`[^`]+`", field), number
        assert re.match(r"measured|estimated|given|simulated|reported|counted|as above", kind), (number, kind)


@functools.cache
def source_of(path: str, name: str) -> str:
    """Return the source of a test and of the functions that it calls in its module. Raises AssertionError if it does
    not exist."""
    text = (ROOT / path).read_text()
    tree = ast.parse(text)
    made: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            made[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            made |= {one.id: node for one in targets if isinstance(one, ast.Name)}
    assert name in made, f"{path} has no {name}"
    wanted, found = [name], dict[str, str]()
    while wanted:
        one = wanted.pop()
        found[one] = ast.get_source_segment(text, made[one]) or ""
        called = {node.id for node in ast.walk(made[one]) if isinstance(node, ast.Name)}
        wanted += [other for other in called if other in made and other not in found]
    return "\n".join(found.values())


def test_what_compares_a_number_is_there_and_speaks_of_it() -> None:
    """A row about settings needs no test. Every other row names a test that reads a field of the row, or the source in
    the code that the row names."""
    wrong = []
    for number, field, source, kind, compared in ROWS:
        tests = re.findall(r"`(tests/[^`:]+)::(\w+)`", compared)
        benchmarks = re.findall(r"`(benchmarks/[^`]+)`", compared)
        assert all((ROOT / path).exists() for path in benchmarks), number
        if compared == "-":
            assert kind == "given", number
            continue
        assert tests, number
        sources = "\n".join(source_of(path, name) for path, name in tests)
        leaves = {part for name in re.findall(r"`([^`]+)`", field) for part in name.split(".") if part != "*"}
        leaves |= set(re.findall(r"`(\w+)`", source))
        if not any(re.search(rf"\b_?{re.escape(leaf)}\b", sources) for leaf in leaves):
            wrong.append((number, sorted(leaves), tests))
    assert wrong == []


def test_amounts_are_in_powers_of_1000() -> None:
    """No message of the program prints KiB, MiB or GiB. Docstrings use them for exact limits of formats."""
    found = []
    for path in sorted((ROOT / "peer").rglob("*.py")):
        tree = ast.parse(path.read_text())
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                found += [f"{path}:{node.lineno}: {unit}" for unit in re.findall(r"[KMGT]iB\b", node.value)]
    assert found == []
