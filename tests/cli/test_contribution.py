from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from peer.cli.main import peer
from peer.errors import ReceiptsBroken, UsageError
from peer.protocol.pair.receipt import SwapOpinion
from peer.run.home import RECEIPTS
from tests.support.signed_receipts import RUN, Signing, chained, countersigned, file_of

OWNER, PARTNER = Signing(), Signing()
CHAIN = chained(OWNER, [countersigned(OWNER, PARTNER, 5, SwapOpinion(7, accepted=True), SwapOpinion(9, accepted=True))])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home" / "runs" / RUN.hex()[:16]
    folder.mkdir(parents=True)
    (folder / RECEIPTS).write_bytes(file_of(CHAIN))
    return tmp_path / "home"


def said(*words: str | Path) -> Result:
    result = CliRunner().invoke(peer, ["contribution", *map(str, words)])
    if result.exception is not None:
        raise result.exception
    return result


def test_a_chain_is_shown_handed_on_and_verified(home: Path, tmp_path: Path) -> None:
    shown = json.loads(said("show", "--home", home, "--json").output)
    assert (shown["run_id"], shown["peer_id"], shown["receipts"], shown["rounds"]) == (RUN.hex(), OWNER.id, 1, [5, 5])
    assert shown["partners"] == [
        {
            "peer_id": PARTNER.id,
            "rounds": 1,
            "accepted": 1,
            "accepted_by_it": 1,
            "bytes_received": 1005,
            "bytes_sent": 2000,
        }
    ]
    assert "1 receipts" in said("export", tmp_path / "mine", "--home", home).output
    assert json.loads(said("verify", tmp_path / "mine", "--json").output) == shown
    text = said("verify", tmp_path / "mine").output
    assert f"partner   {PARTNER.id}" in text
    assert "bytes: 1,005 from it, 2,000 to it" in text
    assert "not checked against the run's manifest" in text


def test_a_changed_file_is_refused_with_its_entry(home: Path, tmp_path: Path) -> None:
    said("export", tmp_path / "mine", "--home", home)
    raw = bytearray((tmp_path / "mine").read_bytes())
    raw[-1] ^= 1
    (tmp_path / "mine").write_bytes(raw)
    with pytest.raises(ReceiptsBroken, match="entry 1: the signature of the owner does not hold"):
        said("verify", tmp_path / "mine")


def test_nothing_is_overwritten(home: Path, tmp_path: Path) -> None:
    said("export", tmp_path / "mine", "--home", home)
    with pytest.raises(UsageError, match="exists already"):
        said("export", tmp_path / "mine", "--home", home)


def test_the_run_is_named_where_there_are_several(home: Path, tmp_path: Path) -> None:
    other = home / "runs" / "00ff"
    other.mkdir()
    (other / RECEIPTS).write_bytes(file_of(CHAIN[:1]))
    with pytest.raises(UsageError, match="several runs"):
        said("show", "--home", home)
    assert "receipts  0" in said("show", "--home", home, "--run", "00ff").output
    assert "rounds 5 to 5" in said("show", "--home", home, "--run", RUN.hex()).output
    with pytest.raises(ReceiptsBroken, match="no receipts of run ab"):
        said("show", "--home", home, "--run", "ab")


def test_a_home_without_receipts_says_so(tmp_path: Path) -> None:
    with pytest.raises(ReceiptsBroken, match="no receipts under"):
        said("show", "--home", tmp_path)
