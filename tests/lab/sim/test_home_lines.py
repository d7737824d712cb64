"""Tables of home lines: draws have the table's quantiles, depend on seed and peer alone, and bad files are refused with
line and column."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from peer.cli.simulate import command
from peer.errors import UsageError
from peer.lab.sim.drawn_values import quantiles_of
from peer.lab.sim.home_lines import COLUMNS, KIND, home_lines
from peer.lab.sim.links import MBIT, PROFILES, Link
from peer.lab.sim.measured_table import FOLDER, names_of, read_table

QUANTILES = """\
# source: a survey
quantile,down,up,rtt,jitter,loss
0.1,10,2,40,8,1
0.5,100,10,20,4,0.1
0.9,1000,1000,5,0,0
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "lines.csv"
    path.write_text(text)
    return path


def drawn(text: str | Path, count: int, seed: int = 0) -> dict[int, Link]:
    return home_lines(str(text)).links(seed, range(count))


def test_draws_have_the_quantiles_of_the_table(tmp_path: Path) -> None:
    links = drawn(written(tmp_path, QUANTILES), 20_000).values()
    down = quantiles_of([link.down / MBIT for link in links])
    up = quantiles_of([link.up / MBIT for link in links])
    assert down == pytest.approx((10, 100, 1000), rel=0.1)
    assert up == pytest.approx((2, 10, 1000), rel=0.1)
    assert quantiles_of([2000 * link.latency_s for link in links]) == pytest.approx((5, 20, 40), rel=0.1)


def test_values_between_two_quantiles_are_interpolated_in_the_logarithm(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, QUANTILES), COLUMNS)
    assert table.at(0.3)["down"] == pytest.approx(31.62, rel=1e-3)
    assert table.at(0.3)["rtt"] == pytest.approx(28.28, rel=1e-3)
    assert table.at(0.7)["loss"] == pytest.approx(0.05)  # linear: the logarithm of 0 is none
    assert (table.at(0.0), table.at(1.0)) == (table.rows[0], table.rows[-1])


def test_rows_are_drawn_by_weight(tmp_path: Path) -> None:
    text = "name,weight,down,up,rtt\nslow,1,10,1,30\nnone,0,1,1,1\nfast,3,100,50,10\n"
    counts = Counter(link.down / MBIT for link in drawn(written(tmp_path, text), 10_000).values())
    assert set(counts) == {10, 100}
    assert counts[100] / 10_000 == pytest.approx(0.75, abs=0.02)


def test_a_link_depends_on_seed_and_number_alone() -> None:
    eight, more = drawn("us-2022", 8), drawn("us-2022", 64)
    assert [more[number] for number in range(8)] == list(eight.values())
    random.seed(1)
    assert drawn("us-2022", 8) == eight
    assert drawn("us-2022", 64, seed=1) != more


def test_a_link_is_asymmetric_and_its_round_trip_is_twice_its_latency() -> None:
    spectrum = next(link for link in drawn("us-2022", 64).values() if link.up == pytest.approx(11.70 * MBIT))
    assert (spectrum.down, spectrum.latency_s) == (pytest.approx(183.74 * MBIT), pytest.approx(0.008))
    assert (spectrum.jitter_s, spectrum.loss) == (PROFILES["cable"].jitter_s, pytest.approx(PROFILES["cable"].loss))


@pytest.mark.parametrize("name", names_of(KIND))
def test_a_table_of_this_package_names_its_source(name: str) -> None:
    table = read_table(FOLDER / KIND / f"{name}.csv", COLUMNS)
    assert table.source
    assert "# url: https://" in (FOLDER / KIND / f"{name}.csv").read_text()
    assert len(table.rows) >= 4


def test_the_table_of_the_united_kingdom_has_the_published_quantiles() -> None:
    links = drawn("uk-2023", 20_000).values()
    down = [link.down / MBIT for link in links]
    assert sum(value <= 10 for value in down) / len(down) == pytest.approx(0.03, abs=0.01)
    assert sum(value <= 30 for value in down) / len(down) == pytest.approx(0.12, abs=0.01)
    assert quantiles_of(down)[1] == pytest.approx(69.4, rel=0.03)
    assert quantiles_of([link.up / MBIT for link in links])[1] == pytest.approx(18.4, rel=0.03)


HEAD = "weight,down,up,rtt\n"


@pytest.mark.parametrize(
    ("text", "found", "fix"),
    [
        (HEAD + "1,100,10,20\n1,fast,10,20\n", "line 3, column down: is 'fast'", "in Mbit/s"),
        ("# source: me\n\n" + HEAD + "1,100,-1,20\n", "line 4, column up: is '-1'", "0.01"),
        (HEAD + "1,100,,20\n", "line 2, column up: is empty", "Fill"),
        (HEAD + "1,100,10\n", "line 2: 3 cells", "weight, down, up, rtt"),
        (HEAD + "0,100,10,20\n", "column weight: is 0 in all rows", "above 0"),
        (HEAD + "1,nan,10,20\n", "line 2, column down: is 'nan'", "from 0.01"),
        ("weight,down,upp,rtt\n1,1,1,1\n", "line 1: there is no column 'upp'", "Did you mean up"),
        ("weight,down,rtt\n1,1,1\n", "line 1: column up is missing", "down, up"),
        ("down,up,rtt\n1,1,1\n", "column weight is missing", "weight"),
        ("weight,down,down,up,rtt\n1,1,1,1,1\n", "column down is there twice", "Leave one out"),
        ("quantile,down,up,rtt\n0.5,1,1,1\n0.1,1,1,1\n", "line 3, column quantile: is 0.1 after 0.5", "Sort"),
        ("quantile,down,up,rtt\n50,1,1,1\n", "line 2, column quantile: is '50'", "from 0 to 1"),
        (HEAD, "has no rows", "at least one"),
        ("", "has no head", "column names"),
    ],
)
def test_a_bad_file_is_refused_with_line_and_column(tmp_path: Path, text: str, found: str, fix: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as refused:
        home_lines(str(path))
    assert str(path) in refused.value.found
    assert found in refused.value.found
    assert fix in refused.value.fix


def test_a_name_that_is_not_known_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError) as refused:
        home_lines("us-2020")
    assert "Did you mean us-2022" in refused.value.fix
    with pytest.raises(UsageError, match="no such name or file"):
        home_lines("missing/lines.csv")
    with pytest.raises(UsageError) as refused:
        home_lines("/dev/null")
    assert "CSV" in refused.value.fix


def test_a_column_that_a_table_lacks_is_reported_as_an_assumption(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, HEAD + "1,100,10,20\n"), COLUMNS)
    assert table.assumed == "jitter and loss: not in the table, taken as 0"


def test_the_report_has_what_was_drawn() -> None:
    words = ["--peers", "4", "--hours", "0.2", "--sync-every", "60", "--parameters", "1024", "--link"]
    printed = CliRunner().invoke(command, [*words, "us-2022", "--json"], catch_exceptions=False).stdout
    (found,) = json.loads(printed)["drawn"]
    up = [link.up / MBIT for link in drawn("us-2022", 4).values()]
    assert found["quantiles"]["up Mbit/s"] == pytest.approx(list(quantiles_of(up)))
    assert (found["option"], "Ookla" in found["source"]) == ("--link us-2022", True)
    assert json.loads(CliRunner().invoke(command, [*words, "home", "--json"]).stdout)["drawn"] == []
    assert "  up Mbit/s" in CliRunner().invoke(command, [*words, "us-2022"]).stdout
