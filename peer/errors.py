"""All errors that `peer` raises on purpose.

PeerError                      an error of use or surroundings, ends the command with `exit_code`
├── UsageError            2    an option or value is not possible
├── OutputLost            3    the answer could not be written to standard output, or to the file of an option
├── IdentityError        10    the key file is unreadable, malformed or too open
├── HomeBusy             11    a second process on one identity
├── HomeUnusable         12    the home directory cannot be made, read or written
├── MachineTooSmall      13    the model does not fit into this machine's free memory
├── TorchWrong           14    torch is missing, broken, or of a version that is not supported
├── MachineTooSlow       15    this machine or its link is too slow for any round of the run
├── CacheTooSmall        16    an artifact of the run does not fit into the cache
├── JoinDeclined         17    the run's contract was not accepted
├── RunEnded             18    the run is over, or no round of it is left to take part in
├── SystemUnsupported    19    peer does not run on this operating system
├── ManifestError        20    the manifest cannot be read, is not valid, or is not signed
├── TicketError          21    the ticket is truncated, mistyped or of a newer format
├── DataError            22    training data missing, too little, or not what the manifest names
├── ModelError           23    a foreign model or tokenizer cannot be used, its reason is named
├── SourceError          24    the model to be used is damaged, incomplete, or of another run
├── ReceiptsBroken       25    a chain of receipts is altered or cut off, its first bad entry is named
├── SwarmUnreachable     30    no peer of the run answered in time                 (retry is useful)
├── AddressError         31    a port is occupied or an address cannot be parsed
├── JoinRefused          32    a peer of the run refused us, with its reason
├── DirectoryFailed      33    the DHT helper cannot be started                    (retry is useful)
├── ClockWrong           34    this machine's clock differs too much from other peers'
├── ArtifactMissing      35    no peer served a file that the run needs            (retry is useful)
├── KeyInUse             36    another machine runs with a copy of this key
├── StartChanged         37    the operator signed another start of the run        (retry is useful)
├── TrainerFailed        40    the trainer died repeatedly, the cause is named
├── StateError           41    no usable state: neither a donor nor a checkpoint   (retry is useful)
├── JudgeFailed          42    `peer bootstrap`: the process that evaluates states does not start
├── RankLost             43    another rank of an own loop ended or hangs         (retry is useful)
├── NotRunning           50    no daemon answers under this home
├── ServiceUnavailable   51    the user's service manager does not answer, or refuses
├── SwarmFailed          60    `peer swarm`: a peer ended with an error and was not killed
├── OrdersNotCarriedOut  61    a command ended without carrying out all orders
├── NotReady             70    `peer doctor`: this machine would not take part, its report says why
└── ReadyWithWarnings    71    `peer doctor`: it would, and something could be better

ExchangeError                  between two daemons: the round continues without it
├── PartnerLost                cannot be reached, or the connection broke
│   ├── PartnerSilent          is connected and sends nothing
│   └── NotDialled             others at its address did not answer, or the address is not for us
├── PartnerRefused             answered with a typed refusal (`code`, `reason`)
│   └── RelayBusy              no relay on the way has room for a swap
├── BadPayload                 sent bytes that are not what they claim to be (`code`)
├── NoRoster                   a group round has no roster with this peer in it
└── Stale                      the group builds on another state: this peer catches up first

TrainerDied                    the trainer process ended, and the round loop restarts it
"""

from __future__ import annotations

import errno
import re
import shlex
from pathlib import Path
from typing import ClassVar

from peer.codes import AnyCode, Code


class PeerError(Exception):
    """An error that ends a command: the finding, why it matters, and how to fix it, in a few sentences.

    Every subclass has its own default `why` and `fix`. The raiser may replace them by more exact ones, with values."""

    exit_code: ClassVar[int] = 1
    retry: ClassVar[bool] = False
    """Whether a supervisor should start the command again without a change."""
    why: str = "The daemon could not do what it was asked to do."
    fix: str = "Try again. The daemon's own output may say more."

    def __init__(self, found: str, fix: str = "", why: str = "") -> None:
        super().__init__(found)
        self.found = found
        self.fix = fix or type(self).fix
        self.why = why or type(self).why

    @property
    def page(self) -> str:
        """Command that shows the section of the documentation about this error."""
        return f"peer help exit-codes {self.exit_code}"


class UsageError(PeerError):
    """An option or value is not possible."""

    exit_code = 2
    why = "Nothing was started and nothing was changed."
    fix = "See the command's --help."


class OutputLost(PeerError):
    """The command's output could not be written to standard output, or to the file named by an option."""

    exit_code = 3
    why = "The answer is incomplete or missing where it was sent to."
    fix = "Free some space on the disk of the file that the output goes to, or send it elsewhere. Then run it again."


