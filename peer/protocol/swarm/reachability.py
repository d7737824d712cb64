"""Reachability: whether others can dial this peer, and where. Other peers decide it by dialling back, as AutoNAT does
in libp2p. No peer can see it for itself. A single prober may lie or sit in the same network. So the majority of the
last answers of up to `MAX_VOICES` different peers decides. An address counts only when some peer reached this one
there."""

from __future__ import annotations

from dataclasses import dataclass, field

from peer.protocol.messages import MAX_ENDPOINTS, PeerId, Probed

MAX_VOICES = 3
"""Most probers whose last answers count."""
WORD_LASTS_S = 900.0
"""A verdict older than this no longer counts."""
SETTLED_EVERY_S = 300.0
"""Seconds between questions while the majority is clear."""
UNSETTLED_EVERY_S = 15.0
UNHEARD_EVERY_S = 2.0
"""Seconds between questions while no peer has answered. Until then this peer says that it can be dialled, and a peer
that believes it may lose a round."""


@dataclass(frozen=True, slots=True)
class _Voice:
    at: float
    probed: Probed


@dataclass(slots=True)
class Reachability:
    """The answers of probers. Feed it `Probed`s, read `reachable`, `why` and `endpoints`. Times in seconds of one
    clock."""

    _voices: dict[PeerId, _Voice] = field(default_factory=dict)
    _asked_at: float | None = None
    _verdict: bool | None = None
    """The majority of the answers. `reachable` is read more often than answers arrive, so it is kept."""

    def heard(self, prober: PeerId, probed: Probed, now: float) -> None:
        """Take the answer of a peer that tried to dial this one. A declined probe says nothing."""
        if not probed.tried:
            return
        self._voices.pop(prober, None)
        self._voices[prober] = _Voice(now, probed)
        for peer, voice in list(self._voices.items()):
            if now - voice.at > WORD_LASTS_S or len(self._voices) > MAX_VOICES:
                del self._voices[peer]
        yes = sum(bool(voice.probed.answered) for voice in self._voices.values())
        self._verdict = 2 * yes >= len(self._voices)

    def reachable(self) -> bool | None:
        """Whether others can dial this peer. None: nobody has tried yet."""
        return self._verdict

    def endpoints(self) -> tuple[str, ...]:
        """Return the addresses at which this peer was reached, the latest first."""
        found = [e for voice in reversed(self._voices.values()) for e in voice.probed.answered]
        return tuple(dict.fromkeys(found))[:MAX_ENDPOINTS]

    def why(self) -> str:
        """Return the reason as a sentence."""
        reached = self.reachable()
        if reached is None:
            return "nobody has tried to dial this peer yet"
        yes = [voice for voice in self._voices.values() if voice.probed.answered]
        of = f"{len(yes)} of {len(self._voices)} peers that tried reached this one"
        if reached:
            return f"{of}, at {', '.join(self.endpoints())}"
        newest = list(self._voices.values())[-1].probed
        likely = "most likely a router or firewall lets nothing in"
        return f"{of} ({newest.reason}): {likely}. This peer can still dial other peers"

    def has_word_of(self, peer: PeerId) -> bool:
        """Whether its verdict is among those that count: others are asked first."""
        return peer in self._voices

    def due(self, now: float) -> bool:
        """Whether it is time to ask (somebody else): soon until enough have spoken with one voice, seldom then."""
        if self._asked_at is None:
            return True
        every_s = SETTLED_EVERY_S if self.settled() else UNSETTLED_EVERY_S
        return now - self._asked_at >= (UNHEARD_EVERY_S if self._verdict is None else every_s)

    def at_once(self) -> int:
        """Return how many peers to ask. They are several while no peer has answered: an undialable address takes long
        to fail."""
        return MAX_VOICES if self._verdict is None else 1

    def settled(self) -> bool:
        """Whether enough have spoken, with one voice."""
        agree = len({bool(voice.probed.answered) for voice in self._voices.values()}) == 1
        return len(self._voices) >= MAX_VOICES and agree

    def asked(self, now: float) -> None:
        self._asked_at = now

    def forget(self) -> None:
        """Forget the answers after a change of our own addresses."""
        self._voices.clear()
        self._asked_at = self._verdict = None
