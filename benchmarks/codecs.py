"""How fast are our codecs beside a copy of the same memory, and beside what other libraries ship? One thread, 64 MB of
normally distributed fp32, everything in one run, round by round, so that all see the same machine.

    python -m benchmarks.codecs [--mb 64] [--repeats 7] [--json FILE]

Ours in one process, under our allocator settings; the others in another one, without them, each library as it ships: on
the whole tensor, and in parts of 512 KiB. What is not installed (`pip install 'peer-swarm[bench]'`) is said so. Rates
are GB of fp32 a second, medians. Wanted: int8 at least 10 times the encode and 5 times the decode rate of each on
whole tensors."""

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

from peer.lab.bench.pair import hear, stop, tell
from peer.lab.bench.tables import options, table, write

PART = 2**17
"""Elements of a part: 512 KiB."""
BLOCK = 256
"""Elements that share a scale in torchao, which takes no rest."""
WANTED = {"encode": 10.0, "decode": 5.0}
Pair = tuple[Callable[[Tensor], Any], Callable[[Any], Any]]
"""Encode, decode."""
Work = dict[str, Callable[[], Any]]
"""What is timed, by its name."""


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
"""By name: what has to be installed, and how it is used."""


# -- the two processes -----------------------------------------------------------------------------------------------


def values_of(elements: int) -> Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(0))


def ours(elements: int) -> Work:
    """Sets up malloc for this process."""
    from peer.codec.registry import EVERY, REFERENCE
    from peer.node.process import tune

    tune()
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
    """As each library ships."""
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
    """Its version; empty: it is not."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


ROLES = {"ours": ours, "others": others}


def serve(role: str, elements: int) -> None:
    """Do and time everything once for each line of stdin: seconds by name."""
    from peer.lab.bench.codecs import seconds_of

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    work = ROLES[role](elements)
    print(json.dumps({"ready": role}), flush=True)
    while sys.stdin.readline():
        print(json.dumps({name: seconds_of(call) for name, call in work.items()}), flush=True)


# -- the measurement -------------------------------------------------------------------------------------------------


async def measure(elements: int, repeats: int) -> dict[str, float]:
    """GB of fp32 a second by name; the other process's memcpy is `memcpy, no settings`."""
    took: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        processes = {}
        for role in ROLES:
            command = (sys.executable, "-m", "benchmarks.codecs", "--role", role, "--elements", str(elements))
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
            stack.push_async_callback(stop, process)
            processes[role] = process
            await hear(process)
        for turn in range(repeats + 1):
            for role, process in processes.items():
                await tell(process, {})
                for name, seconds in (await hear(process)).items():
                    if turn:  # the first warms up
                        whose = "memcpy, no settings" if (role, name) == ("others", "memcpy") else name
                        took.setdefault(whose, []).append(seconds)
    return {name: 4 * elements / 1e9 / statistics.median(seconds) for name, seconds in took.items()}


def ratios(rates: dict[str, float]) -> dict[str, dict[str, float | None]]:
    """Our int8 over each library on whole tensors; None: it is not installed."""
    return {
        name: {what: rates[f"int8 {what}"] / rate if (rate := rates.get(f"{name} {what}")) else None for what in WANTED}
        for name in OTHERS
    }


def show(rates: dict[str, float]) -> None:
    print(f"memcpy {rates['memcpy']:.1f} GB/s; GB/s, and times memcpy in brackets")
    names = dict.fromkeys(key.rpartition(" ")[0] for key in rates if not key.startswith("memcpy"))
    rows = []
    for name in names:
        cells = [rates.get(f"{name} {what}") for what in ("encode", "decode", "axpy")]
        rows.append([name, *(f"{rate:.2f} ({rate / rates['memcpy']:.2f})" if rate else "" for rate in cells)])
    rows += [[name, "not installed", "", ""] for name, (needed, _) in OTHERS.items() if not installed(needed)]
    print(table(["", "encode", "decode", "axpy"], rows))
    wanted = ", ".join(f"{what} at least {least:g}" for what, least in WANTED.items())
    print(f"our int8, times each on whole tensors (wanted: {wanted})")
    print(table(["", *WANTED], [[name, *found.values()] for name, found in ratios(rates).items()]))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--mb", type=float, default=64.0)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--role", choices=list(ROLES), help="one of the two processes")
    parser.add_argument("--elements", type=int, default=0, help="with --role")
    given = parser.parse_args()
    if given.role:
        serve(given.role, given.elements)
        return
    from peer.codec.kernels import IMPLEMENTATION, REASON

    print(f"kernels: {IMPLEMENTATION} ({REASON})")
    rates = asyncio.run(measure(int(given.mb * 1e6 / 4) // BLOCK * BLOCK, given.repeats))
    show(rates)
    kernels = {"kernels": IMPLEMENTATION, "reason": REASON}
    write(given.json, {"mb": given.mb, "repeats": given.repeats, **kernels, "rates": rates, "int8_over": ratios(rates)})


if __name__ == "__main__":
    main()
