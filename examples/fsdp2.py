"""One peer of several processes: the Llama of own_loop.py, sharded by `fully_shard` over the ranks of one host.

Run it: torchrun --standalone --nproc-per-node 2 examples/fsdp2.py TICKET [HOME] [--yes]

Each rank has a GPU, or a part of the processor where there is none."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModelForCausalLM

import peer

CONTEXT, BATCH = 64, 4
MODEL = AutoConfig.for_model(
    "llama",
    vocab_size=256,
    hidden_size=64,
    intermediate_size=176,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=CONTEXT,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
)


class SourceText:
    """Random windows of the bytes of Python's own `tempfile` module."""

    def __init__(self) -> None:
        self._tokens = torch.frombuffer(bytearray(Path(tempfile.__file__).read_bytes()), dtype=torch.uint8).long()

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield 100 batches, [BATCH, CONTEXT] int64."""
        for _ in range(100):
            starts = torch.randint(0, len(self._tokens) - CONTEXT, (BATCH, 1))
            yield self._tokens[starts + torch.arange(CONTEXT)]


def main() -> None:
    ticket, *rest = [argument for argument in sys.argv[1:] if argument != "--yes"]
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", rank) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(rank)  # each rank draws its own batches
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_config(MODEL).to(device)  # type: ignore[no-untyped-call]
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # after sharding, which replaces the parameters
    options = peer.JoinOptions(agreed="--yes" in sys.argv)
    shown = -1
    with peer.join(ticket, model, optimizer, home=rest[0] if rest else None, options=options, on_error=print) as swarm:
        for tokens in swarm.until_end(SourceText()):
            loss = model(input_ids=tokens.to(device), labels=tokens.to(device)).loss
            swarm.log(loss=loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0 and swarm.round != shown:
                shown = swarm.round
                print(f"round {shown}: loss {loss.item():.3f}, {swarm.peers} peers", flush=True)
        loss_at_end = swarm.evaluate()  # to be called on all ranks, like all methods of the swarm
        if rank == 0:
            print(f"the run is over; the hold-out's loss is {loss_at_end:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
