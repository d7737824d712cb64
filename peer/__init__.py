"""Train one model together over the ordinary internet.

The names in `__all__` are the public interface. All other modules are internal and change without notice. A name is
imported on first use, so that the command line starts quickly."""

from __future__ import annotations

__version__ = "0.2.0"

TYPE_CHECKING = False  # typing must not be imported before the command line has left the working folder
if TYPE_CHECKING:
    from typing import Any

    from peer import errors
    from peer.attached.found import FoundedRun, found
    from peer.attached.swarm import JoinOptions, Swarm, check, join
    from peer.errors import PeerError
    from peer.lab.from_python import LabReport, compare, simulate, swarm
    from peer.observe import events
    from peer.run.manifest import Manifest
    from peer.run.ticket import Ticket

_PLACES = {
    "FoundedRun": "peer.attached.found",
    "JoinOptions": "peer.attached.swarm",
    "LabReport": "peer.lab.from_python",
    "Manifest": "peer.run.manifest",
    "PeerError": "peer.errors",
    "Swarm": "peer.attached.swarm",
    "Ticket": "peer.run.ticket",
    "check": "peer.attached.swarm",
    "compare": "peer.lab.from_python",
    "errors": "peer.errors",
    "events": "peer.observe.events",
    "found": "peer.attached.found",
    "join": "peer.attached.swarm",
    "simulate": "peer.lab.from_python",
    "swarm": "peer.lab.from_python",
}
"""Public name -> the module that defines it."""

__all__ = [
    "FoundedRun",
    "JoinOptions",
    "LabReport",
    "Manifest",
    "PeerError",
    "Swarm",
    "Ticket",
    "check",
    "compare",
    "errors",
    "events",
    "found",
    "join",
    "simulate",
    "swarm",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use. Raises AttributeError for another name."""
    import importlib

    if name not in _PLACES:
        raise AttributeError(f"module 'peer' has no attribute {name!r}")
    module = importlib.import_module(_PLACES[name])
    return module if name in ("errors", "events") else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
