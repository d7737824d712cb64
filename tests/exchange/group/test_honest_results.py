"""Members whose machines, data and codecs differ do not doubt honest results and do not exclude honest contributors.
`benchmarks/honest_owners.py` plays a thousand such rounds."""

from __future__ import annotations

import pytest

from tests.support.group_rounds import GroupSetting, play

ROUNDS = 25


@pytest.mark.parametrize(
    "setting",
    [
        GroupSetting(),
        GroupSetting(spread=20.0),
        GroupSetting(spread=20.0, domains=True),
        GroupSetting(members=4, spread=20.0, domains=True, codec="int4", result="fp16"),
    ],
    ids=["equal", "unequal machines", "and data of their own", "four of them, int4"],
)
def test_no_honest_result_is_doubted_and_no_honest_member_left_out(setting: GroupSetting) -> None:
    print(f"seed {setting.seed}")
    judged = list(play(setting, ROUNDS))
    assert [round_.doubts for round_ in judged] == [[{}] * setting.members] * ROUNDS
    assert [round_.left_out for round_ in judged] == [{}] * ROUNDS
    cosines = [one.cosine for round_ in judged for results in round_.results for one in results.values()]
    assert min(cosines) < 0 or setting == GroupSetting(), (
        "some members' parts point against the mean, and they take it all the same"
    )
