"""Explains why given addresses do not answer, for a person who waits for the swarm."""

from __future__ import annotations

import asyncio
import os
import re
import socket

_LINE = re.compile(r"^ *\* \[([^\]]+)\] (.*)$", re.MULTILINE)
_OTHER_KEY = re.compile(r"peer id mismatch: expected \w+, but remote key matches (\w+)")
_TOO_EARLY = "dial backoff"
_LONGEST = 160


def dial_failure_reason(said: str, address: str) -> str:
    """Return why a dial of `address` (without its peer id) failed.

    `said`: p2pd's message, which lists all known addresses of that peer. The reason is empty if the message only says
    that it is too early to dial again."""
    if "dial to self" in said:
        return "this is our own address"
    lines = _LINE.findall(said)
    own = [reason for where, reason in lines if where == address]
    # p2pd lists the addresses that a DNS name resolves to, with the same port
    if not own and address.startswith("/dns"):
        port = address[address.index("/tcp/") :]
        own = [reason for where, reason in lines if where.endswith(port)] or ["no such host"]
    if own == [_TOO_EARLY] or (lines and not own):
        return ""
    return _in_words(own[-1] if own else said)


def _in_words(reason: str) -> str:
    if other := _OTHER_KEY.search(reason):
        return f"answers with another key: it is {other[1]}"
    for sign, words in (
        ("connection refused", "connection refused: nothing listens there"),
        ("no route to host", "no route to this host"),
        ("network is unreachable", "no route to this network"),
        ("no such host", "the name is not known"),
        ("no addresses", "the name is not known"),
        ("timeout", "no answer"),
        ("deadline exceeded", "no answer"),
        ("failed to negotiate", "something answers that is no peer"),
        ("EOF", "something answers that is no peer"),
    ):
        if sign in reason:
            return words
    return reason.removeprefix("failed to dial: ").replace("\n", " ")[:_LONGEST]


_FAMILIES = {"ip4": socket.AF_INET, "ip6": socket.AF_INET6, "dns4": socket.AF_INET, "dns6": socket.AF_INET6}


async def tcp_failure_reason(address: str, timeout_s: float) -> str:
    """Try a TCP connection to a multiaddr without a peer id. Return why it failed; empty: it was accepted."""
    _, kind, host, _, port = address.split("/")
    try:
        async with asyncio.timeout(timeout_s):
            family = _FAMILIES.get(kind, socket.AF_UNSPEC)
            _, writer = await asyncio.open_connection(host, int(port), family=family)
            writer.close()
    except TimeoutError:
        return f"no answer within {timeout_s:.0f} s"
    except socket.gaierror:
        return _in_words("no such host")
    except OSError as error:  # several addresses of one name that all failed have no errno in common
        return _in_words(os.strerror(error.errno).lower() if error.errno else str(error).lower())
    return ""
