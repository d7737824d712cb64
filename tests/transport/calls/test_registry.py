"""The calls defined in modules are exactly those that the protocol declares."""

from __future__ import annotations

from peer.transport.calls.call import SERVICE
from peer.transport.calls.hello import HELLO
from peer.transport.calls.registry import every_call
from peer.v1 import exchange_pb2 as pb


def test_every_call_of_the_protocol_has_its_module_and_its_messages() -> None:
    declared = {
        method.name: (method.input_type.name, method.output_type.name)
        for method in pb.DESCRIPTOR.services_by_name["Exchange"].methods
        if method.name != HELLO.name
    }
    assert {one.name: (one.request.DESCRIPTOR.name, one.reply.DESCRIPTOR.name) for one in every_call()} == declared
    assert {one.path for one in every_call()} == {f"/{SERVICE}/{name}" for name in declared}


def test_a_banned_peer_may_learn_why_it_is_banned_and_nothing_else() -> None:
    assert [one.name for one in every_call() if one.even_banned] == ["Amendments"]
