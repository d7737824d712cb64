"""Fuzz targets: documents of an operator, and the control socket."""

from __future__ import annotations

import base64
import json
from typing import Any

from peer.errors import BadPayload, ManifestError, PeerError, TicketError, UsageError
from peer.identity import Identity
from peer.node.control import COMMANDS, _parse, _parse_reply, _Refused
from peer.protocol.policy.amendments import Change, RunPolicy, describe, policy_at
from peer.run.manifest import default_text
from peer.run.overrides import SECTIONS, apply_overrides
from peer.run.schema import FORMAT, parse_manifest
from peer.run.statements.kinds import AMENDMENT, FAMILIES, PAPER
from peer.run.statements.log import StatementLog
from peer.run.statements.statement import delegate
from peer.run.ticket import _MAGIC, Ticket, _checksum, _to_base32
from tests.fuzz.engine import Target
from tests.fuzz.mutate import LITERALS
from tests.fuzz.wire import OWNER, RUN

WORDS = tuple(f"{section}.{name} = ".encode() for section, kind in SECTIONS.items() for name in kind.model_fields)
TOML = (
    b"\n[sync]\n", b"[[model]]\n", b"\na.b.c = 1\n", b'"""', b"'''", b"= {a = 1}", b"= [1, [2]]", b"00:60:00",
    b"\\uD800", b"1979-05-27T00:00:00+99:99", b"0x", b"1_000", b"\r", b"# ", b"\x00", b"\xef\xbb\xbf",
)  # fmt: skip


def _without_comments(text: str) -> bytes:
    lines = (line.split(" #")[0].rstrip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line and not line.startswith("#")).encode()


def manifest() -> Target:
    def run(raw: bytes) -> None:
        checked = parse_manifest(raw)
        assert checked.format in range(1, FORMAT + 1)
        assert checked.model.parameters * 4 > 0

    full = _without_comments(default_text(OWNER.peer_id))
    small = b'format = 1\nname = "x"\nseed = 3\n[sync]\npreset = "noloco"\nouter_lr = 0.7\n'
    control = b'format = 1\n[sync]\npreset = "none"\nclock = "steps"\nsync_every = 5\n'
    corpus = (full, small, small, control)
    return Target(
        name="manifest", run=run, corpus=corpus, refuses=(ManifestError,), tokens=TOML + LITERALS + WORDS, limit=8192
    )


def overrides() -> Target:
    """Parse a manifest and one `--set`, separated by NUL. The result is valid TOML."""

    def run(raw: bytes) -> None:
        text, _, setting = raw.decode(errors="replace").partition("\0")
        derived = apply_overrides(text, [setting])
        assert apply_overrides(derived, []) == derived, "not what it wrote itself"

    settings = ("sync_every=20", "sync.preset=none", "name=5", "seed=0x10", "lr=1e-3", "operator=abc", 'name="a b"')
    corpus = tuple(f"format = 1\n[sync]\nsync_every = 5\n\0{setting}".encode() for setting in settings)
    refuses = (ManifestError, UsageError)
    return Target(name="overrides", run=run, corpus=corpus, refuses=refuses, tokens=TOML + LITERALS, limit=8192)


def amendment() -> Target:
    """Pass an amendment to a chain. Those accepted are signed, of this run, and the next in order."""

    def first(change: Change, **fields: Any) -> bytes:
        return StatementLog(RUN, OWNER.peer_id).amend(OWNER, 3, change, "plateau", **fields).raw

    wire, banned = first(Change.WIRE, low=1, high=2), first(Change.BAN, peer=OWNER.peer_id)
    refound = first(Change.REFOUND, digest="ab" * 32)

    def run(raw: bytes) -> None:
        """Signed by the operator whatever it says, so that the checks behind the signature are reached."""
        log = StatementLog(RUN, OWNER.peer_id)
        assert log.add(log.open_amendment(raw, OWNER.sign(AMENDMENT.domain, raw)))
        (got,) = log.amendments
        assert got.number == 1
        assert describe(got).isprintable()
        changed = policy_at(log.amendments, got.round) != RunPolicy()
        assert changed or got.change in (Change.GO_ON, Change.UNBAN, Change.LR_SCALE)

    corpus = (first(Change.LR_SCALE, value=0.5), first(Change.PAUSE), wire, banned, refound)
    tokens = (
        b'"lr_scale"',
        b'"wire"',
        b'"pause"',
        b"NaN",
        b"1e999",
        b"-1",
        b"\\u001b",
        b'"number": 1',
        b"[" * 50,
        b"null",
    )
    return Target(name="amendment", run=run, corpus=corpus, refuses=(BadPayload,), tokens=tokens, limit=6000)


