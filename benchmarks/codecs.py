"""How fast are our codecs, compared with a copy of the same memory and with other libraries?

Promise: none by number; an exchange is to cost the trainer little (7), and codecs are most of it. Values are 64 MB of
normal fp32, coded on one thread. Bounds, relative to the rate of a plain copy: int8 and bf16 at least 0.9, e3m0 at
least 0.8 (decoding 0.9). topk encodes at least 2 GB/s. Our int8 encodes 10 times and decodes 5 times as fast as each
library on the same tensor. About a minute.

    python -m benchmarks.codecs [--mb 64] [--repeats 7] [--json FILE] [--results]

Ours run in one process, under our allocator settings. The libraries run in another one without them, each as it ships:
on the tensor at once, and in parts of 512 KiB. Both take turns, so that they see the same machine. A library that is
not installed (`pip install 'peer-swarm[bench]'`) has no figure. Rates are GB of fp32 a second, medians."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import statistics
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.lab.bench.pair import read_line, send_line, stop
from peer.lab.bench.tables import table
from peer.python_child import start_python

PART = 2**17
"""Elements of one part, 512 KiB."""
BLOCK = 256
"""Elements that share a scale in torchao, whose tensors must be a multiple of it."""
WANTED = {"encode": 10.0, "decode": 5.0}
"""Required rates, as multiples of each library's rate."""
COPIES = {
    **{f"{codec} {what}": 0.9 for codec in ("int8", "bf16") for what in ("encode", "decode", "axpy")},
    "e3m0 encode": 0.8,
    "e3m0 decode": 0.9,
    "e3m0 axpy": 0.8,
}
"""Required rates, as multiples of a plain copy's rate."""
TOPK_GBS = 2.0
ABOUT = Benchmark(
    "codecs",
    "How fast are the codecs, compared with a copy of the same memory and with other libraries?",
    "bound; part of promise 7 (the trainer does not wait)",
    smallest="--mb 1 --repeats 1",
)
Pair = tuple[Callable[[Tensor], Any], Callable[[Any], Any]]
"""(encode, decode)."""
Work = dict[str, Callable[[], Any]]
"""Name -> the call to time."""


def bitsandbytes() -> Pair:
    from bitsandbytes import functional

    return functional.quantize_blockwise, lambda made: functional.dequantize_blockwise(*made)


def torchao() -> Pair:
    from torchao.quantization import quant_primitives as q

    def encode(values: Tensor) -> Any:
        rows = values.view(1, -1)
        scale, zero = q.choose_qparams_affine(rows, q.MappingType.SYMMETRIC, (1, BLOCK), torch.int8)
        return q.quantize_affine(rows, (1, BLOCK), scale, zero, torch.int8), scale, zero

    def decode(made: Any) -> Any:
        return q.dequantize_affine(made[0], (1, BLOCK), made[1], made[2], torch.int8)

    return encode, decode


def hivemind() -> Pair:
    from hivemind.compression import deserialize_torch_tensor, serialize_torch_tensor
    from hivemind.proto.runtime_pb2 import CompressionType

    return lambda values: serialize_torch_tensor(values, CompressionType.FLOAT16), deserialize_torch_tensor


OTHERS = {
    "bitsandbytes 8 bit": ("bitsandbytes", bitsandbytes),
    "torchao int8 per 256": ("torchao", torchao),
    "hivemind float16": ("hivemind", hivemind),
}
"""Name -> the package that has to be installed, and the functions that use it."""


# -- the two processes -----------------------------------------------------------------------------------------------


def values_of(elements: int) -> Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(0))


def ours(elements: int) -> Work:
    """Return the calls of our codecs. Changes malloc's settings for this process."""
    from peer.codec.registry import EVERY, REFERENCE
    from peer.node.process import tune_malloc

    tune_malloc()
    values, into = values_of(elements), torch.zeros(elements)
    copy = np.zeros(elements, dtype=np.float32)
    work: Work = {"memcpy": partial(np.copyto, copy, values.numpy())}
    for name, codec in EVERY.items():
        payload = codec.encode(values)
        work[f"{name} encode"] = partial(codec.encode, values)
        work[f"{name} decode"] = partial(codec.decode_into, payload, into)
        work[f"{name} axpy"] = partial(codec.add, payload, into, 0.5)
    for name in ("int8", "e3m0"):
        reference, payload = REFERENCE[name], EVERY[name].encode(values)
        work[f"{name} in torch encode"] = partial(reference.encode, values)
        work[f"{name} in torch decode"] = partial(reference.decode_into, payload, into)
    return work


