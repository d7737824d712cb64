"""The setting of a simulated swarm: the run that it plays (`SwarmSetting`), and the machines and net that it runs on
(`SwarmWorld`)."""

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
"""A small layout with one tensor, as one fragment."""
LOOK = SPLIT
"""Default number of live records above which a bucket of the directory splits."""

MakeTrainer = Callable[[int, Layout, VirtualClock], VirtualTrainer]
"""Makes the trainer of a machine, from its number, the layout and its clock."""


def layout_of(method: Method, elements: int = 16) -> Layout:
    """Make a layout without a model: one tensor of `elements` elements for each fragment of the method."""
    tensors = tuple(TensorSpec(f"w{number}", (elements,)) for number in range(method.fragments))
    return Layout(tensors, tuple((number, number + 1) for number in range(method.fragments)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmSetting:
    """The run: what a manifest would define."""

    method: Method
    rounds: RoundClock
    total_rounds: int
    seed: int
    layout: Layout | None = None
    """None: a small layout with the method's number of fragments."""
    eval_every: int = 10
    """Rounds between two evaluations."""
    first: torch.Tensor | None = None
    """First outer_params of all peers, flat fp32. None: zeros."""
    min_peers: int = 1
    """The first round begins when this many peers know each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """Peers at several sites. All transfers between two sites share one line."""

    places: Mapping[int, int]
    """Site of each peer, by the peer's number. Peers that are not named are at site 0."""
    between: float
    """Bytes per second of the line between two sites, in each direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedHomes:
    """The peers that cannot be dialled, and the relays over which they are called."""

    nats: Mapping[int, Nat]
    """The closed peers' routers, by the peer's number."""
    relay_cap: float
    """Cap of each relay in bytes per second. Every peer that is not closed relays."""
    nodes: int = 1
    """Number of operator's nodes. They relay, and never train."""
    node_link: Link = PROFILES["fibre"]
    sites: Sites | None = None

    @property
    def node_ids(self) -> tuple[PeerId, ...]:
        return tuple(PeerId(f"node-{number:03d}") for number in range(self.nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryViews:
    """How complete the peers' views of the directory are."""

    missing: float = 0.0
    """Probability with which a peer does not see another peer. Drawn again after each round's length."""
    look: int | None = LOOK
    """Live records above which a bucket splits, in pairs (see `MemoryDirectoryHub`). Groups always see all peers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmWorld:
    """The machines and the net between them."""

    links: Mapping[int, Link] | Link | None = None
    """The link of all peers, or links by peer number. Peers that are not named have the profile `lan`."""
    only_dial_out: Container[int] = ()
    """Numbers of the peers that cannot be dialled and have no relay."""
    closed: ClosedHomes | None = None
    views: DirectoryViews = field(default_factory=DirectoryViews)
    weight: float = 1.0
    """Bytes on the wire for each byte of a payload."""
    stops: bool = True
    """Whether faults may stop processes. Each process then wakes every second to notice it, which costs most of the
    time of a quiet simulation."""
    uploads: Mapping[int, UploadLimits] = field(default_factory=dict)
    """The volunteers' upload quotas, by peer number. Peers that are not named have none."""
    nodes: frozenset[PeerId] = frozenset()
    """The operator's nodes. Peers trust their reports about the end of the run."""


def fake_trainers(seed: int, step_seconds: Mapping[int, float] | float) -> MakeTrainer:
    """Make `FakeTrainer`s. `step_seconds`: duration of an inner step, of all peers or by peer number."""

    def make(number: int, layout: Layout, clock: VirtualClock) -> VirtualTrainer:
        seconds = step_seconds if isinstance(step_seconds, float) else step_seconds[number]
        return FakeTrainer(layout, clock, step_seconds=seconds, seed=seed * 1000 + number)

    return make


def peer_id_of(number: int) -> PeerId:
    """Return the id of a simulated peer."""
    return PeerId(f"sim-{number:03d}")


def number_of(peer: PeerId) -> int:
    """Return the number of a simulated peer, or of a node, from its id."""
    return int(peer.rpartition("-")[2])
