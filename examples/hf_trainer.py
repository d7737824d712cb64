"""The Trainer of transformers takes part in a run of a GPT-2, with a callback and nothing else changed.

Run it: python examples/hf_trainer.py TICKET gpt2.json tokenizer.json TEXTS [HOME] [--yes]

The first two files are those of the run. TEXTS is a folder with texts of your own. `docs/guides/hf-trainer.md` founds
such a run. `--yes` agrees to what the run takes. Otherwise the terminal asks. The trained model is written to
`trained`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

import peer
from peer.hf import PeerCallback

BATCH = 4


class Windows(Dataset[dict[str, torch.Tensor]]):
    """Windows of tokens over all texts of a folder, in order."""

    def __init__(self, folder: Path, tokenizer: PreTrainedTokenizerFast, context: int) -> None:
        texts = [path.read_text(errors="replace") for path in sorted(folder.iterdir()) if path.is_file()]
        tokens = torch.cat([torch.tensor(tokenizer(text)["input_ids"]) for text in texts])
        self._windows = tokens[: len(tokens) // context * context].view(-1, context)

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._windows[index], "labels": self._windows[index]}


def main() -> None:
    ticket, config_file, tokenizer_file, texts, *rest = [word for word in sys.argv[1:] if word != "--yes"]
    home = rest[0] if rest else None
    config = AutoConfig.from_pretrained(config_file)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=tokenizer_file)  # type: ignore[no-untyped-call]
    arguments = TrainingArguments(
        "trained",
        max_steps=10**6,  # the callback stops the Trainer when the run is over
        per_device_train_batch_size=BATCH,
        learning_rate=4e-3,
        lr_scheduler_type="constant",  # the run's schedule replaces it
        logging_steps=20,
        save_strategy="no",  # the daemon keeps checkpoints
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    options = peer.JoinOptions(agreed="--yes" in sys.argv)
    with PeerCallback(ticket, run_schedule=True, home=home, options=options) as callback:
        trainer = Trainer(
            AutoModelForCausalLM.from_config(config),  # type: ignore[no-untyped-call]
            arguments,
            train_dataset=Windows(Path(texts), tokenizer, config.n_positions),
            data_collator=default_data_collator,
            callbacks=[callback],
        )
        trainer.train()
        assert callback.swarm is not None
        print(f"the run is over; the hold-out's loss is {callback.swarm.evaluate():.6f}", flush=True)
    trainer.save_model("trained")


if __name__ == "__main__":
    main()
