"""Check that generated files are current: `python -m tests.generated` compares, `--write` writes them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

from benchmarks import liars, performance_page
from tests import cli_page, codes_page, events_page, exit_page, metrics_page, presets_page, python_page

ROOT = Path(__file__).parent.parent
PROTO = "peer/v1/exchange.proto"
PAGES: dict[str, Callable[[], str]] = {
    liars.PAGE: liars.page,
    "docs/reference/cli.md": cli_page.page,
    "docs/reference/codes.md": codes_page.page,
    "docs/reference/exit-codes.md": exit_page.page,
    "docs/reference/journal-events.md": events_page.page,
    "docs/reference/metrics.md": metrics_page.page,
    "docs/reference/performance.md": performance_page.page,
    "docs/reference/presets.md": presets_page.page,
    "docs/reference/python.md": python_page.page,
}
OUTPUTS = ("peer/v1/exchange_pb2.py", "peer/v1/exchange_pb2.pyi", *PAGES)


def generate(target: Path) -> None:
    """Run the protobuf compiler of the pinned grpcio-tools, and write the pages made from code and results."""
    for name, page in PAGES.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(page())
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # finds protoc-gen-mypy
    include = Path(grpc_tools.__file__).parent / "_proto"
    arguments = ["protoc", f"-I{ROOT / 'protos'}", f"-I{include}", f"--python_out={target}", f"--mypy_out={target}"]
    if protoc.main([*arguments, PROTO]) != 0:
        raise SystemExit("protoc failed")


def main() -> None:
    if "--write" in sys.argv:
        generate(ROOT)
        return
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        stale = [name for name in OUTPUTS if (Path(folder) / name).read_text() != (ROOT / name).read_text()]
    if stale:
        raise SystemExit(f"not current: {', '.join(stale)}; run: python -m tests.generated --write")


if __name__ == "__main__":
    main()
