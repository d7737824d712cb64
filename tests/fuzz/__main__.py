"""Command line of the fuzzer.

`python -m tests.fuzz --inputs 1000000 --target all --jobs 2` runs every target in its own process and prints a line for
each. `--target T --seed S --index I` runs one input again and shows it. Exit code 1: there are findings."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzz.engine import Finding, Outcome, fuzz, input_at, prepare, verdict_of
from tests.fuzz.targets import MAKERS, target

ROOT = Path(__file__).parents[2]
HEAD = f"{'target':<16}{'inputs':>9}{'seconds':>9}{'/s':>8}{'slowest ms':>12}{'MiB':>6}{'accepted':>10}  refused"


def main() -> int:
    options = _options()
    if options.index is not None:
        return _replay(options.target, options.seed, options.index)
    names = list(MAKERS) if options.target == "all" else options.target.split(",")
    if options.json:
        print(json.dumps(fuzz(target(names[0]), options.seed, options.inputs, options.seconds).to_json()))
        return 0
    print(f"seed {options.seed}\n{HEAD}", flush=True)
    found = 0
    with ThreadPoolExecutor(options.jobs) as pool:  # each only waits for a process
        for outcome in pool.map(lambda name: _in_a_process(name, options), names):
            print("\n".join(_lines(outcome, options.seed)), flush=True)
            found += len(outcome.findings)
    print(f"{found} found")
    return 1 if found else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000, help="of each target")
    parser.add_argument("--seconds", type=float, default=1e9, help="a target ends when they are over")
    parser.add_argument("--target", default="all", help=f"all, or names with commas between: {', '.join(MAKERS)}")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--index", type=int, help="run this one input again")
    parser.add_argument("--json", action="store_true", help="one target, here, as JSON")
    return parser.parse_args()


def _in_a_process(name: str, options: argparse.Namespace) -> Outcome:
    """Run a target in a process of its own, so that memory is measured from a fresh start and a crash affects only this
    target."""
    command = [sys.executable, "-m", "tests.fuzz", "--json", "--target", name, "--seed", str(options.seed)]
    command += ["--inputs", str(options.inputs), "--seconds", str(options.seconds)]
    alone = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, cwd=ROOT, env=alone, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        finding = Finding(-1, "", f"the process ended with {done.returncode}", "")
        return Outcome(name, findings=[finding])
    return Outcome.from_json(json.loads(done.stdout))


def _lines(outcome: Outcome, seed: int) -> Iterator[str]:
    refused = ", ".join(f"{name} {count}" for name, count in outcome.refused.most_common())
    rate = outcome.inputs / max(outcome.seconds, 1e-9)
    yield (
        f"{outcome.target:<16}{outcome.inputs:>9}{outcome.seconds:>9.1f}{rate:>8.0f}{outcome.slowest_ms:>12.1f}"
        f"{outcome.growth_mib:>6.1f}{outcome.accepted:>10}  {refused}"
    )
    for finding in outcome.findings:
        yield f"  FOUND at {finding.where}: {finding.what}"
        yield f"    python -m tests.fuzz --target {outcome.target} --seed {seed} --index {finding.index}"


def _replay(name: str, seed: int, index: int) -> int:
    """Print one input and its outcome. Raises if it is a finding."""
    prepare()
    data = input_at(target(name), seed, index)
    print(f"{len(data)} bytes: {data[:2000]!r}\nhex: {data[:2000].hex()}", flush=True)
    print(f"refused: {verdict}" if (verdict := verdict_of(target(name), data)) else "accepted")
    return 0


if __name__ == "__main__":
    sys.exit(main())
