"""Files that a daemon writes are readable only by their owner, even in a home that existed before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

DAEMON = """
import subprocess, sys
from pathlib import Path
from peer.cli.run import run_daemon
from peer.run.home import Home, write_whole

async def main() -> int:
    folder = Home(Path(sys.argv[1])).run(bytes(32))
    write_whole(folder.manifest, b"words of the operator")
    subprocess.run([sys.executable, "-c", "import sys; open(sys.argv[1], 'w')", folder.path / "of_a_child"], check=True)
    return 0

run_daemon(main())
"""


def test_nobody_else_reads_or_writes_what_a_daemon_makes(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    home.chmod(0o777)
    subprocess.run([sys.executable, "-c", DAEMON, home], check=True, umask=0o022, timeout=180)
    made = {path.name: path.stat().st_mode & 0o077 for path in home.rglob("*")}
    assert {"manifest.toml", "of_a_child"} <= made.keys()
    assert {name: oct(open_to) for name, open_to in made.items() if open_to} == {}
