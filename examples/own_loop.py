"""A training loop of one's own takes part in a run of the built-in model: its model, optimizer and batches are plain
PyTorch and transformers.

Run it: python examples/own_loop.py TICKET [HOME] [--yes]

The run is one of `peer manifest new` with its usual model. `--yes` agrees to what the run takes. Otherwise the terminal
asks."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
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
    home = rest[0] if rest else None
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_config(MODEL)  # type: ignore[no-untyped-call]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    options = peer.JoinOptions(agreed="--yes" in sys.argv)
    shown = -1
    with peer.join(ticket, model, optimizer, home=home, options=options, on_error=print) as swarm:
        for tokens in swarm.until_end(SourceText()):
            loss = model(input_ids=tokens, labels=tokens).loss
            swarm.log(loss=loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if swarm.round != shown:
                shown = swarm.round
                print(f"round {shown}: loss {loss.item():.3f}, {swarm.peers} peers", flush=True)
        print(f"the run is over; the hold-out's loss is {swarm.evaluate():.3f}", flush=True)


if __name__ == "__main__":
    main()
