"""How fast are our codecs beside a copy of the same memory, and beside what other libraries ship? One thread, 64 MB of
normally distributed fp32, everything in one run, round by round, so that all see the same machine.

    python benchmarks/codecs.py [--mb 64] [--repeats 7] [--json FILE]

The others as each library ships them, on the whole tensor and in parts of 512 KiB; those that are not installed
(`pip install bitsandbytes torchao`, hivemind is) are left out. Rates are GB of fp32 a second, medians."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peer import __version__
from peer.bench.codecs import seconds_of
from peer.codec.every import EVERY, REFERENCE
from peer.codec.kernels import IMPLEMENTATION, REASON
from peer.net.malloc import tune

PART = 2**17
"""Elements of a part: 512 KiB."""
Pair = tuple[Callable[[Tensor], Any], Callable[[Any], Any]]
"""Encode, decode."""


def bitsandbytes() -> Pair:
    from bitsandbytes import functional

    return functional.quantize_blockwise, lambda made: functional.dequantize_blockwise(*made)


def torchao() -> Pair:
    from torchao.quantization import quant_primitives as q

    def encode(values: Tensor) -> Any:
        rows = values.view(1, -1)
        scale, zero = q.choose_qparams_affine(rows, q.MappingType.SYMMETRIC, (1, 256), torch.int8)
        return q.quantize_affine(rows, (1, 256), scale, zero, torch.int8), scale, zero

    def decode(made: Any) -> Any:
        return q.dequantize_affine(made[0], (1, 256), made[1], made[2], torch.int8)

    return encode, decode


def hivemind() -> Pair:
    from hivemind.compression import deserialize_torch_tensor, serialize_torch_tensor
    from hivemind.proto.runtime_pb2 import CompressionType

    return lambda values: serialize_torch_tensor(values, CompressionType.FLOAT16), deserialize_torch_tensor


OTHERS = {"bitsandbytes 8 bit": bitsandbytes, "torchao int8 per 256": torchao, "hivemind float16": hivemind}


def work_of(elements: int) -> dict[str, Callable[[], Any]]:
    """What is timed, by its name."""
    values, into = torch.randn(elements, generator=torch.Generator().manual_seed(0)), torch.zeros(elements)
    copy = np.zeros(elements, dtype=np.float32)
    work: dict[str, Callable[[], Any]] = {"memcpy": lambda: np.copyto(copy, values.numpy())}
    for name, codec in EVERY.items():
        payload = codec.encode(values)
        work[f"{name} encode"] = lambda codec=codec: codec.encode(values)
        work[f"{name} decode"] = lambda codec=codec, payload=payload: codec.decode_into(payload, into)
        work[f"{name} axpy"] = lambda codec=codec, payload=payload: codec.add(payload, into, 0.5)
    for name in ("int8", "e3m0"):
        reference, payload = REFERENCE[name], EVERY[name].encode(values)
        work[f"{name} in torch encode"] = lambda reference=reference: reference.encode(values)
        work[f"{name} in torch decode"] = lambda reference=reference, payload=payload: reference.decode_into(
            payload, into
        )
    for name, load in OTHERS.items():
        try:
            encode, decode = load()
        except ImportError as error:
            print(f"{name}: left out ({error})")
            continue
        whole, parts = encode(values), [encode(part) for part in values.split(PART)]
        work[f"{name} encode"] = lambda encode=encode: encode(values)
        work[f"{name} decode"] = lambda decode=decode, whole=whole: decode(whole)
        work[f"{name} in parts encode"] = lambda encode=encode: [encode(part) for part in values.split(PART)]
        work[f"{name} in parts decode"] = lambda decode=decode, parts=parts: [decode(part) for part in parts]
    return work


def measure(elements: int, repeats: int) -> dict[str, float]:
    work = work_of(elements)
    took: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(repeats + 1):
        for name, call in work.items():
            seconds = seconds_of(call)
            if turn:
                took[name].append(seconds)
    return {name: 4 * elements / 1e9 / statistics.median(seconds) for name, seconds in took.items()}


def show(rates: dict[str, float]) -> None:
    print(f"memcpy {rates['memcpy']:.1f} GB/s; GB/s, and times memcpy in brackets")
    print(f"{'':34} {'encode':>15} {'decode':>15} {'axpy':>15}")
    for name in dict.fromkeys(key.rpartition(" ")[0] for key in rates if key != "memcpy"):
        cells = [rates.get(f"{name} {what}") for what in ("encode", "decode", "axpy")]
        shown = [f"{rate:7.2f} ({rate / rates['memcpy']:5.2f})" if rate else "" for rate in cells]
        print(f"{name:34} {shown[0]:>15} {shown[1]:>15} {shown[2]:>15}")


def versions() -> dict[str, str]:
    found = {"peer": __version__, "python": platform.python_version(), "machine": platform.machine()}
    for name in ("torch", "bitsandbytes", "torchao", "hivemind"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=64.0)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    tune()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"kernels: {IMPLEMENTATION} ({REASON})")
    rates = measure(int(given.mb * 1e6 / 4), given.repeats)
    show(rates)
    if given.json is not None:
        given.json.write_text(json.dumps({"rates": rates, "versions": versions(), "mb": given.mb}))


if __name__ == "__main__":
    main()