class IdentityError(PeerError):
    """The key file cannot be read or made, is malformed, or is open to others."""

    exit_code = 10
    why = "The key is this peer's identity. Without it the peer cannot sign. Another reader of it can pose as the peer."
    fix = "Give your user (and nobody else) access to the key file, or choose another --home."


class HomeBusy(PeerError):
    """Another process holds the lock of this home or key. The message names its pid."""

    exit_code = 11
    why = "Two processes under one identity would answer for each other and overwrite each other's state."
    fix = "End the other one with `peer leave`, or give this one a --home of its own."


class HomeUnusable(PeerError):
    """The home directory cannot be made, read or written."""

    exit_code = 12
    why = "Key, journal and checkpoints live there. Without them nothing that this peer does survives a restart."
    fix = "Free the path or some space on its disk, or choose another --home."


class MachineTooSmall(PeerError):
    """The model does not fit into this machine's free memory."""

    exit_code = 13
    why = "The system would kill the trainer or the daemon in the middle of the work, or swap until nothing moves."
    fix = "Close other programs, raise the container's memory limit, or join a run with a smaller model."


class TorchWrong(PeerError):
    """torch is missing, cannot be loaded, or has a version that this program does not support."""

    exit_code = 14
    why = "Training is tested with some versions of torch. With others it would fail later and less clearly."
    fix = "Install this program in a new virtual environment: peer help install"


class MachineTooSlow(PeerError):
    """This machine or its link is too slow to ever take part in a round of the run. The message contains the
    numbers."""

    exit_code = 15
    why = "It would train alone, and its work would never reach another peer."
    fix = "Raise the caps, or join a run with a smaller model or longer rounds."


class CacheTooSmall(PeerError):
    """An artifact of the run does not fit into the cache."""

    exit_code = 16
    why = "The files of a run are kept in a cache of bounded size, and what is in use is never deleted."
    fix = "Give a larger --cache-disk."


class JoinDeclined(PeerError):
    """The run's contract was not accepted: neither by a person at the terminal nor by --yes."""

    exit_code = 17
    why = "Nothing was fetched and nothing was trained."
    fix = "Start again and answer y, or give --yes. Caps and --speed make the run take less."


class RunEnded(PeerError):
    """The run is over, or has no round left in which this peer could take part."""

    exit_code = 18
    why = "A peer that joined now would train nothing. The model that the run made can be used."
    fix = "Get the model: peer export TICKET OUT --format hf"


class SystemUnsupported(PeerError):
    """peer does not run on this operating system."""

    exit_code = 19
    why = "The daemon needs Unix sockets, file locks and a helper program (p2pd), which are made for Linux and macOS."
    fix = "Use Linux. On Windows, run `wsl --install` and install peer within WSL2."


class ManifestError(PeerError):
    """The manifest cannot be read, is not valid, or its signature does not verify."""

    exit_code = 20
    why = "The manifest is the run: all its peers work by the same signed bytes, so doubtful ones are not used."
    fix = "The operator corrects the named lines and signs again. Everybody else gets the new file from the operator."


class TicketError(PeerError):
    """The ticket is truncated, mistyped, or of a newer format."""

    exit_code = 21
    why = "The ticket names the run and its addresses. With one wrong character it names another run, or none."
    fix = "Copy the complete ticket again. It is one string without spaces."


class DataError(PeerError):
    """The training data is missing, unreadable, too little, or not what the manifest names."""

    exit_code = 22
    why = "Without its data this peer has nothing to learn from, and nothing to contribute."
    fix = "Give --data a folder with readable text files."


class ModelError(PeerError):
    """A foreign model or tokenizer cannot be used: its files are unsafe or too large, or this machine cannot make such
    a model."""

    exit_code = 23
    why = "Such files come from strangers. They are opened only within limits, and no code of others is run."
    fix = "The operator has to name a model that transformers builds from its config alone, without code of others."


class SourceError(PeerError):
    """The model to be used is damaged, incomplete, or of another run. The message names the file."""

    exit_code = 24
    why = "A model is used whole and checked, or not at all: part of one gives wrong answers without a word."
    fix = "Name another home, checkpoint folder or ticket of the run."


class ReceiptsBroken(PeerError):
    """A chain of receipts is altered, cut off, or not a chain at all. The message names the first bad entry."""

    exit_code = 25
    why = "A chain proves what its signatures cover. From the first bad entry on, it proves nothing."
    fix = "Ask its owner to export it again: peer contribution export FILE"


class SwarmUnreachable(PeerError):
    """No peer of the run answered in time."""

    exit_code = 30
    retry = True
    why = "Manifest and state come from other peers. This peer cannot begin until one of them answers."
    fix = "Check this machine's connection, then ask the operator for the state of the bootstrap node or a new ticket."


