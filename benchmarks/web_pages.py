"""Do the pages tell the truth, live, to everybody who looks, and do they obey the volunteer alone?

    python -m benchmarks.web_pages --axe FILE [--chromium FILE] [--images DIR] [--json FILE] [--results]

Needs playwright (the extra `pages`), Debian's chromium, and `axe.min.js` of the npm package axe-core. Six real peers
train on loopback with an operator's node. Headless Chromium looks at the page of the first peer and at the run's. One
peer is killed and another one joins meanwhile.

Bounds: every number on a page is that of the daemon's status, no page has an error or a violation of accessibility, and
nobody without the token changes anything. About six minutes."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.errors import NotRunning, PartnerRefused
from peer.node.control import send_command
from peer.node.open import LocalNode, open_node
from peer.protocol.messages import PeerRecord, RunId, Status
from peer.protocol.summary.values import PeerSummary
from peer.python_child import start_python
from peer.run.options import NodeOptions
from peer.run.ticket import Ticket
from peer.signed_summary import seal_summary

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

ABOUT = Benchmark(
    "web_pages",
    "Do the pages tell the truth, live, to everybody who looks, and do they obey the volunteer alone?",
    "bound: numbers of `peer status`, at most 2 s old; 100 viewers below 5 % of a core; no action without the token",
    smallest="--axe axe.min.js",
    needs=("python:playwright", "chromium"),
    is_long=True,
)
PEERS = 6
SETTINGS = (
    "sync.clock=seconds", "sync.sync_every=12", "train.total_rounds=10000", "train.batch=2", "train.eval_every=5",
    "train.eval_windows=16",
)  # fmt: skip
PACE = ("--threads", "1", "--step-seconds", "0.3", "--checkpoint-every", "60", "--plain", "--yes")
PLACE = ("--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--no-lan", "--no-port-mapping", "--leave-on-eof")
WAIT_S, POLL_S = 600.0, 0.1
VIEWERS, MORE = 100, 5
LOAD_S = 20.0
EXPECTED = ("401 (Unauthorized)", "ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING")
"""Expected errors of a browser: refused actions, and a daemon that has ended."""
SIZES = {"phone": (390, 844), "desktop": (1280, 900)}
SCHEMES = ("light", "dark")
KEPT = {"volunteer-desktop-light", "volunteer-phone-dark", "run-desktop-dark", "run-phone-light"}
"""Screenshots that are stored for the guide."""
URL = re.compile(r"page: (http://\S+/)")
Row = dict[str, Any]
# Numbers that both the page and the status show: name in the page -> path in the status.
VOLUNTEER = {
    "round": ("round",),
    "tokens": ("tokens",),
    "loss": ("loss",),
    "tokens-per-s": ("tokens_per_s",),
    "exchanged": ("rounds", "exchanged"),
    "sent": ("bytes_sent",),
    "received": ("bytes_received",),
}
RUN = {
    "round": ("view", "round"),
    "peers-count": ("view", "totals", "peers"),
    "tokens-per-s": ("view", "totals", "median_tokens_per_s"),
    "participation": ("view", "totals", "participation"),
    "spread": ("view", "totals", "spread"),
}


@dataclass
class Daemon:
    """One process of the swarm with its own home."""

    home: Path
    process: asyncio.subprocess.Process | None = None

    async def start(self, *arguments: str) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        command = ["peer", *arguments, *PLACE, "--home", str(self.home)]
        with (self.home / "daemon.log").open("ab") as log:
            self.process = await start_python(
                *command, stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log, cwd=self.home
            )

    @property
    def log(self) -> str:
        return (self.home / "daemon.log").read_text(errors="replace")

    @property
    def url(self) -> str:
        found = URL.search(self.log)
        return found.group(1) if found else ""

    async def status(self) -> Row:
        """Return the status as `peer status --json` prints it. Empty: no daemon answers yet."""
        try:
            return await send_command(self.home / "control.sock", "status")
        except NotRunning:
            return {}

    def cpu_s(self) -> float:
        """Return the processor seconds of the daemon without its children."""
        assert self.process is not None
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system

    async def end(self) -> None:
        if self.process is None or self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            async with asyncio.timeout(40):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


@dataclass
class Swarm:
    """The operator's node, its peers, and errors seen in a browser."""

    folder: Path
    node: Daemon
    peers: list[Daemon] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    async def join(self, *more: str) -> Daemon:
        peer = Daemon(self.folder / f"peer-{len(self.peers) + 1}")
        self.peers.append(peer)
        await peer.start("join", f"@{self.folder / 'ticket'}", *PACE, *more)
        return peer


async def until(done: Callable[[], Awaitable[bool]], what: str, limit_s: float = WAIT_S) -> float:
    """Poll until `done`. Return the seconds that it took. Raises Failed."""
    began = time.monotonic()
    while not await done():
        if time.monotonic() - began > limit_s:
            raise Failed(f"not within {limit_s:.0f} s: {what}")
        await asyncio.sleep(POLL_S)
    return time.monotonic() - began


@contextlib.asynccontextmanager
async def swarm(folder: Path) -> AsyncIterator[Swarm]:
    """Run a training swarm. All its processes are ended afterwards."""
    made = Swarm(folder, Daemon(folder / "node"))
    command = ["peer", "manifest", "new", str(folder / "run.toml"), "--home"]
    sets = [f"--set={one}" for one in SETTINGS]
    new = await start_python(*command, str(folder / "node"), "--preset", "gossip", *sets)
    if await new.wait():
        raise Failed("no manifest")
    ticket = folder / "ticket"
    try:
        await made.node.start(
            "bootstrap", str(folder / "run.toml"), "--ticket-file", str(ticket), "--web", "127.0.0.1:0", "--no-check"
        )
        await until(lambda: _true(ticket.exists() and bool(ticket.read_text().strip())), "a ticket")
        await made.join("--web", "127.0.0.1:0")
        for _ in range(PEERS - 1):
            await made.join()

        async def trains() -> bool:
            told = [await peer.status() for peer in made.peers]
            return all(one.get("rounds", {}).get("exchanged", 0) >= 2 for one in told)

        await until(trains, "exchanges of all")
        yield made
    finally:
        await asyncio.gather(*(daemon.end() for daemon in (*made.peers, made.node)))


async def _true(value: bool) -> bool:
    return value


class Failed(Exception):
    """A page or swarm failed at something that the rest depends on."""


def at(report: Row, path: tuple[str, ...]) -> Any:
    found: Any = report
    for name in path:
        found = (found or {}).get(name)
    return found


async def shown(page: Page, names: list[str]) -> dict[str, float | None]:
    """Return the numbers shown in the page."""
    read = "names => Object.fromEntries(names.map(n => [n, document.getElementById(n).value]))"
    found = await page.evaluate(read, names)
    return {name: float(value) if value else None for name, value in found.items()}


async def opened(browser: Browser, made: Swarm, url: str, size: str = "desktop", scheme: str = "light") -> Page:
    """Open a page and record its errors."""
    width, height = SIZES[size]
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    page = await context.new_page()
    complain = made.complaints.extend
    page.on("console", lambda said: complain([said.text] if said.type in ("error", "warning") else []))
    page.on("pageerror", lambda error: complain([str(error)]))
    ours = ("about:", url.partition("#")[0])
    page.on("request", lambda asked: complain([] if asked.url.startswith(ours) else [asked.url]))
    await page.goto(url)
    await page.wait_for_function("document.getElementById('live').textContent === 'live'")
    return page


async def lags(daemon: Daemon, page: Page, name: str, path: tuple[str, ...], times: int = 8) -> list[float]:
    """Return the seconds between a number's change in the status and in the page, several times."""
    found = []
    for _ in range(times):
        before = at(await daemon.status(), path)

        async def changed(before: float = before) -> bool:
            return (at(await daemon.status(), path) or before) > before

        async def there(before: float = before) -> bool:
            return ((await shown(page, [name]))[name] or 0) > before

        await until(changed, f"{name} grows in the status", 60)
        found.append(await until(there, f"{name} above {before} in the page", 20))
    return found


