"""Checks the packages that a run needs beyond the program itself, before torch is loaded, which takes seconds."""

from __future__ import annotations

from peer.errors import ModelError
from peer.installation import install_extras, missing_from
from peer.run.manifest import Manifest
from peer.run.sections import TransformersSection


def check_packages(manifest: Manifest) -> None:
    """Raise ModelError, with the command that installs all of them, when packages that this run needs are missing."""
    needed = dict[str, str]()
    if isinstance(manifest.model, TransformersSection):
        needed["transformers"] = "the model"
    if manifest.data.kind == "text" and manifest.tokenizer.kind == "file":
        needed["tokenizers"] = "the tokenizer"
    check_hf(needed)


def check_hf(needed: dict[str, str]) -> None:
    """Raise ModelError when packages of the extra `hf` are missing. `needed`: package name -> what needs it."""
    missing = [wanted for wanted in missing_from("hf") if wanted.partition(">")[0] in needed]
    if missing:
        names = " and ".join(f"{needed[name]} needs {name}" for one in missing if (name := one.partition(">")[0]))
        raise ModelError(f"{names}, which {'is' if len(missing) == 1 else 'are'} not installed", install_extras("hf"))
