from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs.periods import find_period

TODAY = date(2026, 5, 14)  # a Thursday


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("tickets in May 2024", "2024-05-01", "2024-05-31"),
        ("2024年5月的工单", "2024-05-01", "2024-05-31"),
        ("2024 年 2 月中旬", "2024-02-11", "2024-02-20"),
        ("2025年12月下旬", "2025-12-21", "2025-12-31"),
        ("on 2024-02-29", "2024-02-29", "2024-02-29"),
        ("on 3rd of March 2025", "2025-03-03", "2025-03-03"),
        ("March 3, 2025", "2025-03-03", "2025-03-03"),
        ("Q4 2025", "2025-10-01", "2025-12-31"),
        ("the fourth quarter of 2025", "2025-10-01", "2025-12-31"),
        ("2025年第四季度", "2025-10-01", "2025-12-31"),
        ("2025 年三季度", "2025-07-01", "2025-09-30"),
        ("H1 2026", "2026-01-01", "2026-06-30"),
        ("second half of 2025", "2025-07-01", "2025-12-31"),
        ("2025 年下半年", "2025-07-01", "2025-12-31"),
        ("in winter 2025", "2025-12-01", "2026-02-28"),
        ("in 2023", "2023-01-01", "2023-12-31"),
        ("last quarter", "2026-01-01", "2026-03-31"),
        ("上季度", "2026-01-01", "2026-03-31"),
        ("上个月", "2026-04-01", "2026-04-30"),
        ("this month", "2026-05-01", "2026-05-31"),
        ("last year", "2025-01-01", "2025-12-31"),
        ("去年", "2025-01-01", "2025-12-31"),
        ("前年", "2024-01-01", "2024-12-31"),
        ("上半年", "2026-01-01", "2026-06-30"),  # "上" is a half here, not "last"
        ("last week", "2026-05-04", "2026-05-10"),
        ("上周", "2026-05-04", "2026-05-10"),
        ("yesterday", "2026-05-13", "2026-05-13"),
        ("昨天", "2026-05-13", "2026-05-13"),
        ("in the last three months", "2026-02-14", "2026-05-14"),
        ("近30天", "2026-04-14", "2026-05-14"),
        ("最近两年", "2024-05-14", "2026-05-14"),
        ("in March", "2026-03-01", "2026-03-31"),
        ("in November", "2025-11-01", "2025-11-30"),
        ("11月份", "2025-11-01", "2025-11-30"),
        ("since May 2024", "2024-05-01", None),
        ("before August 2025", None, "2025-07-31"),
        ("2025年8月之前", None, "2025-07-31"),
        ("after 2024", "2025-01-01", None),
        ("截至 2026 年 3 月 31 日", None, "2026-03-31"),
        ("ＭＡＹ　２０２４", "2024-05-01", "2024-05-31"),
    ],
)
def test_a_period_in_words_is_its_first_and_last_day(text: str, start: str | None, end: str | None) -> None:
    wanted = {key: value for key, value in (("gte", start), ("lte", end)) if value}
    found = find_period(text, TODAY)
    assert (found.as_filter() if found else {}) == wanted


@pytest.mark.parametrize(
    "text",
    ["How long may the cable be?", "It may take a while", "part 2024-17-99", "E-2024", "NX-2025", "in 12 months", "",
     "the 31st of February 2024x", "每 3 个月", "version 3.2024.1"],
)  # fmt: skip
def test_what_names_no_period_has_none(text: str) -> None:
    assert find_period(text, TODAY) is None


@given(st.text(alphabet="0123456789 -/年月日季度上下半qQhH last may week三两近天", max_size=30), st.dates())
def test_no_text_breaks_it_and_a_period_runs_forwards(text: str, today: date) -> None:
    found = find_period(text, today)
    assert found is None or found.start is None or found.end is None or found.start <= found.end
