"""How much slower is an inner step than a plain torch loop with the same model?

Bound: at most 1.05 times the processor time of the plain loop, at 22 and 110 million parameters. About six minutes.

    python -m benchmarks.step_time [--turns 7] [--sizes 22,110] [--context 256] [--batch 1] [--threads 1] [--json FILE]
                                   [--results]

The plain loop has the built-in model with parameters of their own, torch's clipping and its fused AdamW in two groups.
Both loops take the same windows, and their steps alternate in one process. A step costs processor seconds, which other
programs change less than its length. The figure is the median, over the turns, of our step over the plain one."""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the customary name

from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.run.sections import LlamaSection, OptimizerSection, TrainSection
from peer.trainer.batches import Batch
from peer.trainer.config import TrainerConfig
from peer.trainer.data import Corpus
from peer.trainer.device import choose_device
from peer.trainer.inner_loop import InnerLoop
from peer.trainer.loss import Windows
from peer.trainer.models.flat import views_of
from peer.trainer.models.llama import empty_model, first_params, layout_of

ABOUT = Benchmark(
    "step_time",
    "How much slower is an inner step than a plain torch loop with the same model?",
    "bound; step time",
    smallest="--turns 1 --sizes 22 --context 16",
)
AT_MOST = 1.05
WARM_UP = 2
MODELS = {
    22: LlamaSection(
        vocab_size=8192,
        hidden_size=384,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=6,
        num_key_value_heads=6,
    ),
    110: LlamaSection(
        vocab_size=32000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=12,
    ),
}


def plain(llama: LlamaSection, config: TrainerConfig) -> Callable[[Windows], float]:
    """Return a training step as in an ordinary script."""
    layout, section = layout_of(llama), config.optimizer
    model = empty_model(llama)
    start = first_params(llama, config.seed)
    values = {name: torch.nn.Parameter(view.clone()) for name, view in views_of(start, layout)}
    model.load_state_dict(values, assign=True)
    matrices = [value for name, value in model.named_parameters() if value.dim() == 2 and "embed" not in name]
    rest = [value for name, value in model.named_parameters() if value.dim() != 2 or "embed" in name]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": rest, "weight_decay": 0.0}]
    betas = (section.beta1, section.beta2)
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=betas, weight_decay=section.weight_decay, fused=True)

    def step(windows: Windows) -> float:
        tokens = torch.from_numpy(windows.astype(np.int64))
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), section.clip)
        optimizer.step()
        return loss.item()

    return step


def ours(llama: LlamaSection, config: TrainerConfig, seen: list[Windows]) -> InnerLoop:
    """Return the product's inner loop. It appends the windows of each step to `seen`."""
    noise = np.random.default_rng(0)
    data = noise.integers(0, 256, 2**20, dtype=np.uint8)
    corpus = Corpus(data[: 2**19], data[2**19 :], "")
    params = first_params(llama, config.seed)
    device = choose_device("cpu")

    def note(round_: int, step: int, batch: Batch) -> None:
        seen.append(batch.windows)

    return InnerLoop(config, layout_of(llama), device, corpus, params, note)


def measure(size: int, given: argparse.Namespace) -> dict[str, Any]:
    """Measure processor seconds of alternating steps, and page faults."""
    train = TrainSection(context=given.context, batch=given.batch, total_rounds=1000)
    config = TrainerConfig(
        model=MODELS[size],
        train=train,
        optimizer=OptimizerSection(lr=1e-4, warmup_fraction=0.0),
        sync_every=1000,
        seed=1,
        peer_id="bench",
        device="cpu",
        micro_batch=given.batch,
    )
    seen = list[Windows]()
    loop, step = ours(MODELS[size], config, seen), plain(MODELS[size], config)
    took: dict[str, list[float]] = {"ours": [], "plain": []}
    losses: list[tuple[float, float]] = []
    for turn in range(given.turns + WARM_UP):
        mine, mine_s = timed(lambda: loop.step() or 0.0)
        theirs, theirs_s = timed(lambda: step(seen.pop()))
        losses.append((mine, theirs))
        if turn >= WARM_UP:
            took["ours"].append(mine_s)
            took["plain"].append(theirs_s)
    assert abs(losses[0][0] - losses[0][1]) < 1e-3, losses[0]
    parameters = MODELS[size].parameters
    return {"parameters": parameters, **took}


def timed(work: Callable[[], float]) -> tuple[float, float]:
    """Return the result of `work` and its processor seconds."""
    before = time.process_time()
    value = work()
    return value, time.process_time() - before


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--sizes", default="22,110", help="million parameters")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    given = parsed(parser, ABOUT)
    torch.set_num_threads(given.threads)
    figures, rows = [], []
    for size in map(int, given.sizes.split(",")):
        found = measure(size, given)
        ratios = [mine / theirs for mine, theirs in zip(found["ours"], found["plain"], strict=True)]
        mine, theirs = (statistics.median(found[name]) for name in ("ours", "plain"))
        figures.append(Figure(f"step over that of a plain loop, {size} M", "times", statistics.median(ratios), AT_MOST))
        rows.append([size, found["parameters"], mine, theirs, min(ratios), max(ratios), len(ratios)])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    heads = ["million", "parameters", "ours, CPU s", "plain, CPU s", "least ratio", "largest", "turns"]
    title = f"{given.batch} windows of {given.context} tokens, {given.threads} threads; peak of both {peak:.0f} MiB"
    publish(given, ABOUT, figures, Table(title, heads, rows))


if __name__ == "__main__":
    main()
