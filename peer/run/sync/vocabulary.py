"""A vocabulary of the model that its tokenizer cannot use."""

from __future__ import annotations

from peer.run.sections import LlamaSection, ModelSection, TokenizerSection

PADDED = 1.01
"""Models pad their vocabulary a little, so that it divides well."""


def unused_vocabulary(model: ModelSection, tokenizer: TokenizerSection) -> str:
    """Return what of the model's vocabulary the tokenizer never gives, for a person; empty: hardly anything.

    A foreign model has the vocabulary that its makers chose, and nothing is said of it."""
    if not isinstance(model, LlamaSection) or model.vocab_size <= PADDED * tokenizer.vocab_size:
        return ""
    rows = model.vocab_size - tokenizer.vocab_size
    share = rows * model.hidden_size / model.parameters
    made = "bytes are" if tokenizer.kind == "bytes" else "the tokenizer has"
    return (
        f"{made} {tokenizer.vocab_size:,} tokens, and this is {model.vocab_size:,}. The other {rows:,} are never met, "
        f"and their {rows * model.hidden_size:,} parameters are {share:.0%} of all that is computed and sent"
    )
