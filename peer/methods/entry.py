"""`MethodEntry` and `Preset`: what the file of a method contributes to the registry."""

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
    """A named method, which a manifest can choose with `preset`."""

    name: str
    method: Method
    purpose: str
    """Machines and runs that the preset is meant for, for the docs."""
    since: int = 1
    """First format of manifests that has the preset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodEntry:
    """The contribution of one file: an outer rule, presets, or both, with their checks.

    The functions are called for every method, not only for the entry's presets, because a manifest can make the same
    choices without a preset."""

    presets: tuple[Preset, ...] = ()
    rule: OuterRule | None = None
    refusals: Callable[[Method], Iterable[Refusal]] = _nothing
    """Returns the reasons for which a method is refused."""
    cautions: Callable[[Method, int], Iterable[Caution]] = _nothing
    """Returns warnings for a method, given the number of exchanges of each fragment in the run."""
    follows: Callable[[Method], dict[str, Any]] = _none
    """Returns defaults that depend on the other choices, for keys that the manifest leaves out."""
