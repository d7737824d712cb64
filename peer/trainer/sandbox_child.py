"""The process that opens a stranger's files: `python -m peer.trainer.sandbox_child JOB`.

It loads the libraries, reports that it is ready, limits its own memory and time, and does the job. Its answer is one
line of JSON. Only `peer.trainer.sandbox` starts it."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peer.errors import ModelError, PeerError
from peer.installation import install_extras
from peer.observe.formatting import amount
from peer.run.files.model_config import read_config

Answer = dict[str, Any]
TRIAL_COPIES = 4
"""A trial may allocate memory for this many copies of the model's largest tensor. (An inner step needs four copies of
every tensor.)"""

MODEL_LIBRARIES = ("transformers.generation.utils", "transformers.modeling_utils", "peer.trainer.models.builder")
"""Modules that building any model needs. They are loaded before the job's limits begin."""
LOAD_IT = "Load the folder here with transformers' AutoModelForCausalLM.from_pretrained, and mend what it reports."
TOKENIZER_LIBRARIES = ("tokenizers", "peer.run.files.tokenizer_file")


def _load_model(job: Answer) -> None:
    """Load the library's module of the config's model. An unknown model is left for the job itself to refuse."""
    from peer.trainer.models import builder

    path = Path(job["path"])
    with contextlib.suppress(PeerError):
        builder.load_module(read_config(path.read_bytes())["model_type"])


def _config(job: Answer) -> Answer:
    """Job `config`: describe the model of a config.json, with the fields of `sandbox.Inspected`."""
    from peer.trainer.models import builder
    from peer.trainer.models.buffers import read_buffers

    config = builder.config_of(Path(job["path"]))
    model: Any = builder.build_counted(config, job["most_parameters"])
    tensors = [[name, list(param.shape)] for name, param in model.named_parameters()]
    elements = sum(param.numel() for param in model.parameters())
    if elements > job["most_parameters"]:
        raise ModelError(f"the model has {elements:,} parameters, its run allows {job['most_parameters']:,}")
    if job["buffers"] is not None:
        read_buffers(Path(job["buffers"]), model)
    if job["context"]:
        _try(config, max(param.numel() for param in model.parameters()), job["context"])
    takes = inspect.signature(model.forward).parameters
    return {
        "parameters": elements,
        "tensors": tensors,
        "max_positions": _positions(config),
        "vocab": model.get_input_embeddings().num_embeddings,
        "attention": "position_ids" in takes and "attention_mask" in takes and not model._is_stateful,
    }


def _try(config: Any, longest: int, context: int) -> None:
    """Try the model out. Raises ModelError if it sees later tokens, or does not take windows of `context` tokens.

    `longest`: elements of its largest tensor."""
    from peer.trainer.models import builder
    from peer.trainer.models.causality import check_causal
    from peer.trainer.models.longest import check_length

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft != hard:  # equal only when `limit_memory` was not called, as in tests
        resource.setrlimit(resource.RLIMIT_AS, (min(soft + TRIAL_COPIES * 4 * longest, hard), hard))
    check_causal(builder.build_stand_in(config))
    check_length(builder.build_shell(config), context)


def _positions(config: Any) -> int | None:
    most = getattr(config, "max_position_embeddings", None)
    return most if isinstance(most, int) and most > 0 else None


def _tokenizer(job: Answer) -> Answer:
    """Job `tokenizer`: return the vocabulary's size of a tokenizer.json, and the token that ends a document."""
    from peer.run.files.tokenizer_file import END_TOKENS, MOST_TOKENS, open_tokenizer

    raw = Path(job["path"]).read_bytes()
    try:
        tokenizer = open_tokenizer(raw)
    except ValueError as error:  # includes errors of the library itself
        raise ModelError(f"the tokenizers library cannot read the tokenizer.json: {str(error)[:200]}") from error
    vocabulary = tokenizer.get_vocab()
    size = max(vocabulary.values(), default=-1) + 1
    if not 2 <= size <= MOST_TOKENS:
        raise ModelError(f"the tokenizer.json has {size:,} tokens, not 2 to {MOST_TOKENS:,}")
    end = next((vocabulary[name] for name in END_TOKENS if name in vocabulary), None)
    return {"vocab_size": size, "end_token": end}


