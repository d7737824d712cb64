"""The port mapper with routers that are slow, refuse, give wrong answers or restart."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.observe.status.codec import to_json
from peer.protocol.swarm.port_lease import PortLease, PortMapping, RouterRefusal, Surroundings
from peer.transport.port_mapping.mapper import ASK_S, GIVE_BACK_S, PortMapper

OWN, SEEN = 4811, "45.77.1.1"
CLOSED = Surroundings(reachable=False, seen=SEEN)
THROUGH = Surroundings(reachable=True, reached=(f"{SEEN}:{OWN}",), seen=SEEN)
SILENT = RouterRefusal("no router in this network answers UPnP")


@dataclass
class FakeRouter:
    """Opens any port after a delay."""

    takes_s: float = 1.0
    refuses: RouterRefusal | None = None
    open_ports: set[int] = field(default_factory=set)
    asked_at: list[float] = field(default_factory=list)
    stopped: int = 0
    """Calls that were cancelled."""

    async def open(
        self, ports: Sequence[int], inner: int, lease_s: float, timeout_s: float
    ) -> PortMapping | RouterRefusal:
        self.asked_at.append(asyncio.get_running_loop().time())
        if not await self._works(timeout_s):
            return RouterRefusal("too slow")
        if self.refuses is not None:
            return self.refuses
        self.open_ports.add(ports[0])
        return PortMapping(port=ports[0], router="192.168.7.1", address=SEEN, lease_s=lease_s)

    async def close(self, port: int, inner: int, timeout_s: float) -> str:
        if not await self._works(timeout_s):
            return "too slow"
        self.open_ports.discard(port)
        return ""

    async def _works(self, timeout_s: float) -> bool:
        try:
            await asyncio.sleep(min(self.takes_s, timeout_s))
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        return self.takes_s <= timeout_s


@dataclass
class Home:
    router: FakeRouter = field(default_factory=FakeRouter)
    here: Surroundings = CLOSED
    left_over: int = 0
    told: list[tuple[int, str]] = field(default_factory=list)
    kept: int = 0

    def mapper(self) -> PortMapper:
        lease = PortLease(OWN, random.Random(1), EPOCH, self.left_over)

        def keep(port: int) -> None:
            self.kept = port

        def tell(port: int, why: str) -> None:
            self.told.append((port, why))

        return PortMapper(lease, OWN, self.router, VirtualClock(), lambda: self.here, tell, keep)


def played(home: Home, play: Callable[[PortMapper], Awaitable[None]]) -> None:
    """Run a mapper through a scenario, and close it."""

    async def main() -> None:
        mapper = home.mapper()
        mapper.start()
        await play(mapper)
        await mapper.close()

    run_virtual(main())


def test_a_port_is_held_renewed_and_given_back() -> None:
    home = Home()

    async def play(mapper: PortMapper) -> None:
        await asyncio.sleep(10)
        assert mapper.endpoints() == (f"{SEEN}:{OWN}",)
        assert not mapper.carries(), "nobody got through yet"
        assert to_json(mapper.report())["value"] is None
        assert home.kept == OWN
        home.here = THROUGH
        await asyncio.sleep(5 * 3600 - 60)
        assert mapper.carries()
        assert to_json(mapper.report())["value"] is True
        assert home.router.open_ports == {OWN}

    played(home, play)
    assert home.router.open_ports == set()
    assert home.kept == 0
    assert len(home.router.asked_at) == 10, "each half hour"
    assert [port for port, _ in home.told] == [OWN, 0]


def test_a_peer_that_can_be_dialled_asks_no_router() -> None:
    home = Home(here=THROUGH)

    async def play(mapper: PortMapper) -> None:
        await asyncio.sleep(3600)
        assert mapper.endpoints() == ()
        assert to_json(mapper.report()) == {
            "value": False,
            "why": "no router is asked: others reach this peer without it",
        }

    played(home, play)
    assert home.router.asked_at == []
    assert home.told == []


def test_a_refusal_is_told_once_and_asked_again_more_and_more_rarely() -> None:
    home = Home(FakeRouter(refuses=SILENT))

    async def play(mapper: PortMapper) -> None:
        await asyncio.sleep(24 * 3600)
        assert mapper.endpoints() == ()

    played(home, play)
    assert home.told == [(0, SILENT.why)]
    assert 24 <= len(home.router.asked_at) <= 30
    assert home.kept == 0


def test_a_slow_router_holds_up_neither_the_loop_nor_the_end() -> None:
    home = Home(FakeRouter(takes_s=1e9))

    async def play(mapper: PortMapper) -> None:
        await asyncio.sleep(ASK_S + 5)
        assert home.told == [(0, "too slow")]
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(70)  # the router is being asked a second time
        assert len(home.router.asked_at) == 2
        await mapper.close()
        assert asyncio.get_running_loop().time() - began - 70 <= GIVE_BACK_S

    played(home, play)
    assert home.router.stopped == 1


def test_a_router_that_lies_is_told_once() -> None:
    home = Home()

    async def play(mapper: PortMapper) -> None:
        await asyncio.sleep(5)
        home.here = replace(CLOSED, denied=frozenset([f"{SEEN}:{OWN}"]))
        await asyncio.sleep(10 * 3600)
        assert not mapper.carries()
        assert to_json(mapper.report())["value"] is None

    played(home, play)
    assert [port for port, _ in home.told] == [OWN, OWN, 0]
    assert "nobody gets through" in home.told[1][1]


def test_a_router_that_started_anew_is_asked_again() -> None:
    home = Home()

    async def play(mapper: PortMapper) -> None:
        await asyncio.sleep(5)
        home.here = THROUGH
        await asyncio.sleep(200)
        home.router.open_ports.clear()
        home.here = replace(CLOSED, denied=frozenset([f"{SEEN}:{OWN}"]))
        await asyncio.sleep(10)
        assert home.router.open_ports == {OWN}

    played(home, play)


def test_where_a_router_may_not_be_asked_any_more_the_port_is_given_back() -> None:
    home = Home()

    async def play(mapper: PortMapper) -> None:
        await asyncio.sleep(5)
        home.here = replace(CLOSED, skip_reason="the run lies in a private network")
        await asyncio.sleep(5)
        assert home.router.open_ports == set()
        assert to_json(mapper.report())["value"] is False

    played(home, play)


def test_what_was_being_asked_for_at_the_end_is_closed() -> None:
    home = Home(FakeRouter(takes_s=3.0))

    async def play(mapper: PortMapper) -> None:
        await asyncio.sleep(1.0)
        home.router.open_ports.add(OWN)  # it did so, and its answer is under way

    played(home, play)
    assert home.router.stopped == 1
    assert home.router.open_ports == set()


def test_a_port_of_an_earlier_life_is_taken_up() -> None:
    home = Home(here=THROUGH, left_over=OWN)

    async def play(mapper: PortMapper) -> None:
        await asyncio.sleep(5)
        assert mapper.carries()

    played(home, play)
    assert home.router.open_ports == set()


def test_two_may_close_it_at_once_and_one_that_never_began() -> None:
    home = Home()

    async def main() -> None:
        mapper = home.mapper()
        await mapper.close()
        other = home.mapper()
        other.start()
        await asyncio.sleep(5)
        await asyncio.gather(other.close(), other.close())
        await other.close()

    run_virtual(main())
    assert [port for port, _ in home.told] == [OWN, 0]