class AddressError(PeerError):
    """A port is occupied or an address cannot be parsed."""

    exit_code = 31
    why = "Other peers find this peer by its address, and it cannot listen there."
    fix = "Choose another port or address. Port 0 takes any free one."


class JoinRefused(PeerError):
    """Every peer of the run refused this one. The message is their reason."""

    exit_code = 32
    why = "The answer stays the same until the named cause has changed."
    fix = "Do what the sentence says. If it is not clear, ask the operator of the run."


class DirectoryFailed(PeerError):
    """The DHT helper process (p2pd) cannot be started."""

    exit_code = 33
    retry = True
    why = "Peers find each other through it. Without it this peer is alone."
    fix = "Mend what the message names, then try again. If it names nothing that you can mend, report it as a bug."


class ClockWrong(PeerError):
    """This machine's clock differs too much from other peers' clocks."""

    exit_code = 34
    why = "Rounds and records use the clock. With a wrong one this peer misses every exchange and is taken for gone."
    fix = "Set the clock, e.g. with: timedatectl set-ntp true"


class ArtifactMissing(PeerError):
    """No peer served a file that the run needs. The message lists the answer of each peer."""

    exit_code = 35
    retry = True
    why = "The run's tokenizer, configuration and data come from other peers. This peer cannot train without them."
    fix = "Try again later: the bootstrap node, or a peer that has the file, has to be up."


class KeyInUse(PeerError):
    """Another process, on another machine, uses this key and was started earlier. It has proven that by a signature."""

    exit_code = 36
    why = "Two processes under one identity answer for each other, so that neither exchanges. The later one stops."
    fix = "Make a new key here with: peer id new"


class StartChanged(PeerError):
    """The operator signed another start of the run than the one from which this peer counts its rounds."""

    exit_code = 37
    retry = True
    why = "A node whose right to sign was taken back had signed the other start. The rounds here were never the run's."
    fix = "Start this peer again. It counts from the start that holds, and fetches the state."


class TrainerFailed(PeerError):
    """The trainer died repeatedly. The message names the cause."""

    exit_code = 40
    why = "A trainer that dies at once, again and again, would continue to do so. All applied work is kept."
    fix = "See trainer.log in the run's folder below the home. Too little memory is the usual cause."


class StateError(PeerError):
    """There is no usable state: neither a donor nor an own checkpoint."""

    exit_code = 41
    retry = True
    why = "A peer never starts from nothing: it would pull every partner's model back to the beginning."
    fix = "Try again later: one peer with the state, or the bootstrap node, has to be up."


class JudgeFailed(PeerError):
    """The process that evaluates states for `peer bootstrap` does not start. The message contains its last line of
    output."""

    exit_code = 42
    why = "No state of the run could be checked before it is given to joiners, and one of them may be spoilt."
    fix = "Mend what the message names. With --no-check the node keeps states unchecked."


class RankLost(PeerError):
    """Another rank of a training loop of several processes ended, hangs, or left the run alone."""

    exit_code = 43
    retry = True
    why = "Each rank has a part of the model or of the batch. Without one of them no step and no exchange is whole."
    fix = "Let torchrun start all ranks again (--max-restarts). With the same home they go on from the last checkpoint."


class NotRunning(PeerError):
    """No daemon answers under this home."""

    exit_code = 50
    why = "This command only asks a running daemon. It does nothing by itself."
    fix = "Start one with `peer join TICKET`, or name its folder with --home."


class ServiceUnavailable(PeerError):
    """The user's service manager does not answer, or refuses a request. The message contains its reply."""

    exit_code = 51
    why = "Without it nothing starts the peer again after a crash or a restart of this machine."
    fix = "Log in as this user itself, not by su or sudo. Or print the file: peer service install --print"


class SwarmFailed(PeerError):
    """A peer of a local swarm ended with an error without having been killed."""

    exit_code = 60
    why = "The report of such a swarm would not show the effect of the settings."
    fix = "Read the named log. Its last lines say why."


class OrdersNotCarriedOut(PeerError):
    """A command ended without carrying out everything that was ordered. The message names the missing orders."""

    exit_code = 61
    why = "The result would be read as that of what was asked for, and it is not."
    fix = "Give the run more --rounds or --minutes, or order it for an earlier time."


class NotReady(PeerError):
    """A problem found by `peer doctor` keeps this machine out of the run. Its report names each problem."""

    exit_code = 70
    why = "`peer join` would end with an error, or train without ever reaching another peer."
    fix = "Do what the report says behind `fix:`, then run peer doctor again."


class ReadyWithWarnings(PeerError):
    """This machine can take part, but `peer doctor` has warnings: possible improvements or missing checks."""

    exit_code = 71
    why = "This machine would take part, and do less than it could."
    fix = "Read the warnings of the report. `peer join` works without a change."


