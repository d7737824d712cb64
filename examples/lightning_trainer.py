"""The Trainer of Lightning takes part in a run of a GPT-2, with a callback and nothing else changed.

Run it: python examples/lightning_trainer.py TICKET gpt2.json tokenizer.json TEXTS [HOME] [--yes]

The arguments are those of `hf_trainer.py`. The trained model is written to `trained-by-lightning`."""

from __future__ import annotations

import sys
from pathlib import Path

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

import peer
from peer.lightning import PeerCallback

BATCH = 4


class Module(lightning.LightningModule):
    """A LightningModule around a transformers model. Only the model `net` takes part in the run."""

    def __init__(self, config_file: str) -> None:
        super().__init__()
        self.net = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config_file))  # type: ignore[no-untyped-call]

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss: Tensor = self.net(input_ids=batch, labels=batch).loss
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.net.parameters(), lr=4e-3)


def main() -> None:
    ticket, config_file, tokenizer_file, texts, *rest = [word for word in sys.argv[1:] if word != "--yes"]
    module = Module(config_file)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=tokenizer_file)  # type: ignore[no-untyped-call]
    paths = sorted(path for path in Path(texts).iterdir() if path.is_file())
    tokens = torch.cat([torch.tensor(tokenizer(path.read_text(errors="replace"))["input_ids"]) for path in paths])
    context = module.net.config.n_positions
    windows = tokens[: len(tokens) // context * context].view(-1, context)
    callback = PeerCallback(
        ticket,
        model=module.net,
        run_schedule=True,
        home=rest[0] if rest else None,
        options=peer.JoinOptions(agreed="--yes" in sys.argv),
    )
    trainer = lightning.Trainer(
        max_epochs=-1,  # the callback stops the Trainer when the run is over
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,  # the daemon keeps checkpoints
        enable_progress_bar=False,
    )
    trainer.fit(module, DataLoader(windows, BATCH, shuffle=True))  # type: ignore[arg-type]
    assert callback.swarm is not None
    print(f"the run is over; the hold-out's loss is {callback.swarm.evaluate():.6f}", flush=True)
    module.net.save_pretrained("trained-by-lightning")


if __name__ == "__main__":
    main()
