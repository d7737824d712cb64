"""Whether others can dial us, and where: decided from what other peers found when they tried (as AutoNAT does in
libp2p). Nobody can tell it of himself.

A single prober may lie or sit in the same network, so the last words of up to `MAX_VOICES` different peers count, the
majority of them decides, and an address is believed in only when somebody reached us there."""

from __future__ import annotations

from dataclasses import dataclass, field

from peer.protocol.messages import MAX_ENDPOINTS, PeerId, Probed

MAX_VOICES = 3
WORD_LASTS_S = 900.0
"""A verdict older than this no longer counts."""
SETTLED_EVERY_S = 300.0
UNSETTLED_EVERY_S = 15.0
UNHEARD_EVERY_S = 2.0
"""While nobody has a word on us: we say that we can be dialled until then, and who believes it loses a round."""


@dataclass(frozen=True, slots=True)
class _Voice:
    at: float
    probed: Probed


@dataclass(slots=True)
class Reachability:
    """Feed it `Probed`s; read `reachable`, `why` and `endpoints`. Times in seconds of one clock."""

    _voices: dict[PeerId, _Voice] = field(default_factory=dict)
    _asked_at: float | None = None
    _verdict: bool | None = None
    """Of the voices; asked for more often than heard."""

    def heard(self, prober: PeerId, probed: Probed, now: float) -> None:
        """A peer tried to dial us. One that declined says nothing."""
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
        """None: nobody has tried yet."""
        return self._verdict

    def endpoints(self) -> tuple[str, ...]:
        """Where we were reached, the latest first."""
        found = [e for voice in reversed(self._voices.values()) for e in voice.probed.answered]
        return tuple(dict.fromkeys(found))[:MAX_ENDPOINTS]

    def why(self) -> str:
        """For a person."""
        reached = self.reachable()
        if reached is None:
            return "nobody has tried to dial this peer yet"
        yes = [voice for voice in self._voices.values() if voice.probed.answered]
        of = f"{len(yes)} of {len(self._voices)} peers that tried reached this one"
        if reached:
            return f"{of}, at {', '.join(self.endpoints())}"
        newest = list(self._voices.values())[-1].probed
        return f"{of} ({newest.reason}): most likely a router or firewall lets nothing in; this peer dials the others"

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
        """How many to ask: while nobody has a word on us several, for those who cannot be called take long to show
        it."""
        return MAX_VOICES if self._verdict is None else 1

    def settled(self) -> bool:
        """Whether enough have spoken, with one voice."""
        agree = len({bool(voice.probed.answered) for voice in self._voices.values()}) == 1
        return len(self._voices) >= MAX_VOICES and agree

    def asked(self, now: float) -> None:
        self._asked_at = now

    def forget(self) -> None:
        """Our own addresses changed: what was found of the old ones says nothing."""
        self._voices.clear()
        self._asked_at = self._verdict = None
