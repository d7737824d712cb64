"""Warns of a model vocabulary that is larger than its tokenizer's."""

from __future__ import annotations

from peer.run.sections import LlamaSection, ModelSection, TokenizerSection

PADDED = 1.01
"""Factor by which a vocabulary may exceed the tokenizer's: models pad it so that it divides well."""


def unused_vocabulary(model: ModelSection, tokenizer: TokenizerSection) -> str:
    """Return the warning about vocabulary that the tokenizer never produces, for a person. Empty: there is hardly any,
    or the model is foreign, whose vocabulary its authors chose."""
    if not isinstance(model, LlamaSection) or model.vocab_size <= PADDED * tokenizer.vocab_size:
        return ""
    rows = model.vocab_size - tokenizer.vocab_size
    share = rows * model.hidden_size / model.parameters
    made = "bytes are" if tokenizer.kind == "bytes" else "the tokenizer has"
    return (
        f"{made} {tokenizer.vocab_size:,} tokens, and this is {model.vocab_size:,}. The other {rows:,} are never met, "
        f"and their {rows * model.hidden_size:,} parameters are {share:.0%} of all that is computed and sent"
    )
