"""The files of a comparison: its rows as CSV and Parquet, its plot as PNG and SVG."""

from __future__ import annotations

import csv
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import pyarrow.parquet as pq
import pytest
from matplotlib.image import imread

from peer.lab.compare.entries import DDP, SINGLE, Entry
from peer.lab.compare.plot import COLOURS, figure_of, write_plot
from peer.lab.compare.result import Comparison, compare
from peer.lab.compare.rows import TYPES, write_rows
from tests.lab.compare.test_baselines_and_worth import course, entries

TEXT = "{http://www.w3.org/2000/svg}text"


def outcome(*names: str, seeds: tuple[int, ...] = (0, 1), worth: bool = False, hours: float = 0.0) -> Comparison:
    """Compare the methods of `test_baselines_and_worth`, and further ones under the name of a file."""
    known = entries("gossip", "none", SINGLE, DDP)
    given = [known.get(name) or replace(known["gossip"], name=name) for name in names]

    def play(entry: Entry, seed: int) -> object:
        played = course(replace(entry, name=entry.name if entry.name in known else "gossip"), seed)
        marks = (replace(mark, seconds=mark.seconds + 3600 * hours, bytes=2e6 * mark.round) for mark in played.curve)
        return replace(played, curve=tuple(marks)) if hours else played

    return compare(given, 4, seeds, "a test", play, None, known[SINGLE] if worth else None)  # type: ignore[arg-type]


# -- rows --------------------------------------------------------------------------------------------------------------


