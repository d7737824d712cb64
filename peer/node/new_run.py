"""Creates a new run for its operator: a manifest, and beside it a folder with the files that it names by digest."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from pydantic import ValidationError

from peer.errors import DataError, ManifestError, ModelError, file_advice, for_shell
from peer.identity import Identity
from peer.protocol.model.layout import TensorSpec
from peer.run.files.artifact import ArtifactRef
from peer.run.files.artifact_folder import folder_of
from peer.run.files.layout_file import format_layout
from peer.run.files.token_index import INDEX_FILE, MAX_INDEX_BYTES, TOKENIZER_FILE, read_index
from peer.run.manifest import SignedManifest, default_text, write_new
from peer.run.overrides import apply_overrides, with_sections
from peer.run.schema import CUSTOM_FORMAT, Manifest, check_layout, overridden, parse_manifest
from peer.run.sections import LimitsSection, TrainSection
from peer.trainer.sandbox import Inspected, buffers_beside, inspect_config, inspect_tokenizer, write_weights
from peer.trainer.weight_files import check_folder, named

CONFIG_FILE = "config.json"


@dataclass(slots=True)
class RunDraft:
    """A manifest in preparation: its sections, and the folder with its files."""

    folder: Path
    say: Callable[[str], None]
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    format: int = 2
    """Lowest format that supports these sections."""

    def need_format(self, lowest: int) -> None:
        """Raise the format to at least this one."""
        self.format = max(self.format, lowest)

    def copy_in(self, file: Path) -> dict[str, Any]:
        """Copy a file into the folder, and return the reference for the manifest. Raises DataError."""
        draft = self.folder / "draft"
        try:
            shutil.copyfile(file, draft)
        except OSError as error:
            raise DataError(f"cannot copy {file}: {error.strerror}", "Name a file that can be read.") from error
        return self.name_by_digest(draft)

    def write(self, raw: bytes) -> dict[str, Any]:
        """Write bytes as a file of the folder, and return the reference for the manifest."""
        draft = self.folder / "draft"
        draft.write_bytes(raw)
        return self.name_by_digest(draft)

    def name_by_digest(self, draft: Path) -> dict[str, Any]:
        """Rename a file of the folder to its digest, and return the reference for the manifest."""
        digest, size = blake3().update_mmap(draft).hexdigest(), draft.stat().st_size
        draft.replace(self.folder / digest)
        return ArtifactRef(digest=digest, size=size).model_dump()

    def path(self, artifact: dict[str, Any]) -> Path:
        """Return the path of a referenced file."""
        return self.folder / str(artifact["digest"])


def make_run(
    path: Path,
    operator: Identity,
    settings: Iterable[str],
    say: Callable[[str], None],
    *,
    model: Path | None = None,
    tokenizer: Path | None = None,
    data: Path | None = None,
) -> SignedManifest:
    """Write a manifest, its signature, and the folder of its files. Nothing of these remains after an error.

    `model`: a config.json, or a folder with it and safetensors. `data`: a folder that `peer data build` wrote. Raises
    ManifestError, ModelError, DataError and UsageError."""
    settings = list(settings)
    with _draft_beside(path, say) as draft:
        _add_tokens(draft, tokenizer, data)
        if model is None and "tokenizer" in draft.sections:  # the built-in model gets the tokenizer's vocabulary
            settings = [f"model.vocab_size={draft.sections['tokenizer']['vocab_size']}", *settings]
        text, told = overridden(_with(draft, operator), settings), None
        if model is not None:
            told = _add_model(draft, model, text)
            text = overridden(_with(draft, operator), settings)
        manifest = parse_manifest(text.encode())
        if model is not None and told is not None:
            _check_model(manifest, told)
            if model.is_dir():
                init = _add_weights(draft, manifest, model, told)
                text = apply_overrides(overridden(_with(draft, operator), settings), [f"init={init}"])
                parse_manifest(text.encode())
        return _write(draft, path, operator, text)


def make_custom_run(
    path: Path,
    operator: Identity,
    settings: Iterable[str],
    say: Callable[[str], None],
    *,
    tensors: Sequence[TensorSpec],
    weights: Iterable[np.ndarray],
    title: str = "",
) -> SignedManifest:
    """Write the manifest of a custom model (whose code only its users have), its signature, and the folder of its
    files. Nothing of these remains after an error.

    `weights`: the first values of each tensor, fp32, in the order of `tensors`. `settings`: `key=value` that override
    the template. Raises ManifestError and UsageError."""
    with _draft_beside(path, say) as draft:
        out = draft.folder / "weights"
        try:
            with out.open("wb") as file:
                for values in weights:
                    values.astype("<f4", copy=False).tofile(file)
        except OSError as error:
            raise _unwritable(path, error) from error
        draft.sections["model"] = {
            "kind": "custom",
            "parameters": sum(tensor.elements for tensor in tensors),
            "layout": draft.write(format_layout(tensors)),
            **({"title": title} if title else {}),
        }
        draft.sections["data"] = {"kind": "own"}
        draft.sections["admission"] = {"kind": "invited"}
        draft.need_format(CUSTOM_FORMAT)
        init = str(draft.name_by_digest(out)["digest"])
        text = overridden(_with(draft, operator), [f"init={init}", *settings])
        check_layout(parse_manifest(text.encode()), tensors)
        return _write(draft, path, operator, text)


@contextlib.contextmanager
def _draft_beside(path: Path, say: Callable[[str], None]) -> Iterator[RunDraft]:
    """Yield a draft whose folder lies beside the future manifest. Raises ManifestError when a target exists."""
    for place in (path, folder_of(path)):
        if place.exists():
            raise ManifestError(f"{place} exists", "Choose another name. Nothing was overwritten.")
    try:
        scratch = tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=f".{path.name}.")
    except OSError as error:
        raise _unwritable(path, error) from error
    with scratch as folder:
        draft = RunDraft(Path(folder, "files"), say)
        draft.folder.mkdir()
        yield draft


def _unwritable(path: Path, error: OSError) -> ManifestError:
    advice = file_advice(error, path, "choose another place")
    return ManifestError(f"cannot write {path}: {error.strerror}", advice)


def _write(draft: RunDraft, path: Path, operator: Identity, text: str) -> SignedManifest:
    """Move the files of a draft beside the manifest, then write and sign the manifest."""
    target = folder_of(path)
    draft.folder.replace(target)
    try:
        return write_new(path, operator, text=text)
    except BaseException:
        shutil.rmtree(target)  # moved there above
        raise


def _with(draft: RunDraft, operator: Identity) -> str:
    """Return the default manifest with the draft's sections."""
    return with_sections(default_text(operator.peer_id), draft.sections, draft.format)