LONGEST_SHOWN = 80
"""Most characters of a file's line that a message shows."""


def file_advice(error: BaseException, path: Path, elsewhere: str = "choose another --home") -> str:
    """Return advice about one of our files that could not be created, read or written.

    `elsewhere`: how the user names another place, as the end of a sentence. For errors other than OSError the advice is
    general."""
    folder = path.parent
    match error.errno if isinstance(error, OSError) else None:
        case errno.ENOSPC:
            return f"Free some space (or inodes) on the disk of {folder}, or {elsewhere}."
        case errno.EDQUOT:
            return f"Your disk quota at {folder} is used up: delete something, ask for more, or {elsewhere}."
        case errno.EFBIG:
            return (
                "A limit of file sizes is in force: of this process (ulimit -f, LimitFSIZE of a service), or of the "
                f"file system. Raise it, or {elsewhere}."
            )
        case errno.EROFS:
            return f"The file system of {folder} is mounted read-only: mount it writable, or {elsewhere}."
        case errno.EACCES:
            return f"Give your user the right to read and write {folder}, or {elsewhere}."
        case errno.EPERM | errno.EOPNOTSUPP:
            return (
                f"The system forbids this at {folder}, or its file system cannot do it, as FAT, exFAT and some network "
                f"shares: take a local disk of Linux or macOS, or {elsewhere}."
            )
        case errno.ENOTDIR | errno.EEXIST | errno.EISDIR:
            return f"Something else is where {path} belongs: move it away, or {elsewhere}."
        case errno.ENAMETOOLONG:
            return f"The path is too long for this file system: {elsewhere}."
        case errno.EMFILE | errno.ENFILE:
            return "Too many files are open: raise the limit of open files (ulimit -n, LimitNOFILE of a service)."
        case errno.EIO | errno.ESTALE | errno.ENODEV:
            return f"The disk of {folder} does not answer as it should: check it, or {elsewhere}."
        case _:
            return f"Look at {folder} and at the free space there, or {elsewhere}."


def toml_error(error: ValueError | RecursionError, text: str) -> str:
    """Return a TOML parser's error message, followed by the line of the text that it is about."""
    place, lines = re.search(r"\(at line (\d+), column \d+\)$", str(error)), text.split("\n")
    if place is None or int(place[1]) > len(lines):
        return str(error)
    line = lines[int(place[1]) - 1].strip()[:LONGEST_SHOWN]
    return f"{error}: {''.join(one if one.isprintable() else '?' for one in line)}"


def for_shell(path: Path | str) -> str:
    """Return a path quoted for a shell command line that a person will paste."""
    return shlex.quote(str(path))


class ExchangeError(Exception):
    """An error between two daemons. The round continues without the exchange."""


class PartnerLost(ExchangeError):
    """The partner cannot be reached, was silent past the deadline, or the connection broke."""


class NotDialled(PartnerLost):
    """This peer did not dial the partner, because of its dial rules or its rate limit. The partner may be reachable."""


class PartnerSilent(PartnerLost):
    """The partner is connected, or announced that it would call, but sent nothing for too long. `code` is `late` if it
    never began, `silent` if it stopped in the middle."""

    def __init__(self, reason: str, code: Code = Code.LATE) -> None:
        super().__init__(reason)
        self.code = code


class PartnerRefused(ExchangeError):
    """The partner answered with a typed refusal. `eta_s`: seconds after which another attempt makes sense. 0:
    unknown."""

    def __init__(self, code: AnyCode, reason: str, eta_s: float = 0.0) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code
        self.reason = reason
        self.eta_s = eta_s


class RelayBusy(PartnerRefused):
    """No relay on the way to the partner has room for a swap. Neither of the two is to blame."""

    def __init__(self, reason: str) -> None:
        super().__init__(Code.RELAY_BUSY, reason)


class BadPayload(ExchangeError):
    """A peer sent bytes that are not what they claim to be: wrong checksum, digest, length or shape, or values that are
    not finite."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code
        self.reason = reason


class NoRoster(ExchangeError):
    """This group round has no roster with this peer in it: too few peers, no leader, or the peer was late. The unmerged
    work is kept for the next round."""


class Stale(ExchangeError):
    """The group's roster builds on another state of the fragment than this peer holds, so that the round includes no
    work of this peer. The peer fetches the state from the roster's members (`roster`: a
    `peer.protocol.group.roster.Roster`)."""

    def __init__(self, reason: str, roster: object) -> None:
        super().__init__(reason)
        self.roster = roster


class TrainerDied(Exception):
    """The trainer process ended by itself or was killed. `cause` names the signal, exit code or exception."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause
