"""What one file of this package adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from peer.methods.method import Caution, Method, Refusal
from peer.methods.rule import OuterRule


def _nothing(*_: Any) -> tuple[()]:
    return ()


def _none(_: Method) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A method with a name in manifests."""

    name: str
    method: Method
    purpose: str
    """Whom it is for, in the docs."""
    since: int = 1
    """The format of manifests that knows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodEntry:
    """A rule, presets, or both. The functions are asked about every method, whatever its preset: a manifest may make
    the same choices by hand."""

    presets: tuple[Preset, ...] = ()
    rule: OuterRule | None = None
    refusals: Callable[[Method], Iterable[Refusal]] = _nothing
    """What speaks against a method."""
    cautions: Callable[[Method, int], Iterable[Caution]] = _nothing
    """What a person should know before a run of so many exchanges of each fragment."""
    follows: Callable[[Method], dict[str, Any]] = _none
    """The choices that follow from those made, where the manifest says nothing of them."""