def others(elements: int) -> Work:
    """Return the calls of each installed library, used as it ships."""
    values, work = values_of(elements), Work()
    copy = np.zeros(elements, dtype=np.float32)
    work["memcpy"] = partial(np.copyto, copy, values.numpy())
    cut = torch.split(values, PART)
    for name, (needed, load) in OTHERS.items():
        if not installed(needed):
            continue
        encode, decode = load()
        work[f"{name} encode"] = partial(encode, values)
        work[f"{name} decode"] = partial(decode, encode(values))
        work[f"{name} in parts encode"] = partial(each, encode, cut)
        work[f"{name} in parts decode"] = partial(each, decode, [encode(part) for part in cut])
    return work


def each(work: Callable[[Any], Any], parts: Sequence[Any]) -> None:
    for part in parts:
        work(part)


def installed(name: str) -> str:
    """Return the version of a package. Empty: not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


ROLES = {"ours": ours, "others": others}


def serve(role: str, elements: int) -> None:
    """Time every call once for each line of stdin. Print name -> seconds."""
    from peer.lab.bench.codecs import seconds_of

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    work = ROLES[role](elements)
    print(json.dumps({"ready": role}), flush=True)
    while sys.stdin.readline():
        print(json.dumps({name: seconds_of(call) for name, call in work.items()}), flush=True)


# -- the measurement -------------------------------------------------------------------------------------------------


async def measure(elements: int, repeats: int) -> dict[str, float]:
    """Return name -> GB of fp32 per second. `memcpy, no settings` is the copy in the libraries' process."""
    took: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        processes = {}
        for role in ROLES:
            words, pipe = ("--role", role, "--elements", str(elements)), asyncio.subprocess.PIPE
            process = await start_python("benchmarks.codecs", *words, stdin=pipe, stdout=pipe)
            stack.push_async_callback(stop, process)
            processes[role] = process
            await read_line(process)
        for turn in range(repeats + 1):
            for role, process in processes.items():
                await send_line(process, {})
                for name, seconds in (await read_line(process)).items():
                    if turn:  # the first turn warms up
                        whose = "memcpy, no settings" if (role, name) == ("others", "memcpy") else name
                        took.setdefault(whose, []).append(seconds)
    return {name: 4 * elements / 1e9 / statistics.median(seconds) for name, seconds in took.items()}


def ratios(rates: dict[str, float]) -> dict[str, dict[str, float | None]]:
    """Divide the rate of our int8 by that of each library on the tensor at once. None: it is not installed."""
    return {
        name: {what: rates[f"int8 {what}"] / rate if (rate := rates.get(f"{name} {what}")) else None for what in WANTED}
        for name in OTHERS
    }


def figures(rates: dict[str, float]) -> list[Figure]:
    found = [
        Figure(f"{name}, times a copy", "", rates[name] / rates["memcpy"], None, to) for name, to in COPIES.items()
    ]
    found.append(Figure("topk encode", "GB/s", rates["topk encode"], None, TOPK_GBS))
    for library, over in ratios(rates).items():
        for what, least in WANTED.items():
            found.append(Figure(f"our int8, times {library}: {what}", "", over[what], None, least))
    return found


def show(rates: dict[str, float]) -> None:
    print(f"memcpy {rates['memcpy']:.1f} GB/s; GB/s, and times memcpy in brackets")
    names = dict.fromkeys(key.rpartition(" ")[0] for key in rates if not key.startswith("memcpy"))
    rows = []
    for name in names:
        cells = [rates.get(f"{name} {what}") for what in ("encode", "decode", "axpy")]
        rows.append([name, *(f"{rate:.2f} ({rate / rates['memcpy']:.2f})" if rate else "" for rate in cells)])
    rows += [[name, "not installed", "", ""] for name, (needed, _) in OTHERS.items() if not installed(needed)]
    print(table(["", "encode", "decode", "axpy"], rows))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--mb", type=float, default=64.0)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--role", choices=list(ROLES), help="one of the two processes")
    parser.add_argument("--elements", type=int, default=0, help="with --role")
    given = parsed(parser, ABOUT)
    if given.role:
        serve(given.role, given.elements)
        return
    from peer.codec.kernels import IMPLEMENTATION, REASON

    print(f"kernels: {IMPLEMENTATION} ({REASON})")
    rates = asyncio.run(measure(int(given.mb * 1e6 / 4) // BLOCK * BLOCK, given.repeats))
    show(rates)
    names = dict.fromkeys(name.rpartition(" ")[0] or name for name in rates)
    kinds = ("encode", "decode", "axpy")
    rows = [[name, *(rates.get(f"{name} {kind}") for kind in kinds)] for name in names if name != "memcpy,"]
    publish(given, ABOUT, figures(rates), Table("GB of fp32 a second", ["", *kinds], rows))


if __name__ == "__main__":
    main()
