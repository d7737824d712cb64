"""Every example runs and prints the output that its text announces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
KEPT = ROOT / "tests" / "golden" / "frozen" / "run"


def run(folder: Path, *command: str) -> str:
    """Run an example as a reader would: with the environment active, in some folder."""
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PEER_HOME": str(folder / "home"),
    }
    result = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_two_peers_stay_together_when_they_exchange(tmp_path: Path) -> None:
    said = run(tmp_path, sys.executable, str(EXAMPLES / "two_peers_in_virtual_time.py"))
    rows = {words[0]: words for words in map(str.split, said.splitlines())}
    exchanged, alone = rows["noloco"], rows["none"]
    assert int(exchanged[-2]) > 0 == int(alone[-2])
    assert 0 < float(exchanged[-1]) < float(alone[-1])
    assert float(exchanged[3]) < float(exchanged[1])


def test_a_journal_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "runs" / "0123456789abcdef"
    folder.mkdir(parents=True)
    shutil.copy(KEPT / "journal.jsonl", folder)
    with (folder / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"t":1.0,"kind":"eval')  # the peer is just writing
    first, head, *rows = run(tmp_path, sys.executable, str(EXAMPLES / "read_a_journal.py")).splitlines()
    assert (first, head.split()) == ("run 0123456789abcdef", ["round", "loss", "exchanged"])
    assert len(rows) > 1
    numbers = [int(row.split()[0]) for row in rows]
    assert numbers == sorted(numbers)
    assert all(0 < float(row.split()[1]) < 10 for row in rows)


def test_an_empty_home_is_told(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="holds no run yet"):
        run(tmp_path, sys.executable, str(EXAMPLES / "read_a_journal.py"), str(tmp_path))


@pytest.mark.nightly
def test_a_run_on_own_texts_is_planned(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("A text of one's own. " * 5000)
    said = run(tmp_path, "sh", str(EXAMPLES / "own_texts.sh"), "texts")
    assert said.startswith("1 files, ")
    assert 'kind = "text"' in (tmp_path / "own-texts.toml").read_text()
    for words in (
        "own-texts",
        "exchanged",
        "participation" if "participation" in said else "taking part",
        "--data texts",
    ):
        assert words in said


def test_every_example_is_tested() -> None:
    text = Path(__file__).read_text() + (ROOT / "tests" / "attached" / "test_real_swarm.py").read_text()
    assert [path.name for path in EXAMPLES.iterdir() if path.is_file() and path.name not in text] == []
