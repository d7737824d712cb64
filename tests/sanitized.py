"""The kernels in C under the address and the undefined-behaviour sanitizer, over their conformance suites:

    python -m tests.sanitized

Builds them into a temporary folder with the C compiler, preloads its sanitizer and runs the suites; the exit code is
pytest's."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "peer/codec/native").glob("*.c"))
SUITES = ["tests/conformance/test_kernels.py", "tests/conformance/test_codecs.py", "-k", "not large"]
FLAGS = [
    "-g",
    "-O1",
    "-ffp-contract=off",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-shared",
    "-fPIC",
]
NAME = "peer.codec._kernels"


def main() -> int:
    cc = os.environ.get("CC", "gcc")
    with tempfile.TemporaryDirectory(prefix="peer-sanitized-") as folder:
        library = Path(folder) / "_kernels.abi3.so"
        include = f"-I{sysconfig.get_paths()['include']}"
        subprocess.run([cc, *FLAGS, include, *map(str, SOURCES), "-o", str(library)], check=True)
        runtime = [
            subprocess.run([cc, f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
            for name in ("libasan.so", "libubsan.so")
        ]
        # Python and torch keep what they allocate until they exit: leaks are not looked for
        env = {
            **os.environ,
            "LD_PRELOAD": " ".join(runtime),
            "ASAN_OPTIONS": "detect_leaks=0",
            "PYTHONMALLOC": "malloc",
        }
        return subprocess.run([sys.executable, "-m", "tests.sanitized", str(library)], cwd=ROOT, env=env).returncode


def run(library: str) -> int:
    """Run the conformance suites with the kernels in `library`. Return pytest's exit code."""
    import pytest

    spec = importlib.util.spec_from_file_location(NAME, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[NAME] = module
    from peer.codec import kernels

    assert kernels.kernels() is module
    return int(pytest.main(["-q", "-p", "no:cacheprovider", *SUITES]))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1]) if len(sys.argv) > 1 else main())
