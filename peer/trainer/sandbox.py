"""Opens the configs and tokenizers of strangers in a separate process with limits on processor time and memory.

A file that crashes, hangs or exhausts a library then costs only that process, not the daemon or its trainer."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer.errors import ModelError
from peer.protocol.model.layout import TensorSpec
from peer.python_child import popen_python
from peer.run.files.layout_file import MOST_LAYOUT_BYTES
from peer.run.files.model_config import MOST_CONFIG_BYTES, read_config
from peer.run.files.tokenizer_file import MOST_TOKENIZER_BYTES
from peer.trainer.weight_files import check_folder, check_no_pointer

OPEN_S = 5.0
"""Most seconds of processor time for opening a file, after the libraries are loaded."""
BUSY = 6
"""Seconds to wait per second of permitted processor time, so that a busy machine does not make an honest file fail."""
LOAD_S = 180.0
"""Most seconds for loading the libraries."""
MEMORY = 512 * 2**20
"""Most bytes that opening a file may allocate, beside the loaded libraries."""
MOST_ANSWER_BYTES = 2 * MOST_LAYOUT_BYTES
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "MALLOC_ARENA_MAX": "2",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "USE_HUB_KERNELS": "0",
}
"""Environment of the process. The libraries download nothing, and their memory does not depend on cores or devices."""
TRIAL_S, TRIED_A_SECOND = 20.0, 2e7
"""Seconds of processor time to try a model out, plus one second for this many parameters."""
LONGEST_TRIAL_S = 1800.0
WEIGHT_BYTES = 16
"""Bytes per parameter that making first weights may take: the model, the mapped files and one temporary copy."""
WEIGHTS_S, WEIGHTS_A_SECOND = 60.0, 5e6
"""Seconds of processor time to make first weights, plus one second for this many parameters."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """Description of the model that a config.json makes.

    `max_positions`: its longest context in tokens; None: unbounded. `vocab`: size of its vocabulary. `attention`:
    whether its forward pass takes a mask and positions."""

    parameters: int
    tensors: tuple[TensorSpec, ...]
    max_positions: int | None
    vocab: int
    attention: bool


@dataclass(frozen=True, slots=True)
class InspectedTokenizer:
    """Description of a tokenizer.json.

    `end_token`: the token that ends a document; None: no token has one of the usual names."""

    vocab_size: int
    end_token: int | None


def inspect_config(
    path: Path, most_parameters: int, processor_s: float = OPEN_S, *, context: int = 0, buffers: Path | None = None
) -> Inspected:
    """Describe the model that a config.json makes. Raises ModelError for a config that cannot be used.

    `processor_s`: most seconds of processor time, once the libraries are loaded. `context`: tokens of the windows that
    the model is to be trained with; 0: it is not to be trained. With a context the model is tried out, which extends
    the time limit, and refused if its logits depend on later tokens or if it does not take windows of that length.
    `buffers`: file of the run's buffers, which have to fit the model."""
    read_config(_start_of(path, MOST_CONFIG_BYTES))
    job = {"job": "config", "path": str(path), "most_parameters": most_parameters, "context": context}
    job["buffers"] = None if buffers is None else str(buffers)
    if context:
        processor_s += min(LONGEST_TRIAL_S, TRIAL_S + most_parameters / TRIED_A_SECOND)
    answer = _run_job(job, processor_s, MEMORY)
    tensors = tuple(TensorSpec(name, tuple(shape)) for name, shape in answer.pop("tensors"))
    return Inspected(tensors=tensors, **answer)


