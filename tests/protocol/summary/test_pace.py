from __future__ import annotations

import itertools
import random

from peer.protocol.summary.pace import EVERY_S, SummaryPace

DAY_S = 86400


def sent_in_a_day(*, changing: bool) -> list[int]:
    pace = SummaryPace(random.Random(1))
    return [at for at in range(0, DAY_S, 2) if pace.is_due(float(at), changed=changing)]


def test_summaries_go_once_a_minute_at_most() -> None:
    sent = sent_in_a_day(changing=False)
    assert all(after - before >= EVERY_S for before, after in itertools.pairwise(sent))
    assert DAY_S / (1.25 * EVERY_S) < len(sent) <= DAY_S / EVERY_S


def test_a_state_that_changes_all_the_time_is_told_no_more_often_but_for_a_few() -> None:
    assert len(sent_in_a_day(changing=True)) <= DAY_S / EVERY_S + 3


def test_a_changed_state_is_told_at_once() -> None:
    pace = SummaryPace(random.Random(1))
    assert pace.is_due(1000.0, changed=False)
    assert not pace.is_due(1002.0, changed=False)
    assert pace.is_due(1004.0, changed=True)
