"""Signed manifests. A manifest is a TOML file: the hash of its exact bytes is the run id, and the operator's key signs
those bytes. The signature is a line of base64 in the same folder (`run.toml.sig`)."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path

from peer.errors import HomeUnusable, ManifestError, file_advice, for_shell
from peer.identity import Identity, public_key_of, verify
from peer.protocol.messages import RunId
from peer.run.home import write_whole
from peer.run.schema import MAX_BYTES, Manifest, overridden, parse_manifest
from peer.whole_files import replace_file

__all__ = [
    "MAX_BYTES",
    "Manifest",
    "SignedManifest",
    "default_text",
    "derive",
    "ensure_new",
    "load_signed",
    "parse_manifest",
    "read_raw",
    "read_text",
    "sign_file",
    "sign_text",
    "signature_path",
    "write_new",
]

DOMAIN = b"peer manifest v1"


@dataclass(frozen=True)
class SignedManifest:
    """The exact bytes of a manifest, and the operator's signature over them. Only `verify` checks the signature."""

    raw: bytes
    signature: bytes

    @cached_property
    def run_id(self) -> RunId:
        return RunId(hashlib.sha256(self.raw).digest())

    @cached_property
    def manifest(self) -> Manifest:
        """The parsed manifest. Raises ManifestError."""
        return parse_manifest(self.raw)

    def verify(self, file: str = "FILE") -> None:
        """Check that the operator whom the manifest names signed these bytes. `file`: name of the file in errors.
        Raises ManifestError."""
        operator = self.manifest.operator
        if not operator:
            fix = (
                "If you are the operator, write your peer id into it (peer id show), then: "
                f"peer manifest sign {for_shell(file)}"
            )
            raise ManifestError(f"the manifest {file} names no operator, so nobody can have signed it", fix)
        if not verify(public_key_of(operator), DOMAIN, self.raw, self.signature):
            if verify(public_key_of(operator), DOMAIN, self.raw.replace(b"\r\n", b"\n"), self.signature):
                raise ManifestError(
                    f"the line ends of {file} were changed to those of Windows after it was signed: git does that with "
                    "core.autocrlf, and so do editors",
                    f"Change them back: sed -i 's/\\r$//' {for_shell(file)}",
                )
            raise ManifestError(
                f"the signature of {file} does not fit its operator {operator}: "
                "the manifest or the signature was changed after it was signed",
                sign_again_fix(file),
            )


def sign_again_fix(manifest: Path | str) -> str:
    """Return the fix for a missing or wrong signature. The command comes last so that it can be pasted."""
    return (
        "If you are not the operator, get both files again from the operator. "
        f"If you are: peer manifest sign {for_shell(manifest)}"
    )


def signature_path(manifest: Path) -> Path:
    return manifest.with_name(manifest.name + ".sig")


def read_text(path: Path) -> str:
    """Read the text of a manifest file. Raises ManifestError when it cannot be read."""
    return read_raw(path).decode("utf-8-sig", errors="replace")