def inspect_tokenizer(path: Path, processor_s: float = OPEN_S) -> InspectedTokenizer:
    """Describe a tokenizer.json. Raises ModelError for one that cannot be used.

    `processor_s`: most seconds of processor time, once the library is loaded."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}", "Name a file that is there.") from error
    if size > MOST_TOKENIZER_BYTES:
        raise ModelError(f"the tokenizer.json has {size:,} bytes, at most {MOST_TOKENIZER_BYTES:,} are read")
    return InspectedTokenizer(**_run_job({"job": "tokenizer", "path": str(path)}, processor_s, MEMORY))


@dataclass(frozen=True, slots=True)
class FirstWeights:
    """What `write_weights` wrote.

    `types`: parameter -> its type in the pretrained folder. `buffers`: names of the buffers that do not follow from the
    config, which are in the file `buffers_beside`."""

    types: dict[str, str]
    buffers: tuple[str, ...]


def write_weights(
    config: Path, seed: int, tensors: Sequence[TensorSpec], out: Path, folder: Path | None = None
) -> FirstWeights:
    """Write a model's first weights to `out`: flat fp32, little-endian, in the model's own order of tensors.

    Without `folder` they are random, determined by the config, the seed and the versions of torch and transformers.
    With it, they are the weights of that folder of safetensors, and its buffers go to `buffers_beside(out)`. `tensors`:
    of the model. Raises ModelError."""
    read_config(_start_of(config, MOST_CONFIG_BYTES))
    job = {"job": "weights", "path": str(config), "seed": seed, "out": str(out), "folder": None}
    if folder is not None:
        check_folder(folder, tensors)
        job |= {"folder": str(folder), "buffers": str(buffers_beside(out))}
    parameters = sum(tensor.elements for tensor in tensors)
    seconds = WEIGHTS_S + parameters / WEIGHTS_A_SECOND
    answer = _run_job(job, seconds, MEMORY + WEIGHT_BYTES * parameters)
    if answer["parameters"] != parameters:
        raise ModelError(f"the model has {answer['parameters']:,} parameters here, {parameters:,} in its run")
    return FirstWeights(answer["types"], tuple(answer["buffers"]))


def buffers_beside(weights: Path) -> Path:
    """Return the path of the buffers that `write_weights` writes beside the weights."""
    return weights.with_name(f"{weights.name}.buffers")


def _start_of(path: Path, most: int) -> bytes:
    """Return the first `most + 1` bytes of a file. Raises ModelError when it cannot be read, or is a Git LFS
    pointer."""
    try:
        with path.open("rb") as file:
            raw = file.read(most + 1)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}", "Name a file that is there.") from error
    check_no_pointer(path, raw)
    return raw


def _run_job(job: dict[str, Any], seconds: float, memory: int) -> dict[str, Any]:
    """Run a job in a fresh process, end the process, and return the answer. Raises ModelError.

    `seconds`: processor time once the libraries are loaded. `memory`: bytes in addition to the libraries."""
    job |= {"seconds": seconds, "wait": BUSY * seconds, "memory": memory}
    with popen_python(
        "peer.trainer.sandbox_child",
        json.dumps(job),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | ENVIRONMENT,
    ) as process:
        try:
            lines = ChildLines(process)
            ready = lines.next(LOAD_S, "the libraries did not load")
            reply = ready if "refused" in ready else lines.next(BUSY * seconds, "opening it took longer than allowed")
        finally:
            process.kill()
    if "refused" in reply:
        raise ModelError(_what(job) + reply["refused"], reply.get("fix", ""), reply.get("why", ""))
    answer: dict[str, Any] = reply["answer"]
    return answer


def _what(job: dict[str, Any]) -> str:
    return "" if job.get("folder") else f"{Path(job['path']).name}: "


class ChildLines:
    """Reads JSON lines from a child's output, each with a deadline and of bounded length."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._descriptor = process.stdout.fileno()
        self._process = process
        self._read = b""

    def next(self, seconds: float, why: str) -> dict[str, Any]:
        """Return the next line, decoded. Raises ModelError, which begins with `why`, after `seconds` without one, and
        also when the line is too long or the child has ended."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._read:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._descriptor], [], [], left)[0]:
                raise ModelError(f"{why}: {seconds:g} s")
            part = os.read(self._descriptor, 2**16)
            if not part or len(self._read) + len(part) > MOST_ANSWER_BYTES:
                raise ModelError(self._end() if not part else "what it holds has no bounded description")
            self._read += part
        line, _, self._read = self._read.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _end(self) -> str:
        code = self._process.wait(timeout=5.0)
        if code == -signal.SIGPROF:
            return "opening it took more processor time than allowed"
        return f"the process that opened it ended with code {code} (too much memory is the usual cause)"
