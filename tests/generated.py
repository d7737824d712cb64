"""Generated files are current: `python -m tests.generated` compares, `--write` makes them anew."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

from benchmarks import performance_page
from tests import metrics_page
from tests.exit_page import page

ROOT = Path(__file__).parent.parent
PROTO = "peer/v1/exchange.proto"
PAGE = "docs/exit-codes.md"
METRICS_PAGE = "docs/metrics.md"
PERFORMANCE_PAGE = "docs/reference/performance.md"
OUTPUTS = ("peer/v1/exchange_pb2.py", "peer/v1/exchange_pb2.pyi", PAGE, METRICS_PAGE, PERFORMANCE_PAGE)


def generate(target: Path) -> None:
    """Run the protobuf compiler of the pinned grpcio-tools, and write the pages made from code and results."""
    (target / PAGE).parent.mkdir(exist_ok=True)
    (target / PAGE).write_text(page())
    (target / METRICS_PAGE).write_text(metrics_page.page())
    (target / PERFORMANCE_PAGE).parent.mkdir(exist_ok=True)
    (target / PERFORMANCE_PAGE).write_text(performance_page.page())
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
