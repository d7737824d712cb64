"""Finds base32 tokens (tickets, invitations) in text that mail programs, chats, editors and shells have reformatted.

A token encodes its own length and has a checksum, so that the reader can tolerate other characters around and within
it."""

from __future__ import annotations

import codecs
import math
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from peer.errors import TicketError

MOST_STARTS = 20
"""Number of possible starts of a token that are tried in a text."""
_BREAK = re.compile(r"[=\\-]?\s+(?:[>|]+\s*)*")
"""What may separate two characters of a token: white space, preceded by the mark of a soft line break
(quoted-printable), of a shell's line continuation or of hyphenation, and followed by the marks of quoted mail."""
_AROUND = "\"'`“”‘’<>()[]{}*_|.,;:!?/ "
_BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


class Pasted(NamedTuple):
    """A token found in pasted text.

    `token`: its characters in lower case, not verified. `rest`: the text after it, on one line."""

    token: str
    rest: str


def given_text(argument: str, most: int, what: str) -> str:
    """Return a command's argument, or the text of the file that `@FILE` names, cleaned and cut to `most` characters.

    `what`: name of the expected content, for the error. Raises TicketError when the file cannot be read."""
    if not argument.startswith("@"):
        return cleaned(argument[:most])
    path = argument[1:]
    try:
        with Path(path).open("rb") as file:
            raw = file.read(2 * most)  # UTF-16 takes two bytes per character
    except (OSError, ValueError) as error:  # ValueError: the name contains a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise TicketError(f"cannot read {what} from {path}: {reason}", f"Name a file that holds {what}.") from None
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS.items() if raw.startswith(mark)), "utf-8")
    return cleaned(raw.decode(encoding, errors="replace")[:most])


def cleaned(text: str) -> str:
    """Return a text without invisible characters (byte order marks, zero-width spaces, soft hyphens), and with
    full-width letters replaced by plain ones."""
    plain = unicodedata.normalize("NFKC", text)
    return "".join(c for c in plain if c.isspace() or unicodedata.category(c) not in ("Cc", "Cf"))


def token_at(text: str, start: int, length_of: Callable[[str], float]) -> Pasted:
    """Collect the token that begins at `start`.

    `length_of(characters)`: returns the length of a token that begins with these characters, as far as they determine
    it. Infinite: no token begins so. Then all characters up to the next separator are returned, and the decoder of the
    token reports the error."""
    found, at, length = list[str](), start, 1.0
    while at < len(text):
        if text[at].isalnum():
            found.append(text[at].lower())
            at += 1
            if len(found) == length:
                length = length_of("".join(found))
        elif len(found) >= length:  # complete, and followed by a separator
            break
        elif between := _BREAK.match(text, at):
            at = between.end()
        else:
            break
    words = (word.strip(_AROUND) for word in text[at:].split())
    return Pasted("".join(found), " ".join(word for word in words if word))


def characters_of(nbytes: int) -> int:
    """Return the number of base32 characters that encode this many bytes."""
    return math.ceil(8 * nbytes / 5)