def read_raw(path: Path) -> bytes:
    """Read the bytes of a manifest file, at most `MAX_BYTES` + 1, so that the parser can refuse a longer one. Raises
    ManifestError when the file cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        fix = f"Name an existing file, or make one with: peer manifest new {for_shell(path)}"
        raise ManifestError(f"cannot read {path}: {error.strerror}", fix) from error


def load_signed(path: Path) -> SignedManifest:
    """Read a manifest and its signature file, and verify both. Raises ManifestError."""
    raw = read_raw(path)
    parse_manifest(raw, str(path))  # errors in the manifest are reported before a missing signature
    try:
        with signature_path(path).open("rb") as file:
            signature = base64.b64decode(file.read(1000).strip(), validate=True)
    except FileNotFoundError as error:
        raise ManifestError(
            f"{path} is not signed: there is no {signature_path(path)}",
            sign_again_fix(path),
        ) from error
    except (OSError, ValueError) as error:
        raise ManifestError(
            f"cannot read the signature {signature_path(path)}: {getattr(error, 'strerror', None) or error}",
            sign_again_fix(path),
        ) from error
    signed = SignedManifest(raw, signature)
    signed.verify(str(path))
    return signed


def store_signed(path: Path, signed: SignedManifest) -> None:
    """Write a fetched manifest and its signature into a home, both or neither. Raises HomeUnusable."""
    write_whole(path, signed.raw)
    try:
        write_whole(signature_path(path), base64.b64encode(signed.signature) + b"\n")
    except HomeUnusable:
        path.unlink(missing_ok=True)
        raise


def sign_file(path: Path, operator: Identity) -> SignedManifest:
    """Sign the present bytes of a manifest file, and write its signature file. Raises ManifestError when the manifest
    is invalid or names another operator."""
    raw = read_raw(path)
    named = parse_manifest(raw, str(path)).operator
    if not named:
        advice = f'Write operator = "{operator.peer_id}" into it: {describe_key(operator)}.'
        raise ManifestError(f"the manifest {path} names no operator", advice)
    if named != operator.peer_id:
        raise other_operator_error(path, named, operator)
    signed = SignedManifest(raw, operator.sign(DOMAIN, raw))
    _write(signature_path(path), base64.b64encode(signed.signature) + b"\n")
    return signed


def other_operator_error(manifest: Path, named: str, key: Identity, advice: str = "") -> ManifestError:
    """Return the error of a command whose key is not that of the operator in the manifest.

    The advice is never to write this key into the manifest: the usual cause is a wrong path, and another operator makes
    another run. `advice`: replaces the usual advice."""
    return ManifestError(
        f"{manifest} names {named} as operator, and {describe_key(key)}",
        advice or "Name the operator's key file with --identity-path, or the home that has it with --home.",
    )


def describe_key(key: Identity) -> str:
    """Return the peer id of a key, and its file, as part of a sentence."""
    return f"the key in {key.file} is {key.peer_id}" if key.file else f"the key is {key.peer_id}"


def sign_text(text: str, operator: Identity, path: Path) -> SignedManifest:
    """Write a manifest with this text and `operator` as its operator, and sign it. Raises ManifestError."""
    owned = derive(text, [f"operator={operator.peer_id}"])
    _write(path, owned.encode())
    return sign_file(path, operator)


def derive(text: str, settings: Iterable[str]) -> str:
    """Return the TOML text with each `key=value` set. The text is checked before the change, so that line numbers in
    errors are those of the file, and again after it.

    Raises UsageError for an unknown key, ManifestError with every finding."""
    settings = list(settings)
    parse_manifest(text.encode())
    derived = overridden(text, settings)
    parse_manifest(derived.encode(), settings=settings)
    return derived


def write_new(path: Path, operator: Identity, settings: Iterable[str] = (), text: str = "") -> SignedManifest:
    """Write and sign a new manifest: `text`, or the commented default if that is empty, with `settings` (`key=value`)
    applied.

    Raises ManifestError when the file exists or the result is invalid, UsageError for an unknown key. Nothing is
    written then."""
    text, settings = text or default_text(operator.peer_id), list(settings)
    if settings:
        text = derive(text, settings)
    ensure_new(path)
    try:
        path.open("xb").close()  # creates the file, so that a second writer fails
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        advice = file_advice(error, path, "choose another place")
        raise ManifestError(f"cannot write {path}: {error.strerror}", advice) from error
    try:
        _write(path, text.encode())
        return sign_file(path, operator)
    except ManifestError:
        path.unlink(missing_ok=True)  # created above, and not a valid manifest
        raise


def ensure_new(path: Path) -> None:
    """Raise ManifestError when the path exists. Called before anything else is made, such as a key."""
    if os.path.lexists(path):
        raise _exists(path)


def _exists(path: Path) -> ManifestError:
    return ManifestError(f"{path} exists", "Choose another name. Nothing was overwritten.")


def default_text(operator: str = "") -> str:
    """Return the commented default manifest, with this peer id as its operator."""
    return resources.files("peer.run").joinpath("default.toml").read_text().replace("{operator}", operator)


def _write(path: Path, data: bytes) -> None:
    """Write a file completely or not at all. Raises ManifestError."""
    try:
        replace_file(path, data, mode=0o666)
    except OSError as error:
        raise ManifestError(
            f"cannot write {path}: {error.strerror}", file_advice(error, path, "choose another place")
        ) from error
