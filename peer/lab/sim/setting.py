"""A simulated swarm's setting: the run that it plays, and the world it plays it in."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

import torch

from peer.lab.sim.fake_trainer import FakeTrainer
from peer.lab.sim.links import PROFILES, Link
from peer.lab.sim.nat import Nat
from peer.lab.sim.trainer import VirtualTrainer
from peer.lab.sim.virtual_clock import VirtualClock
from peer.methods.method import Method
from peer.protocol.messages import PeerId
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.policy.upload_quota import UploadLimits
from peer.protocol.schedule import RoundClock
from peer.protocol.swarm.buckets import SPLIT

LAYOUT = Layout.whole([TensorSpec("w", (16,))])
"""A model of one tensor."""
LOOK = SPLIT
"""Records in a look at the directory."""

MakeTrainer = Callable[[int, Layout, VirtualClock], VirtualTrainer]
"""Makes a machine's trainer from its number, the layout and a clock."""


def layout_of(method: Method, elements: int = 16) -> Layout:
    """Make a model of no meaning: a tensor of so many elements for each fragment of the method."""
    tensors = tuple(TensorSpec(f"w{number}", (elements,)) for number in range(method.fragments))
    return Layout(tensors, tuple((number, number + 1) for number in range(method.fragments)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmSetting:
    """The run, as a manifest would say it."""

    method: Method
    rounds: RoundClock
    total_rounds: int
    seed: int
    layout: Layout | None = None
    """None: a small one that fits the method."""
    eval_every: int = 10
    """Rounds between two evaluations."""
    first: torch.Tensor | None = None
    """outer_params that all begin with (flat fp32); None: zeros."""
    min_peers: int = 1
    """The first round waits until so many know of each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """Peers at several places. All transfers between two places share one line."""

    places: Mapping[int, int]
    """The place of each peer, by number."""
    between: float
    """Bytes per second of the line between two places, each way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedHomes:
    """The peers that nobody can dial, and the relays over which they are called all the same."""

    nats: Mapping[int, Nat]
    """Their routers, by number."""
    relay_cap: float
    """Bytes per second that each relay passes on. Every other peer relays."""
    nodes: int = 1
    """Nodes of the operator. They relay and never train."""
    node_link: Link = PROFILES["fibre"]
    sites: Sites | None = None

    @property
    def node_ids(self) -> tuple[PeerId, ...]:
        return tuple(PeerId(f"node-{number:03d}") for number in range(self.nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryViews:
    """What peers see in the directory."""

    missing: float = 0.0
    """Probability with which a peer misses each of the others, drawn every round's length."""
    look: int | None = LOOK
    """Of pairs, see `MemoryDirectoryHub`; groups see everybody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmWorld:
    """The machines and the net between them."""

    links: Mapping[int, Link] | Link | None = None
    """Of all peers, or by number; those that are not named have `lan`."""
    only_dial_out: Container[int] = ()
    """Numbers of the peers that nobody can open a connection to, and that have no relay."""
    closed: ClosedHomes | None = None
    views: DirectoryViews = field(default_factory=DirectoryViews)
    weight: float = 1.0
    """Bytes on the wire that a byte of the layout stands for."""
    stops: bool = True
    """Processes may be stopped. Each then beats every second to notice it, which costs most of a quiet swarm's time."""
    uploads: Mapping[int, UploadLimits] = field(default_factory=dict)
    """The volunteers' upload quotas, by number."""
    nodes: frozenset[PeerId] = frozenset()
    """The operator's nodes, whose word on the run's end is believed."""


def fake_trainers(seed: int, step_seconds: Mapping[int, float] | float) -> MakeTrainer:
    """Trainers that learn nothing, at these speeds: of all, or by number."""

    def make(number: int, layout: Layout, clock: VirtualClock) -> VirtualTrainer:
        seconds = step_seconds if isinstance(step_seconds, float) else step_seconds[number]
        return FakeTrainer(layout, clock, step_seconds=seconds, seed=seed * 1000 + number)

    return make


def peer_id_of(number: int) -> PeerId:
    """The id of a simulated peer."""
    return PeerId(f"sim-{number:03d}")


def number_of(peer: PeerId) -> int:
    """The number of a simulated peer, from its id."""
    return int(peer.rpartition("-")[2])
