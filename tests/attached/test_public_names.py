"""The public names of `import peer`, which are loaded only when they are used."""

from __future__ import annotations

import inspect

import peer

MODULES = ("errors", "events")


def test_the_public_names() -> None:
    assert peer.__all__ == [
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
    assert all(name[0].isupper() or callable(getattr(peer, name)) for name in peer.__all__ if name not in MODULES)
    assert all(inspect.ismodule(getattr(peer, name)) for name in MODULES)
    assert set(peer.__all__) <= set(dir(peer))


def test_options_become_those_of_the_command() -> None:
    options = peer.JoinOptions(agreed=True, lan=False, initial_peers=("/ip4/192.0.2.1/tcp/1",), wait=3.0)
    assert options.arguments() == ["--no-lan", "--initial-peers", "/ip4/192.0.2.1/tcp/1", "--wait", "3.0", "--yes"]
