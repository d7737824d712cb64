"""Every error that `peer` raises on purpose.

PeerError                      what a person did or met; ends the command with `exit_code`
├── UsageError            2    a flag or value that cannot be
├── IdentityError        10    the key file is unreadable, malformed or too open
├── HomeBusy             11    a second process on one identity
├── HomeUnusable         12    the home directory cannot be made, read or written
├── ManifestError        20    the manifest does not parse, check, or verify
├── TicketError          21    the ticket is truncated, mistyped or of a newer format
├── DataError            22    training data missing, too little, or not what the manifest names
├── SwarmUnreachable     30    nobody of the run answered in time                  (retry is useful)
├── AddressError         31    a port is occupied or an address cannot be parsed
├── JoinRefused          32    a peer of the run refused us, with its reason
├── DirectoryFailed      33    the DHT helper cannot be started                    (retry is useful)
├── TrainerFailed        40    the trainer kept dying; the cause is named
├── StateError           41    no usable state: neither a donor nor a checkpoint   (retry is useful)
├── NotRunning           50    no daemon answers under this home
└── SwarmFailed          60    `peer swarm`: a peer ended that nobody killed

ExchangeError                  between two daemons; never ends one: the round goes on without it
├── PartnerLost                cannot be reached, went silent, or the connection broke
├── PartnerRefused             answered with a typed refusal (`code`, `reason`)
└── BadPayload                 sent bytes that are not what they claim to be (`code`)

TrainerDied                    the trainer process ended; the coordinator restarts it
"""

from __future__ import annotations

from typing import ClassVar


class PeerError(Exception):
    """What was found, and what to do about it. `fix` stands on its own line below the message."""

    exit_code: ClassVar[int] = 1
    retry: ClassVar[bool] = False

    def __init__(self, found: str, fix: str = "") -> None:
        super().__init__(found)
        self.found = found
        self.fix = fix


class UsageError(PeerError):
    """A flag or value that cannot be."""

    exit_code = 2


class IdentityError(PeerError):
    """The key file is unreadable, malformed, or open to others."""

    exit_code = 10


class HomeBusy(PeerError):
    """Another process holds the lock of this home; its pid is named."""

    exit_code = 11


class HomeUnusable(PeerError):
    """The home directory cannot be made, read or written."""

    exit_code = 12


class ManifestError(PeerError):
    """The manifest does not parse, does not check, or its signature does not verify."""

    exit_code = 20


class TicketError(PeerError):
    """The ticket is truncated, mistyped, or of a newer format."""

    exit_code = 21


class DataError(PeerError):
    """The training data is missing, too little, or not what the manifest names."""

    exit_code = 22


class SwarmUnreachable(PeerError):
    """Nobody of the run answered in time."""

    exit_code = 30
    retry = True


class AddressError(PeerError):
    """A port is occupied or an address cannot be parsed."""

    exit_code = 31


class JoinRefused(PeerError):
    """A peer of the run refused us; its sentence is the message."""

    exit_code = 32


class DirectoryFailed(PeerError):
    """The DHT helper process (p2pd) cannot be started."""

    exit_code = 33
    retry = True


class TrainerFailed(PeerError):
    """The trainer kept dying; the cause is named."""

    exit_code = 40


class StateError(PeerError):
    """No usable state: neither a donor nor an own checkpoint."""

    exit_code = 41
    retry = True


class NotRunning(PeerError):
    """No daemon answers under this home."""

    exit_code = 50


class SwarmFailed(PeerError):
    """A peer of a local swarm ended with an error although nobody killed it."""

    exit_code = 60


class ExchangeError(Exception):
    """Something between two daemons went wrong. The round goes on without it."""


class PartnerLost(ExchangeError):
    """The partner cannot be reached, went silent past the deadline, or the connection broke."""


class PartnerRefused(ExchangeError):
    """The partner answered with a typed refusal."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code
        self.reason = reason


class BadPayload(ExchangeError):
    """Bytes that are not what they claim to be: checksum, digest, length, shape, or not finite."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code
        self.reason = reason


class TrainerDied(Exception):
    """The trainer process ended by itself or was killed. `cause` names the signal, exit code or exception."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause
