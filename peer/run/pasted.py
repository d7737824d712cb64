"""Base32 tokens (tickets, invitations) found in what mail programs, chats, editors and shells make of them.

A token knows its own length and has a checksum. So the reader may be generous about what stands around and between its
characters."""

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
"""Places of a text that are tried, where a token seems to begin."""
_BREAK = re.compile(r"[=\\-]?\s+(?:[>|]+\s*)*")
"""Between two characters of a token: white space, behind the mark of a soft line break (quoted-printable), a shell's
continued line or hyphenation, and before the marks of a quoted mail."""
_AROUND = "\"'`“”‘’<>()[]{}*_|.,;:!?/ "
_BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


class Pasted(NamedTuple):
    """A token found in pasted text.

    `token`: its characters in lower case, not verified yet. `rest`: the text after it, on one line."""

    token: str
    rest: str


def given_text(argument: str, most: int, what: str) -> str:
    """Return a command's argument, or the text of the file that `@FILE` names, cleaned: at most `most` characters.

    `what`: the word for what is read, for the error. Raises TicketError when the file cannot be read."""
    if not argument.startswith("@"):
        return cleaned(argument[:most])
    path = argument[1:]
    try:
        with Path(path).open("rb") as file:
            raw = file.read(2 * most)  # two bytes a character in UTF-16
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise TicketError(f"cannot read {what} from {path}: {reason}", f"Name a file that holds {what}.") from None
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS.items() if raw.startswith(mark)), "utf-8")
    return cleaned(raw.decode(encoding, errors="replace")[:most])


def cleaned(text: str) -> str:
    """Return a text without invisible characters (byte order marks, zero-width spaces, soft hyphens), and with
    full-width letters as plain ones."""
    plain = unicodedata.normalize("NFKC", text)
    return "".join(c for c in plain if c.isspace() or unicodedata.category(c) not in ("Cc", "Cf"))


def token_at(text: str, start: int, length_of: Callable[[str], float]) -> Pasted:
    """Collect the token that begins at `start`.

    `length_of(characters)`: how many characters a token has that begins with these, as far as they tell. Infinite: they
    are none of a token. The error is then left to the token's decoder, which sees all up to the next other sign."""
    found, at, length = list[str](), start, 1.0
    while at < len(text):
        if text[at].isalnum():
            found.append(text[at].lower())
            at += 1
            if len(found) == length:
                length = length_of("".join(found))
        elif len(found) >= length:  # one more letter at once would be a mistake
            break
        elif between := _BREAK.match(text, at):
            at = between.end()
        else:
            break
    words = (word.strip(_AROUND) for word in text[at:].split())
    return Pasted("".join(found), " ".join(word for word in words if word))


def characters_of(nbytes: int) -> int:
    """Return how many characters of base32 hold so many bytes."""
    return math.ceil(8 * nbytes / 5)