def paper() -> Target:
    """Pass a paper to a log. Those accepted are signed, of this run, and unchanged when read again."""
    node = Identity.generate()
    log = StatementLog(RUN, OWNER.peer_id)
    given = delegate(OWNER, RUN, node.peer_id, ["start"], 0)

    def run(raw: bytes) -> None:
        """The document signed by the operator whatever it says, so that the checks behind the signature are reached."""
        text = raw.decode(errors="replace")
        entry = {"paper": text, "signature": OWNER.sign(PAPER.domain, text.encode()).hex()}
        got = log.open(json.dumps(entry).encode())
        assert log.open(got.line) == got
        assert got.document.sentence().isprintable()
        assert StatementLog(RUN, OWNER.peer_id).add(got)

    corpus = (given.raw, log.sign_start(OWNER, 9.5, 0).raw, log.sign_digest(OWNER, 3, b"d" * 32, 0).raw)
    tokens = (b'"start"', b'"digest"', b'"delegation"', b"NaN", b"1e999", b"-1", b"\\u001b", b"[" * 50, b"null")
    return Target(name="paper", run=run, corpus=corpus, refuses=(BadPayload,), tokens=tokens, limit=2000)


def statement_line() -> Target:
    """Pass a line of a file to a log. Statements accepted are unchanged when written and read again."""
    node = Identity.generate()
    log = StatementLog(RUN, OWNER.peer_id)
    log.add(given := delegate(OWNER, RUN, node.peer_id, ["digests"], 0))
    lines = [given.line, log.sign_start(OWNER, 9.5, 0).line, log.sign_digest(node, 3, b"d" * 32, 0).line]

    def run(raw: bytes) -> None:
        fresh = StatementLog(RUN, OWNER.peer_id)
        got = fresh.open(raw)
        assert fresh.add(got)
        assert fresh.open(got.line) == got
        assert list(fresh)[-1] == got

    def mend(raw: bytes) -> bytes:
        """Correct the signature for the changed document."""
        try:
            entry = json.loads(raw)
            for family in FAMILIES:
                if family.name in entry:
                    entry["signature"] = OWNER.sign(family.domain, entry[family.name].encode()).hex()
            return json.dumps(entry).encode()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return raw

    corpus = (*lines, StatementLog(RUN, OWNER.peer_id).amend(OWNER, 3, Change.LR_SCALE, "plateau", value=0.5).line)
    tokens = (b'"amendment"', b'"paper"', b'"delegation"', b'"signature"', b"null", b"[" * 50, b"\\ud800", b"1e999")
    return Target(
        name="statement-line", run=run, corpus=corpus, refuses=(BadPayload,), tokens=tokens, mend=mend, limit=26000
    )


def ticket() -> Target:
    """Decode a ticket. A valid one encodes to the same text."""

    def run(raw: bytes) -> None:
        text = raw.decode(errors="surrogateescape")
        got = Ticket.decode(text)
        assert len(got.run_id) == 32
        assert Ticket.decode(got.encode()) == got

    def mend(raw: bytes) -> bytes:
        """Decode the ticket, correct its magic and checksum, and encode it again."""
        try:
            held = base64.b32decode(raw.upper() + b"=" * (-len(raw) % 8))
        except ValueError:
            held = raw
        body = held[:-4] if held.startswith(_MAGIC) else _MAGIC + held
        return _to_base32(body + _checksum(body)).encode()

    p2p = f"p2p/{OWNER.peer_id}"
    one = Ticket(RUN, (f"/ip4/192.0.2.1/tcp/4001/{p2p}",))
    more = Ticket(RUN, (f"/dns4/a.example/tcp/1/{p2p}", f"/ip6/2001:db8::1/tcp/65535/{p2p}", one.addresses[0]))
    corpus = (one.encode().encode(), more.encode().encode(), one.encode().upper().encode())
    tokens = (b" ", b"\n", b"aaaaaaaa", b"77777777", "\u212a".encode(), "\u0130".encode(), b"peersw", b"=")
    return Target(name="ticket", run=run, corpus=corpus, refuses=(TicketError,), tokens=tokens, mend=mend, limit=20000)


def control_request() -> Target:
    def run(raw: bytes) -> None:
        command, request = _parse(raw)
        assert command in COMMANDS
        assert isinstance(request, dict)

    corpus = (b'{"command": "status"}\n', b'{"command": "leave", "now": true, "more": {"a": [1, 2]}}\n')
    return Target(name="control-request", run=run, corpus=corpus, refuses=(_Refused,), tokens=LITERALS, limit=65536)


def control_reply() -> Target:
    def run(raw: bytes) -> None:
        reply = _parse_reply(raw)
        assert reply is None or isinstance(reply, dict)

    replies = ({"round": 3, "peers": [{"id": "x"}]}, {"a": None})
    return Target(
        name="control-reply",
        run=run,
        corpus=tuple(json.dumps(reply).encode() + b"\n" for reply in replies),
        refuses=(ValueError, PeerError),
        tokens=(*LITERALS, b'"error": "x",', b'"error": null,', b'"reason": 3,'),
        limit=65536,
    )


TARGETS = (manifest, overrides, amendment, paper, statement_line, ticket, control_request, control_reply)
