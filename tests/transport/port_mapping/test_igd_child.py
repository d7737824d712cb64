"""The UPnP client: its requests to routers, and the decoding of their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from peer.transport.port_mapping import igd_child
from peer.transport.port_mapping.igd_child import Answer

AT = "http://192.168.7.1:5000/rootDesc.xml"
OUR, OTHERS = "192.168.7.10", "192.168.7.11"
OPEN: Answer = {"do": "open", "ports": [4811, 30000, 30001], "inner": 4811, "hosts": [], "lease_s": 3600}
CLOSE: Answer = {"do": "close", "ports": [4811], "inner": 4811, "hosts": []}


@dataclass
class FakeIgd:
    """A router with the interface of `miniupnpc`. Entries: port -> (host, port of the host, lease)."""

    lanaddr: str = OUR
    url: str = "http://192.168.7.1:5000/ctl"
    address: str = "45.77.1.1"
    entries: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    says: str = ""
    """The router's answer to each port that it is requested to open."""
    only_permanent: bool = False
    lists: bool = True
    given_s: int | None = None

    def selectigd(self, location: str) -> str:
        if location != AT:
            raise Exception("No UPnP device discovered")
        return self.url

    def externalipaddress(self) -> str:
        if not self.address:
            raise Exception("Invalid Action")
        return self.address

    def getspecificportmapping(self, port: int, protocol: str) -> tuple[str, int, str, bool, int] | None:
        if not self.lists or port not in self.entries:
            return None
        host, inner, lease_s = self.entries[port]
        return host, inner, "peer", True, lease_s

    def addportmapping(
        self, port: int, protocol: str, host: str, inner: int, name: str, remote: str, lease_s: int
    ) -> bool:
        assert (protocol, host, name, remote) == ("TCP", OUR, "peer", "")
        if self.only_permanent and lease_s:
            raise Exception("OnlyPermanentLeasesSupported")
        if self.says or (port in self.entries and self.entries[port][0] != host):
            raise Exception(self.says or "ConflictInMappingEntry")
        self.entries[port] = (host, inner, lease_s if self.given_s is None else self.given_s)
        return True

    def deleteportmapping(self, port: int, protocol: str) -> bool:
        if self.says:
            raise Exception(self.says)
        del self.entries[port]
        return True


def answer(job: Answer, igd: FakeIgd, locations: Sequence[str] = (AT,)) -> Answer:
    return igd_child.answer(job, igd, locations)


def test_a_port_is_opened_for_as_long_as_was_asked() -> None:
    igd = FakeIgd()
    assert answer(OPEN, igd) == {"router": "192.168.7.1", "address": "45.77.1.1", "port": 4811, "lease_s": 3600}
    assert igd.entries == {4811: (OUR, 4811, 3600)}
    assert answer(OPEN, igd)["lease_s"] == 3600, "renewed"


@pytest.mark.parametrize(("given_s", "found"), [(120, 120), (0, 3600), (10**9, 3600), (-5, 3600)])
def test_the_lease_that_the_router_gives_counts_where_it_is_shorter(given_s: int, found: int) -> None:
    assert answer(OPEN, FakeIgd(given_s=given_s))["lease_s"] == found


def test_a_router_need_not_list_what_it_opened() -> None:
    assert answer(OPEN, FakeIgd(lists=False))["lease_s"] == 3600


def test_a_router_without_leases_opens_until_it_is_told() -> None:
    igd = FakeIgd(only_permanent=True)
    assert answer(OPEN, igd)["lease_s"] == 0
    assert answer(CLOSE, igd) == {"closed": 4811}


def test_a_port_of_another_machine_or_program_is_left_alone() -> None:
    theirs = {4811: (OTHERS, 4811, 60), 30000: (OUR, 22, 60)}
    igd = FakeIgd(entries=dict(theirs))
    assert answer(OPEN, igd)["port"] == 30001
    assert theirs.items() <= igd.entries.items()
    assert answer(CLOSE, igd) == {"closed": 0}
    assert theirs.items() <= igd.entries.items()


def test_a_conflict_that_is_not_listed_leads_to_the_next_port() -> None:
    igd = FakeIgd(entries={4811: (OTHERS, 1, 0)}, lists=False)
    assert answer(OPEN, igd)["port"] == 30000


def test_where_all_ports_are_taken_nothing_is_opened() -> None:
    igd = FakeIgd(entries=dict.fromkeys(OPEN["ports"], (OTHERS, 1, 0)))
    assert answer(OPEN, igd)["refused"] == "the router said: port 30001 is another's"


def test_no_router() -> None:
    assert answer(OPEN, FakeIgd(), []) == {"refused": "no router in this network answers UPnP"}
    refused = answer(OPEN, FakeIgd(), ["http://192.168.7.1:1/no-description"])
    assert refused == {"refused": "the router at 192.168.7.1 does not describe itself"}


def test_the_description_that_can_be_used_is_used() -> None:
    assert answer(OPEN, FakeIgd(), ["http://192.168.7.1:1/no-description", AT])["port"] == 4811


def test_a_refusal_keeps_the_routers_words_and_its_address() -> None:
    refused = answer(OPEN, FakeIgd(says="Action not authorized", address=""))
    assert refused == {"router": "192.168.7.1", "address": "", "refused": "the router said: Action not authorized"}


def test_words_without_end_are_cut() -> None:
    assert len(answer(OPEN, FakeIgd(says="x" * 10**6))["refused"]) <= 500
    assert len(answer(OPEN, FakeIgd(address="1" * 10**6))["address"]) <= 500


def test_a_router_that_leads_elsewhere_is_refused() -> None:
    class Elsewhere(FakeIgd):
        def addportmapping(
            self, port: int, protocol: str, host: str, inner: int, name: str, remote: str, lease_s: int
        ) -> bool:
            self.entries[port] = (OTHERS, inner, lease_s)
            return True

    assert f"leads port 4811 to {OTHERS}" in answer(OPEN, Elsewhere())["refused"]


def test_a_router_behind_an_address_where_we_do_not_listen_is_not_asked() -> None:
    igd = FakeIgd()
    assert "where this peer does not listen" in answer(OPEN | {"hosts": ["10.0.0.4"]}, igd)["refused"]
    assert answer(OPEN | {"hosts": [OUR]}, igd)["port"] == 4811


def test_a_port_that_is_gone_is_closed() -> None:
    assert answer(CLOSE, FakeIgd(says="NoSuchEntryInArray")) == {"closed": 4811}
    igd = FakeIgd(says="Action Failed", entries={4811: (OUR, 4811, 60)})
    assert answer(CLOSE, igd)["refused"] == "the router said: Action Failed"
