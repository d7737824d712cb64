"""All codes of refusals and failures between peers, with their meaning.

A code is sent in a refusal, written to the journal beside a sentence, decides by how much an offence lowers a peer's
reputation (`peer.protocol.policy.reputation`), and labels a metric. Its text never changes, because other programs and
older journals contain it. A program counts codes that it does not know as `other`."""

from __future__ import annotations

from enum import StrEnum
from typing import NewType, TypeAlias


class Code(StrEnum):
    """One code. Its value is the text; `meaning` is a sentence about it."""

    meaning: str

    def __new__(cls, text: str, meaning: str = "") -> Code:
        self = str.__new__(cls, text)
        self._value_, self.meaning = text, meaning
        return self

    # -- a call, before it is served
    BAD_PROOF = "bad_proof", "The caller did not prove that it owns the key that it names."
    BANNED = "banned", "The run's operator keeps this peer out."
    BUSY = "busy", "All places for such calls are taken for now."
    HELLO = "hello", "The caller ended its Hello before it was complete."
    INVITATION_ALTERED = "invitation_altered", "The invitation cannot be read, or its signer may not invite to the run."
    INVITATION_EXPIRED = "invitation_expired", "The invitation has expired."
    INVITATION_FOREIGN = "invitation_foreign", "The invitation is for another run or another peer."
    INVITATION_REVOKED = "invitation_revoked", "The operator took the invitation back."
    LIMIT = "limit", "The caller makes more calls, or more at once, than are allowed."
    NO_TOKEN = "no_token", "The call has no token of a Hello, or one that has run out."
    RECORD = "record", "A record or summary, shown by the peer or found in the directory, must not be believed."
    REQUEST = "request", "The request cannot be read, or asks for something impossible."
    STANDING = "standing", "The peer is out of favour here for what it did before."
    TIMEOUT = "timeout", "What was due did not come, or was not taken, in time."
    UNINVITED = "uninvited", "The run admits invited peers only, and the peer showed no invitation."
    UNKNOWN_CALL = "unknown_call", "The other program is older and does not know this call."
    WIRE_VERSION = "wire_version", "The two programs have no wire version in common."
    WRONG_RUN = "wrong_run", "The caller takes part in another run."

    # -- an exchange with a partner
    BUDGET = "budget", "The volunteer's upload quota, or the share for relaying, is used up."
    LATE = "late", "Too late: the partner did not begin in time, the shard is closed, or the relay delayed a call."
    LATER = "later", "The peer has not come to this round yet."
    LOST = "lost", "The connection broke, or the peer could not be reached."
    NONSENSE = "nonsense", "The partner's params predict worse than a guess does."
    PATH = "path", "The relay between the two was gone in the middle of the exchange."
    REFUSED = "refused", "The peer does not take part in this exchange, as its sentence says."
    RELAY_BUSY = "relay_busy", "The relay has no room for another swap."
    SILENT = "silent", "The peer stopped in the middle and said nothing for too long."
    TAKEN = "taken", "The peer has another partner in this round, or is past it."

    # -- bytes that are not what they claim to be
    BAD_PAYLOAD = "bad_payload", "The other side did not accept what this peer sent."
    ANSWER = "answer", "There was no answer, or one that cannot be read."
    ARTIFACTS = "artifacts", "The answer names another number of files than were asked about."
    CHECK = "check", "A block was answered that is not the one sent (lattice codec)."
    CHECKSUM = "checksum", "A frame does not match its checksum."
    CLOCK = "clock", "The other machine's clock is too far from the run's."
    CODE = "code", "The payload holds a value that its codec does not use."
    CODEC = "codec", "The partner encodes with another codec than the run's."
    DIGEST = "digest", "Data do not match the digest that was announced for them."
    FRAME = "frame", "A frame or its opening message cannot be read, or holds an impossible value."
    HAVE = "have", "The bytes are there already, or those announced are not those that are due."
    INDEX = "index", "Indices in a payload or in a donor's index of pieces are impossible."
    LENGTH = "length", "Data are longer or shorter than they have to be."
    NORM = "norm", "The values are absurdly large."
    NOT_FINITE = "not_finite", "The values hold NaN or infinity."
    ORDER = "order", "A frame came out of order."
    RECEIPT = "receipt", "A receipt of a swap cannot be read, or is impossible."
    RELAY = "relay", "What a relay says about a place there is impossible."
    REPLY = "reply", "The answer to a measurement of the upload is impossible."
    ROUND = "round", "The partner is in another round, or exchanges another fragment."
    SCALE = "scale", "A scale in the payload is negative, NaN or infinite."
    STRIPES = "stripes", "More parallel streams were announced than may be."
    VERDICT = "verdict", "The answer to an offer or to a join is not one of those that exist."

    # -- groups
    FALSE_MEAN = "false_mean", "The owner signed a result that is not the mean of the contributions that it shows."
    IMPLAUSIBLE = "implausible", "The owner's result cannot be a mean of contributions."
    NAMED = "named", "The contributors that a result names cannot be."
    NO_GROUP = "no_group", "The peer takes part in no group, or not yet."
    NO_ROSTER = "no_roster", "The peer leads no roster of this round."
    NONE = "none", "The shard has no result in this round: too few contributed."
    OTHER_ROSTER = "other_roster", "The peer is not in that roster of this round."
    PROOF = "proof", "A proof of a false mean cannot be read."
    RESULT = "result", "The owner gave another result of the shard than before."
    ROSTER = "roster", "The roster is malformed, not signed by its leader, or has not this peer in it."
    SHARD = "shard", "The peer owns another shard than the one that was sent."
    SIGNATURE = "signature", "The signature is not by the key that should have signed."
    TOKENS = "tokens", "A contribution claims an impossible number of tokens."
    TWO_RESULTS = "two_results", "The owner gave two members different results, and signed both."
    WEIGHT = "weight", "A part of a result has an impossible weight."

    # -- state and files
    GONE = "gone", "What was asked for is no longer here."
    LAYOUT = "layout", "The model's tensors are laid out differently, or a record is not where it belongs."
    NO_MANIFEST = "no_manifest", "The peer has no manifest of the run yet."
    NO_STATE = "no_state", "The peer has no complete state to give."
    OUTDATED = "outdated", "The peer's own state is not to be given: it is behind, or the run continues from another."
    STATE = "state", "A state beyond all bounds is described."

    # -- records of the directory
    ENDPOINTS = "endpoints", "A record has too many addresses, or one that is none."
    EXPIRED = "expired", "A record has expired."
    EXPIRY = "expiry", "A record claims to hold for longer than any may."
    FOREIGN_RUN = "foreign_run", "A record belongs to another run."
    FULL = "full", "The store of records has no room for another."
    FUTURE = "future", "A record was issued further in the future than clocks may be off."
    GARBLED = "garbled", "These bytes are not a signed record."
    NUMBERS = "numbers", "A record holds an impossible number."
    RELAYS = "relays", "A record names too many relays, or one that is none."
    RUN_ID = "run_id", "A record's run id has the wrong length."
    START = "start", "The nonce of a start in a record has the wrong length."
    STATUS = "status", "A record names a status that does not exist."
    TOO_LARGE = "too_large", "A record is larger than any may be."
    WIRE = "wire", "A record names impossible wire versions."

    # -- the operator's signed statements
    AMENDMENT = "amendment", "An amendment cannot be read, or is too large."
    AMENDMENT_FORK = "amendment_fork", "The operator signed two different amendments under one number."
    AMENDMENT_ORDER = "amendment_order", "An amendment does not follow on the newest one held here."
    AMENDMENT_RUN = "amendment_run", "An amendment is of another run."
    AMENDMENT_SIGNATURE = "amendment_signature", "The operator did not sign the amendment."
    KEPT = "kept", "The file of amendments or papers in the run's folder is damaged."
    NOT_KEPT = "not_kept", "An amendment or paper holds, and could not be written to the run's folder."
    PAPER = "paper", "A paper cannot be read, or is too large."
    PAPER_DELEGATION = "paper_delegation", "The operator did not let the signer sign such a paper."
    PAPER_ROUND = "paper_round", "A digest is of a round that nobody can have reached yet."
    PAPER_RUN = "paper_run", "A paper is of another run."
    PAPER_SIGNATURE = "paper_signature", "The key that a paper names did not sign it."
    SECOND_START = "second_start", "There are two signed starts of the run that disagree."
    TAKEN_BACK = "taken_back", "The operator took back what let a node sign this paper."

    # -- relays
    BROKEN = "broken", "What passed the relay broke off, or did not come from the peer."
    ENDED = "ended", "The place at the relay ended."
    OFF = "off", "The peer relays for nobody."
    OPEN = "open", "No relay is needed any more: others can dial this peer."
    SLOW = "slow", "The relay itself answers late."
    SURPLUS = "surplus", "There is a better relay."
    UNREACHABLE = "unreachable", "The relay did not answer at its address."
    UNRESERVED = "unreserved", "The peer that is called has no place at this relay."

    # -- strangers
    OTHER = "other", "A code that this program does not know. Metrics count it under this name."


CodeText = NewType("CodeText", str)
"""The text of a code that is not in `Code`: from another program, from an older journal, or made by `rejected`."""
AnyCode: TypeAlias = Code | CodeText

REJECTED = f"{Code.BAD_PAYLOAD}:"
"""Prefix of the code with which a receiver refuses invalid bytes. The rest is the code of the error in them."""


def rejected(code: Code) -> CodeText:
    """Return the code with which a receiver refuses invalid bytes, such as `bad_payload:length`."""
    return CodeText(f"{REJECTED}{code}")


def code_of(text: str) -> AnyCode:
    """Return the code with this text. A text that is no known code is returned as CodeText."""
    try:
        return Code(text)
    except ValueError:
        return CodeText(text)


def counted_as(code: AnyCode) -> Code:
    """Return the code under which metrics count: `OTHER` for an unknown code, and `bad_payload` for rejected bytes
    whatever was wrong with them."""
    known = code_of(code.partition(":")[0])
    return known if isinstance(known, Code) else Code.OTHER
