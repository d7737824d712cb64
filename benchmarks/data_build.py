"""How fast does `peer data build` make shards, compared with the tokenizers library alone, and in how much memory?

Bounds: at least .8 of the rate of `encode_batch` with the same threads, at most 1 GB of memory, and the same files
after a kill in the middle. About one minute for every 5 MB on a slow machine.

    python -m benchmarks.data_build [--mb 100] [--slices 10] [--vocab 8192] [--from FOLDER ...]
                                    [--json FILE] [--results]

The text is that of real files on this machine, of the standard library and /usr/share/doc unless `--from` names others.
It is written as JSONL, a file for each slice, and a tokenizer is trained on the first slice. Two processes take turns,
slice by slice, so that they see the same machine. One holds the slice's texts in memory and only encodes them, with
`encode_batch` and `encode_batch_fast`. The other reads, encodes, hashes and writes them as the command does. The ratios
are medians over the slices, of seconds and of processor seconds. Then the command builds all slices at once, and a text
file that holds all of them. Its memory is the peak of the process. Last, a build is killed when it has closed a shard,
and started again."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.lab.bench.pair import read_line, send_line, stop
from peer.python_child import popen_python, run_python, start_python
from peer.run.files.own_texts import survey

LEAST_RATIO, MOST_MB = 0.8, 1000.0
AT_ONCE = 1000
"""Documents per call of the library, as many as in its own training."""
REPLY_S, BUILD_S = 1800.0, 7200.0
FOLDERS = [Path(sysconfig.get_path("stdlib")), Path("/usr/share/doc")]
ABOUT = Benchmark(
    "data_build",
    "How fast does `peer data build` make shards, compared with the tokenizers library alone, and in how much memory?",
    "bound: .8 of the library's speed, 1 GB of memory, the same files after a kill",
    smallest="--mb 0.5 --slices 2 --vocab 400",
    is_long=True,
)


# -- the text ----------------------------------------------------------------------------------------------------------


def documents(folders: list[Path], nbytes: int) -> Iterator[str]:
    """Yield text files until `nbytes` are reached. If there are too few files, they repeat, marked with a number."""
    turn = 0
    while nbytes > 0:
        for folder in folders:
            for name in survey(folder).files:
                text = (folder / name).read_text(errors="ignore")
                nbytes -= len(text.encode())
                yield f"{text}\n{turn}" if turn else text
                if nbytes <= 0:
                    return
        turn += 1


def write_slices(folders: list[Path], into: Path, nbytes: int, count: int) -> list[Path]:
    """Write JSONL files of about equal size, and one text file with everything."""
    paths = [into / f"slice{number}.jsonl" for number in range(count)]
    texts = documents(folders, nbytes)
    with (into / "all.txt").open("w") as whole:
        for number, path in enumerate(paths):
            with path.open("w") as file:
                size = 0
                while number == count - 1 or size < nbytes // count:
                    text = next(texts, None)
                    if text is None:
                        break
                    size += len(text.encode())
                    file.write(json.dumps({"text": text}) + "\n")
                    whole.write(text)
    return paths


# -- the two processes -------------------------------------------------------------------------------------------------


def serve_library(tokenizer: str) -> None:
    """Encode the slice named in each line of stdin in memory. Print seconds, processor seconds and bytes."""
    from tokenizers import Tokenizer

    print(json.dumps({"ready": True}), flush=True)
    for number, line in enumerate(sys.stdin):
        # A tokenizer caches words, so each call begins with a new one, as a build does.
        opened = [Tokenizer.from_file(tokenizer) for _ in range(2)]
        calls: dict[str, Callable[..., Any]] = {"batch": opened[0].encode_batch, "fast": opened[1].encode_batch_fast}
        texts = [json.loads(row)["text"] for row in Path(json.loads(line)["slice"]).read_bytes().splitlines()]
        found: dict[str, float] = {"nbytes": sum(len(text.encode()) for text in texts)}
        for name, call in list(calls.items())[:: 1 - 2 * (number % 2)]:
            before, cpu = time.perf_counter(), time.process_time()
            for at in range(0, len(texts), AT_ONCE):
                call(texts[at : at + AT_ONCE], add_special_tokens=False)
            found |= {name: time.perf_counter() - before, f"{name}_cpu": time.process_time() - cpu}
        print(json.dumps(found), flush=True)


def serve_build(tokenizer: str) -> None:
    """Build the slice named in each line of stdin. Print seconds and processor seconds of the whole build."""
    from peer.data.build import build
    from peer.data.encoding import open_tokenizer
    from peer.data.sources import find

    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        path, encoder = Path(json.loads(line)["slice"]), open_tokenizer(Path(tokenizer))
        before, cpu = time.perf_counter(), time.process_time()
        build(find([path]), encoder, path.with_suffix(".out"), None, lambda read, total: None)
        print(json.dumps({"built": time.perf_counter() - before, "built_cpu": time.process_time() - cpu}), flush=True)


ROLES = {"library": serve_library, "build": serve_build}


async def rates(tokenizer: Path, slices: list[Path]) -> list[dict[str, float]]:
    """Alternate both processes over the slices. Return one row for each slice."""
    rows = []
    async with AsyncExitStack() as stack:
        processes = {}
        for role in ROLES:
            words, pipe = ("--role", role, "--tokenizer", str(tokenizer)), asyncio.subprocess.PIPE
            processes[role] = await start_python("benchmarks.data_build", *words, stdin=pipe, stdout=pipe)
            stack.push_async_callback(stop, processes[role])
            await read_line(processes[role])
        for number, path in enumerate(slices):
            row: dict[str, float] = {}
            for role in list(ROLES) if number % 2 else reversed(ROLES):
                await send_line(processes[role], {"slice": str(path)})
                row |= await read_line(processes[role], REPLY_S)
            rows.append(row)
            print(f"slice {number}: {row['nbytes'] / row['built'] / 1e6:.2f} MB/s", flush=True)
    return rows


# -- the command -------------------------------------------------------------------------------------------------------


def words_of(sources: list[Path], tokenizer: Path, out: Path) -> list[str]:
    """Return the arguments of `peer` for a build of these sources."""
    names = [*map(str, sources), "--tokenizer", str(tokenizer), "--out", str(out), "--holdout-one-in", "20", "--json"]
    return ["data", "build", *names]


def peak_mb(words: list[str]) -> float:
    """Run a command of `peer`, which may fail, and return its peak resident size in MB."""
    process = popen_python("peer", *words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    return usage.ru_maxrss * 1024 / 1e6


def kill_when_a_shard_is_closed(words: list[str], out: Path) -> bool:
    """Kill a build once it has written a shard. Return whether the kill came before the build was complete."""
    process = popen_python("peer", *words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not any(out.glob("train-*.tokens")):
        time.sleep(0.02)
    process.kill()
    process.wait()
    return not (out / "index.json").exists()


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def whole_builds(slices: list[Path], tokenizer: Path, folder: Path) -> dict[str, float]:
    """Build all slices: at once, as one text, and after a kill."""
    text = folder / "all.txt"
    found = {
        "jsonl_mb": peak_mb(words_of(slices, tokenizer, folder / "at-once")),
        # The text is one document, so that the build ends with an error (no hold-out), but only after encoding it.
        "text_mb": peak_mb(words_of([text], tokenizer, folder / "as-text")),
    }
    words = words_of(slices, tokenizer, folder / "killed")
    killed = kill_when_a_shard_is_closed(words, folder / "killed")
    if killed:  # a complete folder is refused, and a small build may have ended before the kill
        run_python("peer", *words, check=True, timeout=BUILD_S, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found["same"] = float(killed and files_of(folder / "at-once") == files_of(folder / "killed"))
    return found


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--mb", type=float, default=100.0)
    parser.add_argument("--slices", type=int, default=10)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--from", dest="folders", type=Path, nargs="+", default=FOLDERS)
    parser.add_argument("--role", choices=list(ROLES), help="one of the two processes")
    parser.add_argument("--tokenizer", help="with --role")
    given = parsed(parser, ABOUT)
    if given.role:
        ROLES[given.role](given.tokenizer)
        return
    folder = Path(tempfile.mkdtemp(prefix="data-build-"))
    try:
        slices = write_slices(given.folders, folder, int(given.mb * 1e6), given.slices)
        tokenizer = folder / "tokenizer.json"
        train = ["tokenizer", "train", str(slices[0]), "--vocab", str(given.vocab), "--out", str(tokenizer)]
        run_python("peer", *train, check=True, timeout=BUILD_S)
        rows = asyncio.run(rates(tokenizer, slices))
        whole = whole_builds(slices, tokenizer, folder)
    finally:
        shutil.rmtree(folder)
    kinds = {"batch": "encode_batch", "fast": "encode_batch_fast"}
    figures = [
        Figure(
            f"rate, times {name}{said}",
            "",
            statistics.median(row[f"{kind}{end}"] / row[f"built{end}"] for row in rows),
            None,
            LEAST_RATIO if kind == "batch" else None,
        )
        for kind, name in kinds.items()
        for end, said in (("", ""), ("_cpu", " by processor time"))
    ]
    figures += [
        Figure("peak memory, JSONL", "MB", whole["jsonl_mb"], MOST_MB),
        Figure("peak memory, one text", "MB", whole["text_mb"], MOST_MB),
        Figure("same files after a kill", "", whole["same"], None, 1.0),
        Figure("text", "MB", sum(row["nbytes"] for row in rows) / 1e6),
        Figure("threads", "", float(os.environ.get("RAYON_NUM_THREADS", len(os.sched_getaffinity(0))))),
    ]
    heads = ["slice", "MB", "build MB/s", *(f"{name} MB/s" for name in kinds.values())]
    cells = [
        [number, row["nbytes"] / 1e6, *(row["nbytes"] / 1e6 / row[kind] for kind in ("built", *kinds))]
        for number, row in enumerate(rows)
    ]
    publish(given, ABOUT, figures, Table("Slices", heads, cells))


if __name__ == "__main__":
    main()
