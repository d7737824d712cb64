"""Plots of reports: every kind that a command writes, and files that are no report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from PIL import Image

from peer.cli.plot import command
from peer.errors import UsageError
from peer.lab.report_curves import ReportCurve, named_curves, read_report
from peer.lab.report_plot import write_curves


def mark(round_: int, loss: float) -> dict[str, Any]:
    return {"round": round_, "tokens": 100 * round_, "bytes": 10 * round_, "seconds": 1.5 * round_, "loss": loss}


COMPARED = {"methods": [{"name": "gossip", "curve": [mark(1, 5.0), mark(2, 4.0)]}, {"name": "none", "curve": []}]}
SWARM = {"swarm": {}, "peers": [{"val_loss": [[0, 5.5], [5, None], [10, 4.5]]}, {"val_loss": [[0, 5.5]]}]}
SIMULATED = {"peers": 64, "loss_by_hour": [5.0, None, 3.0]}
LOGGED = """\
time,step,name,value
100.0,512,peer_eval_loss_nats,5.5
101.0,512,peer_round,0.0
110.0,1024,peer_eval_loss_nats,5.5
130.0,2048,peer_eval_loss_nats,4.5
"""


def written(folder: Path, report: Any, name: str = "report.json") -> Path:
    (folder / name).write_text(report if isinstance(report, str) else json.dumps(report))
    return folder / name


def test_each_kind_of_report_has_its_curves(tmp_path: Path) -> None:
    assert read_report(written(tmp_path, COMPARED)) == [
        ReportCurve(
            "gossip",
            (5.0, 4.0),
            {"tokens": (100.0, 200.0), "bytes": (10.0, 20.0), "seconds": (1.5, 3.0), "rounds": (1.0, 2.0)},
        )
    ]
    assert read_report(written(tmp_path, SWARM)) == [
        ReportCurve("peer 1", (5.5, 4.5), {"rounds": (0.0, 10.0)}),
        ReportCurve("peer 2", (5.5,), {"rounds": (0.0,)}),
    ]
    assert read_report(written(tmp_path, SIMULATED)) == [
        ReportCurve("64 peers", (5.0, 3.0), {"seconds": (3600.0, 10800.0)})
    ]
    assert read_report(written(tmp_path, LOGGED, "metrics.csv")) == [
        ReportCurve("hold-out", (5.5, 4.5), {"own tokens": (512.0, 2048.0), "seconds": (0.0, 30.0)})
    ]


@pytest.mark.parametrize(
    ("report", "found"),
    [
        ("{", "is no report"),
        ("[]", "is no report"),
        ({"other": 1}, "neither methods nor peers nor hours"),
        ({"methods": [{"name": "gossip", "curve": [{"round": 1}]}]}, "is no report"),
        ({"swarm": {}, "peers": [{"val_loss": [[0, float("inf")]]}]}, "not finite"),
        ({"swarm": {}, "peers": [{"val_loss": []}]}, "has no loss"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, report: Any, found: str) -> None:
    with pytest.raises(UsageError, match=found) as raised:
        read_report(written(tmp_path, report))
    assert raised.value.fix


def test_curves_of_several_files_are_named_after_them(tmp_path: Path) -> None:
    one, two = (read_report(written(tmp_path, report)) for report in (COMPARED, SWARM))
    curves = named_curves({Path("a.json"): one, Path("b.json"): two})
    assert [curve.name for curve in curves] == ["a", "b: peer 1", "b: peer 2"]


def test_the_command_draws_what_the_reports_have_in_common(tmp_path: Path) -> None:
    files = [written(tmp_path, COMPARED, "compared.json"), written(tmp_path, SWARM, "swarm.json")]
    done = CliRunner().invoke(command, [*map(str, files), "--output", str(tmp_path / "both.png")])
    assert done.exit_code == 0, done.output
    assert "3 curves" in done.output
    with Image.open(tmp_path / "both.png") as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(2**20) or []}
    assert {(0, 114, 178), (213, 94, 0), (0, 158, 115)} <= colours, "three lines"


def test_reports_without_a_common_measure_are_refused(tmp_path: Path) -> None:
    curves = named_curves(
        {Path("a"): read_report(written(tmp_path, SWARM)), Path("b"): read_report(written(tmp_path, SIMULATED))}
    )
    with pytest.raises(UsageError, match="nothing in common"):
        write_curves(curves, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_the_same_reports_give_the_same_svg(tmp_path: Path) -> None:
    curves = read_report(written(tmp_path, COMPARED))
    for name in ("one.svg", "two.svg"):
        write_curves(curves, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert "gossip  4.0000" in (tmp_path / "one.svg").read_text()
