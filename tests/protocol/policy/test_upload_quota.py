"""Tests of the arithmetic of upload quotas."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.protocol.policy.upload_quota import (
    CONTROL_RATE,
    DAY_S,
    PER_CHUNK,
    SELDOM_RATE,
    Moment,
    QuotaLedger,
    UploadLimits,
    UploadNeed,
    Used,
    control_rate,
    first_of_next,
    lost,
    on_the_line,
    quota_excess,
    quota_reason,
    size,
)

GB = 10**9
NOVEMBER = date(2026, 11, 21)


def at(day: date = NOVEMBER, day_left_s: float = 0.0) -> Moment:
    """Return a moment on this day. By default no time is left in the month, because the allowance for it is
    reserved."""
    return Moment(day, day_left_s, day_left_s)


def book(limits: UploadLimits, day: int = 0, month: int = 0) -> QuotaLedger:
    return QuotaLedger(limits, Used(NOVEMBER, day, month))


def test_the_last_byte_of_a_day_fits_and_one_more_does_not() -> None:
    kept = book(UploadLimits(day=5 * GB), day=4 * GB, month=4 * GB)
    assert kept.exhausted_period(GB, at()) is None
    assert kept.exhausted_period(GB + 1, at()) == "day"


def test_what_control_traffic_will_still_send_is_kept_back() -> None:
    kept = book(UploadLimits(day=5 * GB), day=4 * GB)
    rest = round(CONTROL_RATE * 3600)
    assert kept.exhausted_period(GB - rest, at(day_left_s=3600)) is None
    assert kept.exhausted_period(GB - rest + 1, at(day_left_s=3600)) == "day"


def test_time_uses_the_allowance_up_and_leaves_as_much_for_payload() -> None:
    kept = book(UploadLimits(day=5 * GB))
    before = kept.left("day", at(day_left_s=DAY_S))
    kept.turn(at(day_left_s=DAY_S / 2), DAY_S / 2)
    assert kept.left("day", at(day_left_s=DAY_S / 2)) == pytest.approx(before)
    assert kept.used.day == pytest.approx(CONTROL_RATE * DAY_S / 2)


def test_the_month_is_told_where_neither_holds_it() -> None:
    kept = book(UploadLimits(day=GB, month=10 * GB), day=GB, month=10 * GB)
    assert kept.exhausted_period(1, at()) == "month"


def test_a_new_day_begins_at_nothing_and_the_month_goes_on() -> None:
    kept = book(UploadLimits(), day=3 * GB, month=7 * GB)
    kept.turn(at(NOVEMBER + timedelta(days=1)), 0.0)
    assert kept.used == Used(date(2026, 11, 22), 0, 7 * GB)
    kept.turn(at(date(2026, 12, 1)), 0.0)
    assert kept.used == Used(date(2026, 12, 1), 0, 0)


def test_the_same_month_of_another_year_is_a_new_one() -> None:
    kept = book(UploadLimits(), day=GB, month=GB)
    kept.turn(at(date(2027, 11, 21)), 0.0)
    assert kept.used.month == 0


def test_a_clock_set_back_gives_nothing_back_and_the_next_midnight_counts() -> None:
    kept = book(UploadLimits(), day=GB, month=2 * GB)
    kept.turn(at(date(2026, 10, 31)), 0.0)
    assert kept.used == Used(date(2026, 10, 31), GB, 2 * GB)
    kept.turn(at(date(2026, 11, 1)), 0.0)
    assert kept.used == Used(date(2026, 11, 1), 0, 0)


def test_what_is_claimed_counts_at_once_and_what_was_not_sent_comes_back() -> None:
    kept = book(UploadLimits(day=GB))
    kept.claim(GB)
    assert kept.exhausted_period(1, at()) == "day"
    kept.sent(GB // 4)
    kept.give_back(GB - GB // 4)
    assert kept.used.day == kept.used.month == GB // 4


def test_a_claim_over_midnight_counts_for_the_new_day_as_far_as_it_was_not_sent() -> None:
    kept = book(UploadLimits(), day=GB, month=GB)
    kept.claim(100)
    kept.sent(60)
    kept.turn(at(date(2026, 12, 1)), 0.0)
    assert kept.used == Used(date(2026, 12, 1), 40, 40)
    kept.give_back(10)
    kept.sent(30)
    assert kept.used.day == kept.used.month == 30


@given(
    st.lists(st.tuples(st.integers(0, 400), st.floats(0, 1), st.booleans()), max_size=40),
    st.integers(0, 5000),
)
def test_what_is_claimed_only_where_it_fits_never_passes_the_limit(
    asked: list[tuple[int, float, bool]], limit: int
) -> None:
    kept, sent, under_way = book(UploadLimits(day=limit, month=limit)), 0, list[int]()
    for nbytes, part, stays in asked:
        if kept.exhausted_period(nbytes, at()) is not None:
            continue
        kept.claim(nbytes)
        went = round(part * nbytes)
        kept.sent(went)
        sent += went
        if stays:
            under_way.append(nbytes - went)
        else:
            kept.give_back(nbytes - went)
        assert kept.used.day == sent + sum(under_way) <= limit


def test_a_lost_count_is_taken_for_the_most_it_can_have_been() -> None:
    moment = at()  # on the 21st
    assert lost(UploadLimits(day=GB), moment) == Used(NOVEMBER, GB, 0, GB)
    assert lost(UploadLimits(month=9 * GB), moment) == Used(NOVEMBER, 0, 9 * GB)
    assert lost(UploadLimits(GB, 100 * GB), moment) == Used(NOVEMBER, GB, 21 * GB, GB)
    assert lost(UploadLimits(GB, 9 * GB), moment) == Used(NOVEMBER, GB, 9 * GB, GB)


def test_sentences_say_which_budget_and_until_when() -> None:
    limits = UploadLimits(5 * GB, 100 * GB)
    assert quota_reason(limits, "day", 1, at()) == "today's upload of 5 GB is used. Next exchange after 00:00"
    month = quota_reason(limits, "month", 1, at())
    assert month == "this month's upload of 100 GB is used. Next exchange after 00:00 on 2026-12-01"
    never = quota_reason(UploadLimits(day=GB), "day", GB, at())
    assert never.startswith("a day's upload of 1 GB never holds an exchange of 1 GB besides the 346 MB of control")


@pytest.mark.parametrize(
    ("day", "first"),
    [
        (date(2026, 1, 31), date(2026, 2, 1)),
        (date(2026, 12, 1), date(2027, 1, 1)),
        (date(2028, 2, 29), date(2028, 3, 1)),
    ],
)
def test_first_of_the_next_month(day: date, first: date) -> None:
    assert first_of_next(day) == first


def test_sizes() -> None:
    assert [size(n) for n in (0, 999, 1_250_000, 5 * GB, 2.5e12)] == ["0 B", "999 B", "1.25 MB", "5 GB", "2.5 TB"]
    assert [size(n) for n in (197_260, 999_700, 123_456_789)] == ["197 kB", "1,000 kB", "123 MB"]


def test_headers_are_counted() -> None:
    assert on_the_line(0, 3) == 3 * PER_CHUNK
    assert on_the_line(10**6, 8) == 1_041_000 + 8 * PER_CHUNK


def test_a_small_quota_of_a_day_exchanges_in_rounds_of_five_minutes() -> None:
    """Fault: if the allowance for control traffic of short rounds were reserved, 50 MB a day would never leave room for
    an exchange."""
    limits, payload = UploadLimits(day=50 * 10**6), 10**6
    kept = book(limits)
    assert kept.exhausted_period(payload, at(day_left_s=DAY_S)) == "day"
    kept.reserve_control(control_rate(300.0))
    kept.turn(at(), 1.0)
    exchanges, day = 0, at(day_left_s=DAY_S)
    while kept.exhausted_period(payload, day) is None:
        kept.claim(payload)
        exchanges += 1
    assert exchanges == 24, "25 MB are kept back for control traffic"
    need = UploadNeed(nbytes=payload, day=20.0 * payload, sync_every=300.0)
    assert "never" in quota_excess(limits, need)
    assert quota_excess(limits, replace(need, control=control_rate(300.0))) == ""


def test_the_allowance_falls_with_the_length_of_rounds() -> None:
    rates = [control_rate(round_s) for round_s in (None, 5.0, 60.0, 120.0, 200.0, 300.0, 3600.0)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == rates[1] == CONTROL_RATE
    assert rates[-1] == rates[-2] == SELDOM_RATE


NEED = UploadNeed(nbytes=10 * 10**6, day=10 * GB, sync_every=60.0)


def test_a_run_that_fits_is_no_word_worth() -> None:
    assert quota_excess(UploadLimits(day=11 * GB), NEED) == ""
    assert quota_excess(UploadLimits(), NEED) == ""


def test_a_run_that_does_not_fit_is_told_with_a_sync_every_that_would() -> None:
    told = quota_excess(UploadLimits(day=5 * GB), NEED)
    assert "uploads 10.3 GB, 346 MB of it control traffic, both estimated, and the budget is 5 GB a day" in told
    assert "it would last 11.2 of 24 hours" in told
    sync_every = float(told.rpartition("sync_every of ")[2].partition(" s")[0])
    assert sync_every == 129
    slower = UploadNeed(NEED.nbytes, NEED.day * NEED.sync_every / sync_every, sync_every)
    assert quota_excess(UploadLimits(day=5 * GB), slower) == ""
    faster = UploadNeed(NEED.nbytes, NEED.day * NEED.sync_every / (sync_every - 1), sync_every - 1)
    assert quota_excess(UploadLimits(day=5 * GB), faster) != ""


def test_a_month_has_31_days() -> None:
    assert quota_excess(UploadLimits(month=333 * GB), NEED) == ""
    assert "it would last 28.9 of 31 days" in quota_excess(UploadLimits(month=300 * GB), NEED)


def test_a_budget_below_the_control_traffic_holds_nothing_ever() -> None:
    assert "never holds an exchange" in quota_excess(UploadLimits(day=300 * 10**6), NEED)
