"""What a process of ours loads decides how long a newcomer waits on a busy machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def loads_none_of(code: str, modules: set[str]) -> None:
    check = f"{code}\nimport sys\nfound = {modules!r} & set(sys.modules)\nassert not found, found"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=180, cwd=Path(__file__).parents[2])


def test_a_trainer_loads_no_compiler() -> None:
    code = (
        "import peer.trainer.worker\n"
        "from peer.trainer.models.llama import LlamaSection, layout_of\nlayout_of(LlamaSection())"
    )
    loads_none_of(code, {"torch._dynamo", "sympy", "grpc", "hivemind"})


def test_a_daemon_loads_nothing_of_hivemind_but_its_directory() -> None:
    code = "import peer.node.peer, hivemind.p2p, hivemind.dht\nassert hivemind.__path__"
    loads_none_of(code, {"scipy", "hivemind.averaging", "hivemind.moe", "hivemind.optim"})
