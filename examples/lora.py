"""A run of LoRA adapters: the frozen base stays with each peer, and only what is trained is exchanged.

Found the run, once: python examples/lora.py found FOLDER
Take part: python examples/lora.py TICKET @INVITATION HOME [--yes]

The first prints the commands that serve the run and invite a peer. `--yes` agrees to what the run takes. Otherwise the
terminal asks. At the end the adapters are written to `adapters.safetensors`.

The base here is a small GPT-2 with random weights of a fixed seed. With a pretrained one, `from_pretrained` takes the
place of `from_config`: every peer has to load the same weights, which the run does not compare."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

import peer

ROUNDS, SYNC_EVERY_S = 12, 5.0
CONTEXT, BATCH, RANK = 64, 4, 4
BASE = AutoConfig.for_model(
    "gpt2", vocab_size=256, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None
)


class LoraLinear(nn.Module):
    """A frozen layer plus the product of two small trained matrices (Hu et al. 2021, arXiv:2106.09685, section 4.1)."""

    def __init__(self, frozen: nn.Module, inputs: int, outputs: int) -> None:
        super().__init__()
        self.frozen = frozen
        self.lora_a = nn.Parameter(torch.randn(RANK, inputs) / inputs**0.5)
        self.lora_b = nn.Parameter(torch.zeros(outputs, RANK))

    def forward(self, inputs: Tensor) -> Tensor:
        adapted: Tensor = self.frozen(inputs) + inputs @ self.lora_a.T @ self.lora_b.T
        return adapted


def adapted_model() -> nn.Module:
    """Return the base with adapters beside every Conv1D, as GPT-2 names its linear layers."""
    torch.manual_seed(0)
    model: nn.Module = AutoModelForCausalLM.from_config(BASE)  # type: ignore[no-untyped-call]
    model.requires_grad_(requires_grad=False)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, Conv1D):
            inputs, outputs = layer.weight.shape
            model.set_submodule(name, LoraLinear(layer, inputs, outputs))
    torch.seed()
    return model


class SourceText:
    """Random windows over the bytes of Python's own `tempfile` module. The last bytes are the hold-out."""

    def __init__(self, *, held_out: bool = False) -> None:
        tokens = torch.frombuffer(bytearray(Path(tempfile.__file__).read_bytes()), dtype=torch.uint8).long()
        self._tokens = tokens[-4000:] if held_out else tokens[:-4000]

    def __iter__(self) -> Iterator[Tensor]:
        """Yield 100 batches, [BATCH, CONTEXT] int64."""
        for _ in range(100):
            starts = torch.randint(0, len(self._tokens) - CONTEXT, (BATCH, 1))
            yield self._tokens[starts + torch.arange(CONTEXT)]


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Return the mean loss of a batch, in nats per token."""
    value: Tensor = model(input_ids=batch, labels=batch).loss
    return value


def found(folder: str) -> None:
    run = peer.found(
        adapted_model(),
        folder,
        name="lora",
        title="LoRA adapters of a small GPT-2",
        preset="gossip",
        rounds=ROUNDS,
        sync_every=SYNC_EVERY_S,
    )
    print(f"founded run {run.run_id[:16]} of {run.parameters:,} parameters; serve it with:\n\n    {run.serve_command}")
    print(f"\nand invite each peer, by the id that `peer id show` prints, with:\n\n    {run.invite_command}")


def take_part(ticket: str, invitation: str, home: str, *, agreed: bool) -> None:
    torch.set_num_threads(1)
    model = adapted_model()
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=3e-3)
    options = peer.JoinOptions(invitation=invitation, agreed=agreed)
    holdout = [batch for batch, _ in zip(SourceText(held_out=True), range(16), strict=False)]
    with peer.join(ticket, model, optimizer, loss=loss, holdout=holdout, home=home, options=options) as swarm:
        print(f"joined: loss {swarm.evaluate():.3f} of the hold-out", flush=True)
        for batch in swarm.until_end(SourceText()):
            value = loss(model, batch)
            swarm.log(loss=value)
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        print(f"the run is over; the hold-out's loss is {swarm.evaluate():.3f}", flush=True)
    save_file({name: one.detach().contiguous() for name, one in trained.items()}, "adapters.safetensors")


def main() -> None:
    arguments = [argument for argument in sys.argv[1:] if argument != "--yes"]
    if arguments[0] == "found":
        found(arguments[1])
    else:
        take_part(*arguments, agreed="--yes" in sys.argv)


if __name__ == "__main__":
    main()