def test_csv_has_every_row_and_reads_back_alike(tmp_path: Path) -> None:
    found = outcome("gossip", 'a,b"c', worth=True)
    write_rows(found, tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(newline="") as lines:
        read = list(csv.DictReader(lines))
    convert = {"int64": int, "float64": float, "string": str}
    assert [{name: convert[kind](row[name]) for name, kind in TYPES.items()} for row in read] == list(found.rows())
    assert {row["method"] for row in read} == {"gossip", 'a,b"c', SINGLE}


def test_a_loss_that_was_not_measured_is_empty(tmp_path: Path) -> None:
    found = outcome("gossip", seeds=(0,))
    unmeasured = replace(found.played[0], rows=(replace(found.played[0].rows[0], loss=None),))
    found = replace(found, played=(unmeasured,))
    for name in ("rows.csv", "rows.PARQUET"):
        write_rows(found, tmp_path / name)
    assert (tmp_path / "rows.csv").read_text().splitlines()[1] == "gossip,0,4,2,1,solo,,7,0,2.0"
    assert pq.read_table(tmp_path / "rows.PARQUET").to_pylist() == list(found.rows())


def test_parquet_has_every_row_with_its_types(tmp_path: Path) -> None:
    found = outcome("gossip", SINGLE, worth=True)
    write_rows(found, tmp_path / "rows.parquet")
    table = pq.read_table(tmp_path / "rows.parquet")
    assert table.to_pylist() == list(found.rows())
    assert {field.name: field.type for field in table.schema} == {
        name: {"float64": "double"}.get(kind, kind) for name, kind in TYPES.items()
    }


# -- plot --------------------------------------------------------------------------------------------------------------


def test_a_png_has_its_dots_and_its_colours(tmp_path: Path) -> None:
    file = tmp_path / "plot.PNG"
    write_plot(outcome("gossip", DDP), file)
    assert file.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    dots = (imread(file)[:, :, :3] * 255).round().astype(int)
    assert dots.shape[1] > dots.shape[0] > 500
    for colour in COLOURS[:2]:
        assert (dots == [int(colour[at : at + 2], 16) for at in (1, 3, 5)]).all(axis=2).sum() > 50


def test_an_svg_names_every_method_and_every_axis(tmp_path: Path) -> None:
    names = ("gossip", DDP, SINGLE, "_own", "a$b$c", "<a&b>", "/home/somebody/experiments/one/run.toml")
    write_plot(outcome(*names, worth=True, hours=3.0), tmp_path / "plot.svg")
    shown = {"".join(text.itertext()) for text in ElementTree.parse(tmp_path / "plot.svg").iter(TEXT)}
    legend = {text.rpartition("  ")[0] for text in shown}
    assert {"gossip", DDP, SINGLE, "_own", "a$b$c", "<a&b>", "…xperiments/one/run.toml"} <= legend & shown
    assert {"loss (nats a token)", "tokens of all peers (thousands)", "payload sent by each peer (MB)"} <= shown
    assert {"time (h)", "effective speed-up (× tokens of each peer)"} <= shown
    assert any(text.startswith("dotted: the target ") for text in shown)
    assert sum(" ± " in text for text in shown) > 1


def test_a_curve_goes_through_its_marks_and_the_target_is_dotted() -> None:
    found = outcome("gossip", "none", hours=2.0)
    for axes, of, size in zip(figure_of(found).axes, ("tokens", "bytes", "seconds"), (1e3, 1e6, 3600.0), strict=True):
        curves = [line for line in axes.lines if line.get_linestyle() == "-" and len(line.get_xdata()) == 2]
        for standing, line in zip(found.standings, curves, strict=True):
            assert list(line.get_xdata()) == [getattr(mark, of) / size for mark in standing.curve]
            assert list(line.get_ydata()) == [mark.loss for mark in standing.curve]
        dotted = [line for line in axes.lines if line.get_linestyle() == ":"]
        assert [line.get_ydata()[0] for line in dotted] == [found.target]


def test_a_method_that_sends_nothing_is_one_dot_against_bytes() -> None:
    sent = figure_of(outcome("gossip")).axes[1]
    assert list(sent.lines[0].get_xdata()) == [0.0]


def test_the_worth_has_its_interval_and_says_what_lies_beyond(tmp_path: Path) -> None:
    found = outcome("gossip", "none", DDP, seeds=(0, 1, 2), worth=True)
    each = ((3.0, float("inf"), 2.0), (1.0, 0.0, 0.9), (1.0, 2.0, 3.0))
    better, worse, known = (
        replace(standing, worth=replace(standing.worth, values=values))
        for standing, values in zip(found.standings, each, strict=True)
    )
    axes = figure_of(replace(found, standings=(better, worse, known))).axes[3]
    assert [text.get_text() for text in axes.texts] == ["more than 4", "less than 0.5", "2.00 ± 2.48"]
    bars = [list(segment[:, 0]) for one in axes.collections for segment in one.get_segments()]
    assert bars == [pytest.approx([2 - 2.484, 2 + 2.484], abs=1e-3)]
    seeds = [list(line.get_xdata()) for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert seeds == [[3.0, 2.0], [1.0, 0.9], [1.0, 2.0, 3.0]]


@pytest.mark.parametrize(("count", "worth"), [(1, False), (16, True)])
def test_sixteen_methods_and_one_fit_into_the_figure(count: int, worth: bool) -> None:
    names = [SINGLE, "a rather long name of a manifest", *(f"method {number}" for number in range(14))]
    figure = figure_of(outcome(*names[:count], worth=worth))
    figure.draw_without_rendering()
    legend = figure.legends[0]
    assert len(legend.get_texts()) == count
    shown = figure.get_window_extent()
    for text in (*legend.get_texts(), *(axes.xaxis.label for axes in figure.axes), *figure.axes[-1].texts):
        extent = text.get_window_extent()
        assert shown.x0 <= extent.x0 < extent.x1 <= shown.x1, text.get_text()
        assert shown.y0 <= extent.y0 < extent.y1 <= shown.y1, text.get_text()


def test_no_setting_of_the_user_and_no_window_system_takes_part(tmp_path: Path) -> None:
    """A `matplotlibrc` in the working directory could otherwise run LaTeX on the names of methods."""
    before = "matplotlib.pyplot" in sys.modules  # the libraries of other tests load it
    write_plot(outcome("gossip"), tmp_path / "plot.svg")
    with mpl.rc_context({"text.usetex": True, "font.size": 70.0, "savefig.transparent": True}):
        write_plot(outcome("gossip"), tmp_path / "other.svg")
        assert mpl.rcParams["font.size"] == 70.0, "they are the user's again"
    assert (tmp_path / "plot.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()
    assert ("matplotlib.pyplot" in sys.modules) == before