async def equal(daemon: Daemon, page: Page, names: dict[str, tuple[str, ...]], limit_s: float) -> list[str]:
    """Return the names whose number in the page never equals that of the status within the limit. Each is checked by
    itself."""
    missing = set(names)
    end = time.monotonic() + limit_s
    while missing and time.monotonic() < end:
        before = await daemon.status()
        told = await shown(page, list(names))
        after = await daemon.status()
        for name in list(missing):
            if told[name] in (at(before, names[name]), at(after, names[name])) and told[name] is not None:
                missing.discard(name)
        await asyncio.sleep(POLL_S)
    return sorted(missing)


async def refused(page: Page, url: str) -> tuple[int, int]:
    """Return how many actions without the token were tried, and how many were refused."""
    script = """async (url) => {
      const tried = [];
      for (const action of ["pause", "resume", "leave"])
        for (const proof of [undefined, "Bearer", "Bearer x", "Bearer undefined", "Basic x"])
          tried.push((await fetch(url + "api/" + action, {method: "POST",
            headers: proof ? {Authorization: proof} : {}})).status);
      return tried;
    }"""
    statuses = await page.evaluate(script, url)
    return len(statuses), sum(status == 401 for status in statuses)


async def forge(folder: Path) -> str:
    """Return the node's answer to a summary with a forged signature."""
    ticket = Ticket.decode((folder / "ticket").read_text())
    home, operator = folder / "forger", ticket.addresses[0].rpartition("/")[2]
    wishes = NodeOptions(
        home=home, initial_peers=ticket.addresses, host_maddrs=("/ip4/127.0.0.1/tcp/0",), lan=False, port_mapping=False
    )
    local = LocalNode.of(wishes, RunId(ticket.run_id), lambda line: None)
    async with open_node(local) as node:
        found: list[PeerRecord] = []

        async def known() -> bool:
            found[:] = [one for one in (await node.directory.peers()).values() if one.peer_id == operator]
            return bool(found)

        await until(known, "the node in the directory", 60)
        now = local.clock.now()
        claim = PeerSummary(peer_id=local.me, run_id=local.run_id, issued_at=now, round=1, status=Status.TRAINING)
        honest = seal_summary(claim, local.identity)
        forged = honest[:-1] + bytes([honest[-1] ^ 1])
        try:
            return await node.transport.send_summary(found[0], forged, 20.0) or "taken"
        except PartnerRefused as refusal:
            return refusal.code


async def raw(url: str, request: str) -> int:
    """Send raw bytes and return the HTTP status of the answer."""
    host, _, port = url.removeprefix("http://").strip("/").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request.encode())
        return int((await reader.readline()).split()[1])
    finally:
        writer.close()


async def crowd(url: str, daemon: Daemon) -> Row:
    """Connect a hundred viewers. Return their cost for the daemon, and how many further ones are refused."""
    host, _, port = url.removeprefix("http://").strip("/").partition(":")
    ask_for = f"GET /api/events HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: text/event-stream\r\n\r\n".encode()
    got = [0]

    async def alone() -> float:
        began = daemon.cpu_s()
        await asyncio.sleep(LOAD_S)
        return (daemon.cpu_s() - began) / LOAD_S

    async def look() -> asyncio.StreamWriter | int:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(ask_for)
        status = int((await reader.readline()).split()[1])
        if status != 200:
            writer.close()
            return status
        reading.append(asyncio.create_task(drain(reader)))
        return writer

    async def drain(reader: asyncio.StreamReader) -> None:
        while data := await reader.read(65536):
            got[0] += len(data)

    reading: list[asyncio.Task[None]] = []
    before = await alone()
    came = [await look() for _ in range(VIEWERS + MORE)]
    viewers = [one for one in came if not isinstance(one, int)]
    got[0] = 0
    during = await alone()
    received = got[0] / LOAD_S
    for writer in viewers:
        writer.close()
    await asyncio.gather(*reading, return_exceptions=True)
    await asyncio.sleep(2)
    after = await alone()
    return {
        "viewers": len(viewers),
        "refused": sum(one == 503 for one in came),
        "share": during - (before + after) / 2,
        "before": before,
        "during": during,
        "after": after,
        "bytes_s": received / max(1, len(viewers)),
    }


