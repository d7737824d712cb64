"""`peer compare` in virtual time: from manifests to table, JSON and plot."""

from __future__ import annotations

import errno
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from peer.cli.compare import command
from peer.errors import OutputLost, UsageError

VIRTUAL = ("--virtual", "--peers", "4", "--steps", "240", "--set", "sync.sync_every=20")
SHORT = ("--virtual", "--peers", "2", "--steps", "60", "--set", "sync.sync_every=20")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, [*arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_an_exchange_pays_at_equal_tokens(tmp_path: Path) -> None:
    plot, rows = tmp_path / "compare.svg", tmp_path / "rows.csv"
    body = json.loads(
        run("diloco", "none", *VIRTUAL, "--seeds", "2", "--json", "--plot", str(plot), "--rows", str(rows))
    )
    group, alone = body["methods"]
    assert group["loss"] < alone["loss"]
    assert group["curve"][-1]["tokens"] == alone["curve"][-1]["tokens"] == body["tokens"]
    assert group["curve"][-1]["bytes"] > 217_664, "it stands for the manifest's model"
    assert alone["curve"][-1]["bytes"] == 0
    assert group["to_target"]["tokens"] <= alone["to_target"]["tokens"]
    assert "diloco" in plot.read_text()

    assert len(rows.read_text().splitlines()) == 1 + len(body["rows"])
    last = [row for row in body["rows"] if row["method"] == "diloco" and row["round"] == 12]
    assert [(row["seed"], row["peer"], row["outcome"]) for row in last] == [
        (seed, peer, "exchanged") for seed in body["seeds"] for peer in (1, 2, 3, 4)
    ]
    assert sum(row["tokens"] for row in last) / 2 == body["tokens"]
    assert sum(row["loss"] for row in last) / 8 == pytest.approx(group["curve"][-1]["loss"])
    assert sum(row["bytes"] for row in last) / 8 == pytest.approx(group["curve"][-1]["bytes"], abs=1)


def test_a_person_reads_a_table() -> None:
    assert "to the target" in run("noloco", *SHORT)


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (("noloco", "--churn", "1"), "--virtual"),
        (("noloco", "--virtual", "--link", "cabel"), "cable"),
    ],
)
def test_what_cannot_be_is_refused_with_a_fix(arguments: tuple[str, ...], fix: str) -> None:
    with pytest.raises(UsageError) as refused:
        run(*arguments)
    assert fix in refused.value.fix


@pytest.fixture
def nothing_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(*arguments: object) -> None:
        raise AssertionError("a swarm was played")

    monkeypatch.setattr("peer.lab.compare.play.play_virtual", play)


@pytest.mark.usefixtures("nothing_is_played")
@pytest.mark.parametrize("option", ["--plot", "--rows"])
@pytest.mark.parametrize(("name", "fix"), [("x.pdf", "End the name with"), ("x", "End"), ("{none}", "Name a file")])
def test_a_file_that_cannot_be_written_is_refused_before_the_first_swarm(
    tmp_path: Path, option: str, name: str, fix: str
) -> None:
    file = tmp_path / name.replace("{none}", "none/x.png" if option == "--plot" else "none/x.csv")
    with pytest.raises(UsageError, match=option) as refused:
        run("noloco", *VIRTUAL, option, str(file))
    assert fix in refused.value.fix


@pytest.mark.usefixtures("nothing_is_played")
@pytest.mark.parametrize(
    ("option", "ending", "package"), [("--plot", "png", "matplotlib"), ("--rows", "parquet", "pyarrow.parquet")]
)
def test_a_missing_library_is_refused_before_the_first_swarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, ending: str, package: str
) -> None:
    monkeypatch.delitem(sys.modules, "peer.lab.compare.plot", raising=False)
    monkeypatch.delattr("peer.lab.compare.plot", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=f"{package} is not installed") as refused:
        run("noloco", *VIRTUAL, option, str(tmp_path / f"x.{ending}"))
    assert package.partition(".")[0] in refused.value.fix
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("option", "module"), [("--rows", "rows"), ("--plot", "plot")])
def test_a_file_that_fails_at_the_end_costs_nobody_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, module: str
) -> None:
    def full(*arguments: object, mode: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(importlib.import_module(f"peer.lab.compare.{module}"), "replace_file", full)
    file = tmp_path / ("x.csv" if option == "--rows" else "x.png")
    ended = CliRunner().invoke(command, ["none", "--virtual", "--peers", "1", "--steps", "20", option, str(file)])
    assert isinstance(ended.exception, OutputLost)
    assert option in ended.exception.fix
    assert "to the target" in ended.stdout


@pytest.mark.processes
@pytest.mark.nightly
def test_a_damaged_matplotlibrc_in_the_working_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_bytes(b"\xff\xfe")
    code = "from pathlib import Path; from peer.cli.compare import _writers; _writers(Path('x.png'), None)"
    root = str(Path(__file__).parents[3])
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r}); {code}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
