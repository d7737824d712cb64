"""Encodes and decodes the state.json of a checkpoint: its body, and a digest that shows damage."""

from __future__ import annotations

import json
from typing import Any

from peer.state.files import blake3_hex, is_plain_name

FORMAT = 1
OUTER = "outer.safetensors"
MAX_FILES = 1000


class SkippedCheckpoint(Exception):
    """The folder is not a usable checkpoint of this run. The message is the reason."""


def canonical(state: Any) -> bytes:
    """Return the canonical encoding of a body, from which its digest is computed."""
    return json.dumps(state, sort_keys=True, separators=(",", ":")).encode()


def seal(state: dict[str, Any]) -> bytes:
    """Return the bytes of a state.json with this body and its digest."""
    return json.dumps({"state": state, "blake3": blake3_hex(canonical(state))}, indent=1).encode() + b"\n"


def unseal(raw: bytes) -> dict[str, Any]:
    """Return the body of a state.json. Raises SkippedCheckpoint when it is damaged, incomplete or of a newer format."""
    try:
        outer = json.loads(raw)
        state, seal = outer["state"], outer["blake3"]
        newer = state["format"] > FORMAT
        digest = blake3_hex(canonical(state))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise SkippedCheckpoint("state.json is torn or damaged") from error
    if newer:
        raise SkippedCheckpoint(f"written in format {str(state['format'])[:20]} by a newer version of this program")
    if digest != seal:
        raise SkippedCheckpoint("state.json is damaged: its digest does not match")
    if not _is_state(state):
        raise SkippedCheckpoint("state.json is not what this program writes")
    whole: dict[str, Any] = state
    return whole


def _is_state(state: dict[str, Any]) -> bool:
    """Return whether the body has all needed fields. Another program could have written a valid digest without them."""
    files, kinds = state.get("files"), {"run_id": str, "layout_digest": str, "facts": dict}
    return (
        all(isinstance(state.get(name), kind) for name, kind in kinds.items())
        and isinstance(files, dict)
        and OUTER in files
        and len(files) <= MAX_FILES
        and all(is_plain_name(name) and _is_entry(entry) for name, entry in files.items())
    )


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("bytes"), int) and isinstance(entry.get("blake3"), str)