async def pictures(browser: Browser, made: Swarm, pages: dict[str, str], axe: str, images: Path | None) -> list[Row]:
    """Return the accessibility violations that axe-core finds, for each page, size and scheme. Takes the
    screenshots."""
    found = []
    for name, url in pages.items():
        for size in SIZES:
            for scheme in SCHEMES:
                page = await opened(browser, made, url, size, scheme)
                await page.wait_for_timeout(1500)
                rules = await page.evaluate(f"{axe}; axe.run().then(r => r.violations.map(v => v.id))")
                wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
                found.append({"page": name, "size": size, "scheme": scheme, "rules": rules, "overflow": wide})
                if images is not None and f"{name}-{size}-{scheme}" in KEPT:
                    await page.screenshot(path=images / f"web-{name}-{size}-{scheme}.png")
                await page.context.close()
    return found


async def play(given: argparse.Namespace, folder: Path) -> tuple[list[Figure], list[Table]]:
    """Run the whole benchmark. Raises Failed."""
    from playwright.async_api import async_playwright  # an optional dependency

    axe = given.axe.read_text()
    async with async_playwright() as driver, swarm(folder) as made:
        browser = await driver.chromium.launch(executable_path=given.chromium, args=["--no-sandbox"])
        first, node = made.peers[0], made.node
        secret = (first.home / "web.token").read_text().strip()
        own = await opened(browser, made, first.url)
        run = await opened(browser, made, node.url)
        tried, no = await refused(own, first.url)
        name, port = "evil.example", first.url.strip("/").rpartition(":")[2]
        post = f"POST /api/leave HTTP/1.1\r\nAuthorization: Bearer {secret}\r\nContent-Length: 0\r\n"
        foreign = [
            await raw(first.url, f"GET /api/snapshot HTTP/1.1\r\nHost: {name}:{port}\r\n\r\n"),
            await raw(first.url, f"{post}Host: {name}\r\n\r\n"),
            await raw(first.url, f"{post}Host: 127.0.0.1:{port}\r\nOrigin: http://{name}\r\n\r\n"),
        ]
        own_lags = await lags(first, own, "tokens", ("tokens",))
        run_lags = await lags(node, run, "round", ("view", "round"))
        different = await equal(first, own, VOLUNTEER, 60) + await equal(node, run, RUN, 60)

        answer = await forge(folder)

        async def dropped() -> bool:
            return "forged" in (await run.text_content("#dropped") or "")

        forged_s = await until(dropped, "the forged summary among the dropped ones in the page", 20)
        victim = made.peers[3]
        assert victim.process is not None
        victim.process.send_signal(signal.SIGKILL)
        await made.join()
        known = {one["peer_id"] for one in (await first.status())["peers"]}

        async def newcomer() -> bool:
            told = [one["peer_id"] for one in (await first.status()).get("peers", ())]
            return bool(set(told) - known)

        await until(newcomer, "the newcomer in the status")
        told = next(one["peer_id"] for one in (await first.status())["peers"] if one["peer_id"] not in known)
        listed = "id => [...document.querySelectorAll('#partners td[title]')].some(one => one.title === id)"

        async def in_page() -> bool:
            return bool(await own.evaluate(listed, told))

        came_s = await until(in_page, "the newcomer in the page", 20)
        found = await pictures(
            browser, made, {"volunteer": f"{first.url}#token={secret}", "run": node.url}, axe, given.images
        )
        for page in (own, run):  # each page would count as a viewer
            await page.goto("about:blank")
        loads = {"a peer": await crowd(first.url, first), "the node": await crowd(node.url, node)}

        await own.goto(f"{first.url}#token={secret}")
        await own.reload()
        await own.wait_for_selector("#unlocked:not([hidden])")
        await own.focus("#pause")
        await own.keyboard.press("Enter")

        async def paused() -> bool:
            return bool((await first.status()).get("paused", {}).get("now") != "no")

        pause_s = await until(paused, "a pause by the page", 20)
        await asyncio.sleep(12)
        still = await equal(
            first, own, {name: VOLUNTEER[name] for name in ("round", "tokens", "loss", "exchanged")}, 10
        )
        await own.click("#resume")

        async def goes_on() -> bool:
            return not await paused()

        await until(goes_on, "the end of the pause", 20)
        await own.click("#leave")
        await own.click("#leave-now")
        assert first.process is not None
        began = time.monotonic()
        async with asyncio.timeout(60):
            code = await first.process.wait()
        left_s = time.monotonic() - began
        last_words = await own.text_content("#live")
        leaked = sum(secret in daemon.log for daemon in (first, node))
        await browser.close()
        complaints = [one for one in made.complaints if not any(word in one for word in EXPECTED)]
    rules = sum(len(one["rules"]) for one in found)
    figures = [
        Figure("oldest number of the peer's page", "s", max(own_lags), at_most=2.0),
        Figure("oldest number of the run's page", "s", max(run_lags), at_most=2.0),
        Figure("numbers that differ from the status", "", len(different), at_most=0),
        Figure("numbers that differ during a pause", "", len(still), at_most=0),
        Figure("newcomer in the page after the status", "s", came_s, at_most=2.0),
        Figure("actions without the token that were done", f"of {tried}", tried - no, at_most=0),
        Figure("foreign hosts and origins answered", "of 3", sum(one in (200, 204) for one in foreign), at_most=0),
        Figure("forged summaries taken", "of 1", answer == "taken", at_most=0),
        Figure("forged summary counted in the page", "s", forged_s, at_most=2.0),
        Figure("violations that axe-core finds", "", rules, at_most=0),
        Figure("pages wider than the screen", "", sum(one["overflow"] > 0 for one in found), at_most=0),
        Figure("complaints of the browser", "", len(complaints), at_most=0),
        Figure("logs with the token", "", leaked, at_most=0),
        Figure("pause by the keyboard", "s", pause_s, at_most=2.0),
        Figure("exit code after leaving by the page", "", code, at_most=0),
        Figure("leaving by the page", "s", left_s, at_most=30.0),
    ]
    for whose, load in loads.items():
        figures += [
            Figure(f"viewers of {whose}", "", load["viewers"], at_least=VIEWERS, at_most=VIEWERS),
            Figure(f"100 viewers of {whose}", "share of a core", load["share"], at_most=0.05),
            Figure(f"viewers of {whose} refused with 503", f"of {MORE}", load["refused"], at_least=MORE, at_most=MORE),
        ]
    for line in (different, still, complaints, foreign, last_words, found):
        print(line)
    heads = ["whose page", "before", "with 100 viewers", "after", "bytes a second to each"]
    rows = [[whose, load["before"], load["during"], load["after"], load["bytes_s"]] for whose, load in loads.items()]
    looks = [[one["page"], one["size"], one["scheme"], ", ".join(one["rules"]) or "none"] for one in found]
    return figures, [
        Table("Share of a core that the daemon took", heads, rows),
        Table("Findings of axe-core", ["page", "size", "scheme", "violations"], looks),
    ]


def main() -> int:
    parser = options(__doc__)
    parser.add_argument(
        "--axe", type=Path, required=True, metavar="FILE", help="axe.min.js of the npm package axe-core"
    )
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--images", type=Path, metavar="DIR", help="keep the pictures of the pages here")
    given = parsed(parser, ABOUT)
    with tempfile.TemporaryDirectory() as folder:
        try:
            figures, tables = asyncio.run(play(given, Path(folder)))
        except Failed as error:
            logs = {
                path.parent.name: path.read_text(errors="replace")[-600:] for path in Path(folder).glob("*/daemon.log")
            }
            print(json.dumps(logs, indent=1), file=sys.stderr)
            print(f"failed: {error}", file=sys.stderr)
            return 1
    return 0 if publish(given, ABOUT, figures, *tables) else 1


if __name__ == "__main__":
    sys.exit(main())