def _weights(job: Answer) -> Answer:
    """Job `weights`: write a model's first weights to a file, little-endian fp32 in the order of `named_parameters`.

    With a pretrained folder, its buffers that do not follow from the config go to a second file."""
    import torch
    from safetensors.torch import save_file

    from peer.trainer.models import builder
    from peer.trainer.models.pretrained import Pretrained, load_pretrained

    config = builder.config_of(Path(job["path"]))
    if job["folder"] is None:
        torch.manual_seed(job["seed"] % 2**63)
        made = Pretrained(builder.build(config), {}, {})
    else:
        made = load_pretrained(Path(job["folder"]), config)
    with Path(job["out"]).open("wb") as file:
        for name, parameter in made.model.named_parameters():
            if not bool(parameter.isfinite().all()):
                raise ModelError(f"the first weights {name} hold NaN or infinity")
            values = parameter.detach().to(torch.float32).contiguous().numpy()
            file.write(values.astype("<f4", copy=False).data.cast("B") if values.ndim else values.tobytes())
    if made.buffers:
        save_file(made.buffers, job["buffers"])
    parameters = sum(parameter.numel() for parameter in made.model.parameters())
    return {"parameters": parameters, "types": made.types, "buffers": sorted(made.buffers)}


JOBS: dict[str, tuple[tuple[str, ...], Callable[[Answer], None], Callable[[Answer], Answer]]] = {
    "config": (MODEL_LIBRARIES, _load_model, _config),
    "tokenizer": (TOKENIZER_LIBRARIES, lambda job: None, _tokenizer),
    "weights": (MODEL_LIBRARIES, _load_model, _weights),
}
"""Name of a job -> (libraries to load, function that loads further modules for the job, function that does it)."""


def limit_memory(more_bytes: int, most_bytes: int) -> None:
    """Limit this process's address space to its present size plus `more_bytes`.

    The process may later raise the limit itself, up to its present size plus `most_bytes`. An existing lower limit
    stays. Raises OSError when the system forbids limits or /proc cannot be read."""
    status = Path("/proc/self/status").read_text()
    size = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmSize:"))
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    hard = size + most_bytes if most == resource.RLIM_INFINITY else min(size + most_bytes, most)
    resource.setrlimit(resource.RLIMIT_AS, (min(size + more_bytes, hard), hard))


def main() -> None:
    job = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output that a library prints must not be taken for the answer

    def send(message: Answer) -> None:
        print(json.dumps(message), file=answers, flush=True)

    libraries, prepare, work = JOBS[job["job"]]
    try:
        for library in libraries:
            importlib.import_module(library)
        prepare(job)
    except ImportError as error:
        send({"refused": f"a library is missing: {error}", "fix": install_extras("hf")})
        return
    send({"ready": True})
    more = TRIAL_COPIES * 4 * job["most_parameters"] if job.get("context") else 0
    try:
        limit_memory(job["memory"], job["memory"] + more)
    except OSError as error:
        send(
            {
                "refused": f"the memory of the process that opens it cannot be limited here: {error.strerror}",
                "fix": "Allow the system calls setrlimit and prlimit64, and give this program a /proc.",
            }
        )
        return
    signal.setitimer(signal.ITIMER_PROF, job["seconds"])  # counts processor time; at its end SIGPROF ends the process
    signal.alarm(int(job["wait"]) + 1)  # a backup: the parent kills this process earlier, unless the parent has ended
    send(outcome(work, job))


def outcome(work: Callable[[Answer], Answer], job: Answer) -> Answer:
    """Do a job. Return its answer, or the reason why the file is refused."""
    try:
        return {"answer": work(job)}
    except PeerError as error:
        return {"refused": error.found, "fix": error.fix, "why": error.why}
    except MemoryError:
        return {"refused": f"opening it takes more than {amount(job['memory'], 'bytes')} of memory"}
    except Exception as error:  # noqa: BLE001 - a library may raise anything at a stranger's file
        fix = LOAD_IT if job.get("folder") else ""
        return {"refused": f"the libraries cannot use it: {type(error).__name__}: {str(error)[:300]}", "fix": fix}


if __name__ == "__main__":
    main()