def _add_tokens(draft: RunDraft, tokenizer: Path | None, data: Path | None) -> None:
    """Add tokenizer and index, which must belong together."""
    index = None
    if data is not None:
        draft.say(f"reading {data / INDEX_FILE}")
        name = draft.copy_in(data / INDEX_FILE)
        if name["size"] > MAX_INDEX_BYTES:
            raise DataError(f"{data / INDEX_FILE} has more than {MAX_INDEX_BYTES:,} bytes")
        index = read_index(draft.path(name))
        draft.sections["data"] = {"kind": "tokens", "index": name}
        tokenizer = tokenizer or data / TOKENIZER_FILE
    if tokenizer is None:
        return
    draft.say(f"looking at {tokenizer}")
    told, file = inspect_tokenizer(tokenizer), draft.copy_in(tokenizer)
    if index is not None and file["digest"] != index.tokenizer:
        raise DataError(
            f"{tokenizer} is not the tokenizer that the shards in {data} were made with",
            f"Leave --tokenizer out, or build the data again, with --tokenizer {for_shell(tokenizer)}",
        )
    end = told.end_token if index is None else index.end_token
    size = told.vocab_size if index is None else index.vocab_size
    if end is None:
        raise ModelError(f"{tokenizer} has no token with a usual name for the end of a document", "Give --data too.")
    draft.sections["tokenizer"] = {"kind": "file", "vocab_size": size, "end_token": end, "file": file}


def _add_model(draft: RunDraft, model: Path, text: str) -> Inspected:
    """Add the model's config and the layout made from it. `text`: the manifest without the model, for its limit and
    context."""
    config = model / CONFIG_FILE if model.is_dir() else model
    if model.is_dir():
        check_folder(model)
    table = tomllib.loads(text)
    try:
        limits = LimitsSection.model_validate(table.get("limits", {}))
        train = TrainSection.model_validate(table.get("train", {}))
    except ValidationError:
        parse_manifest(text.encode())  # raises an error that names the keys
        raise
    draft.say(f"looking at {config}")
    found = inspect_config(config, limits.max_parameters, context=train.context)
    draft.sections["model"] = {
        "kind": "transformers",
        "parameters": found.parameters,
        "config": draft.copy_in(config),
        "layout": draft.write(format_layout(found.tensors)),
    }
    return found


def _check_model(manifest: Manifest, told: Inspected) -> None:
    """Check the manifest against the facts found in the model itself."""
    check_layout(manifest, told.tensors)
    if manifest.tokenizer.vocab_size > told.vocab:
        raise ModelError(
            f"the tokenizer has {manifest.tokenizer.vocab_size:,} tokens, the model {told.vocab:,}",
            f"Raise vocab_size in the model's config to {manifest.tokenizer.vocab_size} at least.",
        )
    if told.max_positions is not None and manifest.train.context > told.max_positions:
        raise ModelError(
            f"train.context is {manifest.train.context}, the model's longest is {told.max_positions}",
            f"Give --set context={told.max_positions} at most.",
        )
    if manifest.data.document_mask and not told.attention:
        raise ModelError(
            "data.document_mask needs a model that takes a mask and positions, which this one does not",
            "Leave document_mask out.",
        )


def _add_weights(draft: RunDraft, manifest: Manifest, model: Path, told: Inspected) -> str:
    """Add the weights of a pretrained folder, their types, and the buffers that the config does not determine. Return
    the digest of the weights."""
    draft.say(f"reading the weights in {model}")
    out, section = draft.folder / "weights", draft.sections["model"]
    weights = write_weights(model / CONFIG_FILE, manifest.seed, told.tensors, out, model)
    tensors = [replace(tensor, dtype=weights.types[tensor.name]) for tensor in told.tensors]
    draft.path(section["layout"]).unlink()
    section["layout"] = draft.write(format_layout(tensors))
    if weights.buffers or any(tensor.dtype != "float32" for tensor in tensors):
        draft.need_format(5)  # programs of an older format cannot read such a layout
    if weights.buffers:
        section["buffers"] = draft.name_by_digest(buffers_beside(out))
        draft.say(f"buffers that the config does not give, taken along untrained: {named(weights.buffers)}")
    return str(draft.name_by_digest(out)["digest"])
