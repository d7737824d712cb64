from __future__ import annotations

from pathlib import Path

import pytest

from peer.errors import DataError, UsageError
from peer.lab.localswarm.plan import data_folders


def test_texts_of_one_peer_go_before_everybodys(tmp_path: Path) -> None:
    for name in ("all", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("a text")
    found = data_folders((f"2@{tmp_path}/two", f"{tmp_path}/all"), "text", (1, 2, 5))
    assert found == {1: tmp_path / "all", 2: tmp_path / "two", 5: tmp_path / "all"}


def test_a_folder_may_have_an_at_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "me@home").mkdir()
    (tmp_path / "me@home" / "a.txt").write_text("a text")
    assert data_folders((f"{tmp_path}/me@home",), "text", (1,)) == {1: tmp_path / "me@home"}


def test_a_peer_without_texts_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="peer 2 has none"):
        data_folders((f"1@{tmp_path}",), "text", (1, 2))
    with pytest.raises(UsageError, match="peer 1 has none"):
        data_folders((), "text", (1,))


@pytest.mark.parametrize("number", [0, 3])
def test_texts_of_a_peer_that_is_not_there_are_refused(tmp_path: Path, number: int) -> None:
    with pytest.raises(UsageError, match=f"{number}@"):
        data_folders((str(tmp_path), f"{number}@{tmp_path}"), "text", (1, 2))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        data_folders((f"1@{tmp_path}/nowhere",), "text", (1,))


def test_a_folder_without_texts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no text: 0 files"):
        data_folders((str(tmp_path),), "text", (1,))


def test_texts_that_the_run_would_not_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="stdlib") as caught:
        data_folders((str(tmp_path),), "stdlib", (1,))
    assert "data.kind=text" in caught.value.fix
    assert data_folders((), "stdlib", (1,)) == {}
