"""Reachability: whether and where others can dial this peer. Other peers find out by dialling back, as in AutoNAT of
libp2p, because no peer can test it itself.

A prober may lie, and keys are free. So each network of probers has one vote, and one network alone never decides that
this peer is closed. The answer of the operator's node is believed, and so is a call that came in from outside. An
address counts only if this peer asked about it, or if enough networks name it. The module is pure."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from peer.protocol.endpoints import block_of, block_of_host, host_of, join_host, version_of, voice_of
from peer.protocol.messages import MAX_ENDPOINTS, PeerId, Probed
from peer.protocol.swarm.nearness import is_private

MAX_VOICES = 3
"""Maximum probers whose latest answers count, for each IP version."""
NETWORKS = 2
"""Networks that have to agree."""
VERDICT_LASTS_S = 2700.0
"""Seconds after which an answer no longer counts."""
SETTLED_EVERY_S = 600.0
"""Seconds between probes while the result is clear."""
UNSETTLED_EVERY_S = 15.0
UNHEARD_EVERY_S = 2.0
"""Seconds between probes while no peer has answered. Until then this peer announces that it can be dialled. If it
cannot, a peer that relies on the announcement may lose a round."""


@dataclass(frozen=True, slots=True)
class Question:
    """A probe that was requested."""

    prober: PeerId
    ours: tuple[str, ...]
    """Endpoints to dial."""
    at: float
    """Time in seconds."""
    trusted: bool = False
    """Whether the prober is a node of the operator."""
    only_network: bool = False
    """Whether no peer of another network is visible, so that no other network can be asked."""


@dataclass(frozen=True, slots=True)
class _Voice:
    """The latest answer of one prober."""

    question: Question
    probed: Probed

    @property
    def reached(self) -> bool:
        return bool(self.probed.answered)

    @property
    def network(self) -> str:
        return voice_of(self.probed.asked_at)

    @property
    def enough(self) -> bool:
        """Whether this answer suffices without agreement from another network."""
        return self.question.trusted or self.question.only_network


@dataclass(slots=True)
class Reachability:
    """The answers of probers, and the verdict that follows. The caller passes each answer to `on_probed`, and reads
    `reachable`, `why` and `endpoints`. Times in seconds of any one clock."""

    _voices: dict[tuple[PeerId, int], _Voice] = field(default_factory=dict)
    """By prober and IP version, because a dial over one version says nothing about the other."""
    _asked_at: float | None = None
    _called_at: float | None = None
    _caller: str = ""
    _verdict: bool | None = None
    """The verdict, computed when an answer arrives, because `reachable` is called more often."""

    def on_probed(self, question: Question, probed: Probed) -> None:
        """Process the answer of a peer that tried to dial this one. A declined probe is ignored."""
        if not probed.tried:
            return
        key = (question.prober, version_of(probed.asked_at))
        self._voices.pop(key, None)
        self._voices[key] = _Voice(question, probed)
        for other, voice in list(self._voices.items()):
            if question.at - voice.question.at > VERDICT_LASTS_S:
                del self._voices[other]
        for versions in self._by_version().values():
            if len(versions) > MAX_VOICES:
                del self._voices[_least_needed(versions)]
        self._judge(question.at)

    def called(self, hosts: Iterable[str], ours: Iterable[str], now: float) -> None:
        """Process the hosts that called us. A call from outside our own networks proves that others can dial us."""
        own = set(map(block_of, ours))
        outside = [host for host in hosts if _is_global(host) and block_of_host(host) not in own]
        if outside:
            self._called_at, self._caller = now, outside[-1]
            self._judge(now)

    def reachable(self) -> bool | None:
        """Return whether others can dial this peer. None: nobody has tried yet, or too few networks say that they
        cannot."""
        return self._verdict

    def reachable_over(self, version: int) -> bool | None:
        """Return whether others on the internet can dial this peer over this IP version. None: not known, as for
        `reachable`. Neighbours behind the same router do not count."""
        if self._called_at is not None and version_of(join_host(self._caller, 1)) == version:
            return True
        voices = [v for v in self._by_version().get(version, {}).values() if not is_private(host_of(v.probed.asked_at))]
        reached, enough = _count(voices)
        return reached if enough else any(voice.reached for voice in voices) or None

    def denied(self) -> frozenset[str]:
        """Return our endpoints that others dialled without getting an answer from us."""
        voices = self._voices.values()
        tried = {
            endpoint
            for voice in voices
            for endpoint in voice.question.ours
            if not voice.reached and version_of(endpoint) == version_of(voice.probed.asked_at)
        }
        return frozenset(tried).difference(*(voice.probed.answered for voice in voices))

    def endpoints(self) -> tuple[str, ...]:
        """Return the endpoints at which this peer was reached, latest first."""
        found = [(e, voice) for voice in reversed(self._voices.values()) for e in voice.probed.answered]
        return tuple(dict.fromkeys(e for e, voice in found if self._believed(e, voice)))[:MAX_ENDPOINTS]

    def why(self) -> str:
        """Return the reason for the verdict, as a sentence."""
        if self._called_at is not None:
            return f"a peer called this one from {self._caller}"
        if not self._voices:
            return f"nobody has tried to dial this peer {'yet' if self._verdict is None else 'at its new addresses'}"
        voices = list(self._voices.values())
        of = f"{sum(voice.reached for voice in voices)} of {len(voices)} peers that tried reached this one"
        if self._verdict:
            at = f", at {', '.join(found)}" if (found := self.endpoints()) else ""
            return f"{of}{at}"
        if self._verdict is None:
            return f"{of}; all who did not are of one network, and others are asked"
        likely = "most likely a router or firewall lets nothing in"
        return f"{of} ({voices[-1].probed.reason}): {likely}. This peer can still dial other peers"

    def has_verdict_of(self, peer: PeerId, version: int) -> bool:
        """Return whether an answer of this peer over this IP version counts now. Other peers are asked first."""
        return (peer, version) in self._voices

    def has_verdict_of_network(self, network: str) -> bool:
        """Return whether an answer of a peer of this network counts now."""
        return any(voice.network == network for voice in self._voices.values())

    def due(self, now: float) -> bool:
        """Return whether to request another probe now: often until enough answers agree, then seldom."""
        if self._asked_at is None:
            return True
        every_s = SETTLED_EVERY_S if self.settled() else UNSETTLED_EVERY_S
        return now - self._asked_at >= (every_s if self._voices else UNHEARD_EVERY_S)

    def at_once(self) -> int:
        """Return how many peers to ask at the same time: several while none has answered, because an address that
        cannot be dialled takes long to fail."""
        return 1 if self._voices else MAX_VOICES

    def settled(self) -> bool:
        """Return whether there are enough answers, and all agree."""
        if self._verdict is None:
            return False
        agree = [len({voice.reached for voice in voices.values()}) == 1 for voices in self._by_version().values()]
        return bool(agree) and all(agree) and all(len(v) >= MAX_VOICES for v in self._by_version().values())

    def asked(self, now: float) -> None:
        """Record that a probe was requested."""
        self._asked_at = now

    def forget(self) -> None:
        """Remove all answers after a change of our own addresses."""
        self._voices.clear()
        self._asked_at = self._called_at = self._verdict = None

    def grow(self) -> None:
        """Remove the answers that a further address of our own may change: those that did not reach us. The verdict
        remains until others have tried."""
        self._voices = {key: voice for key, voice in self._voices.items() if voice.reached}
        self._asked_at = None

    def _judge(self, now: float) -> None:
        """Compute the verdict. If too few networks say that they cannot dial us, the previous verdict remains."""
        if self._called_at is not None and now - self._called_at > VERDICT_LASTS_S:
            self._called_at = None
        found = [_count(list(voices.values())) for voices in self._by_version().values()]
        if self._called_at is not None or (True, True) in found:
            self._verdict = True
        elif (False, True) in found:
            self._verdict = False
        elif any(reached for reached, _ in found):
            self._verdict = True

    def _by_version(self) -> dict[int, dict[tuple[PeerId, int], _Voice]]:
        found: dict[int, dict[tuple[PeerId, int], _Voice]] = defaultdict(dict)
        for key, voice in self._voices.items():
            found[key[1]][key] = voice
        return found

    def _believed(self, endpoint: str, voice: _Voice) -> bool:
        """Return whether an endpoint that a prober names may be ours."""
        if endpoint in voice.question.ours:
            return True
        if not version_of(endpoint):
            return False
        near = voice.question.only_network and block_of(endpoint) == voice.network
        named = {other.network for other in self._voices.values() if endpoint in other.probed.answered}
        return voice.question.trusted or near or len(named) >= NETWORKS


def _count(voices: list[_Voice]) -> tuple[bool, bool]:
    """Return what most networks say (reached or not), and whether these are enough."""
    networks: dict[str, list[bool]] = defaultdict(list)
    for voice in voices:
        networks[voice.network].append(voice.reached)
    words = {network: 2 * sum(words) >= len(words) for network, words in networks.items()}
    reached = 2 * sum(words.values()) >= len(words)
    agreeing = sum(word == reached for word in words.values())
    enough = agreeing >= NETWORKS or any(voice.enough and voice.reached == reached for voice in voices)
    return reached, enough


def _least_needed(voices: dict[tuple[PeerId, int], _Voice]) -> tuple[PeerId, int]:
    """Return the oldest answer from the network with most answers. That of the operator's node is kept if another can
    be removed."""
    counts: dict[str, int] = defaultdict(int)
    for voice in voices.values():
        counts[voice.network] += 1
    return max(voices, key=lambda key: (not voices[key].question.trusted, counts[voices[key].network]))


def _is_global(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return False
