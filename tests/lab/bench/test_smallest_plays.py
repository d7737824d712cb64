"""Every benchmark still runs, at its smallest size.

Those whose smallest size takes long, mostly swarms of real processes, run only in `make bench-smallest`."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import result
from benchmarks.performance_page import Script, scripts_in

ALL = os.environ.get("BENCH_SMALLEST") == "all"
"""True in `make bench-smallest`: run all benchmarks."""
SCRIPTS = scripts_in()
EVERY = pytest.mark.parametrize("one", SCRIPTS, ids=lambda one: one.about.name)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Restore torch's number of threads, because benchmarks run in this process and change it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def play(monkeypatch: pytest.MonkeyPatch, name: str, *options: str) -> int:
    """Run the main of a benchmark in this process. Return its exit code."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *options])
    main = importlib.import_module(f"benchmarks.{name}").main
    try:
        done = asyncio.run(main()) if inspect.iscoroutinefunction(main) else main()
    except SystemExit as ended:
        done = ended.code
    return int(done or 0)


@pytest.mark.processes
@pytest.mark.nightly
@EVERY
def test_its_smallest_size_is_played(
    one: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if one.about.is_long and not ALL:
        pytest.skip("long: make bench-smallest plays it")
    file = tmp_path / "result.json"
    code = play(monkeypatch, one.about.name, "--smallest", "--json", str(file))
    if code == result.NOT_HERE:
        pytest.skip(capsys.readouterr().err.strip())
    assert code == 0
    record = json.loads(file.read_text())
    assert record["benchmark"].startswith(one.about.name)
    assert record["figures"]


@EVERY
@pytest.mark.parametrize(
    "options", [("--smallest", "--json"), ("--smallest", "--results"), ("--smallest", "--jsn", "x")]
)
def test_options_are_checked_before_anything_is_played(
    one: Script, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: object) -> str:
        raise AssertionError("the options were good, it seems")

    monkeypatch.setattr(result, "why_not", never)
    assert play(monkeypatch, one.about.name, *options) == 2


def test_a_file_that_cannot_be_written_is_refused_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert play(monkeypatch, "step_time", "--smallest", "--json", str(tmp_path / "absent" / "a.json")) == 2


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        ((), ""),
        (("python:json", "sh"), ""),
        (("python:no_such_package",), "the Python package no_such_package is not installed"),
        (("no-such-program",), "not installed: no-such-program"),
    ],
)
def test_what_a_machine_lacks_is_named(needs: tuple[str, ...], reason: str) -> None:
    assert result.why_not(needs) == reason
