"""Time in words: "last quarter", "in May 2024", 上季度, 2024年5月 become the first and the last day meant."""

import re
from calendar import monthrange
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta

from programs.rules import fold

_MONTHS = {
    name: number
    for number, names in enumerate(
        "january february march april may june july august september october november december".split(), start=1
    )
    for name in (names, names[:3])
} | {"sept": 9}
_ORDINALS = {
    **{"first": 1, "1st": 1, "second": 2, "2nd": 2, "third": 3, "3rd": 3, "fourth": 4, "4th": 4},
    **{"一": 1, "二": 2, "三": 3, "四": 4, "上": 1, "下": 2},
}
_SEASONS = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12, "春": 3, "夏": 6, "秋": 9, "冬": 12}
_COUNTS = {word: n for n, word in enumerate("zero one two three four five six seven eight nine ten".split())} | {
    word: n for n, word in enumerate("零一二三四五六七八九十")
}
_COUNTS |= {"两": 2, "半": 0}
_UNITS = {"天": "day", "日": "day", "周": "week", "星期": "week", "个月": "month", "月": "month", "年": "year"}

_MONTH = rf"(?P<month>{'|'.join(sorted(_MONTHS, key=len, reverse=True))})\.?"
_YEAR = r"(?P<year>(?:19|20)\d\d)"
_NTH = r"(?P<nth>first|1st|second|2nd|third|3rd|fourth|4th)"
_COUNT = rf"(?P<count>\d{{1,3}}|{'|'.join(word for word in _COUNTS if word.isascii())})"
_COUNT_ZH = r"(?P<count>\d{1,3}|[一二两三四五六七八九十])"


@dataclass(frozen=True, slots=True)
class Period:
    """The days from `start` to `end`, both of them in it, either of them open; `words` is how the text said it."""

    start: date | None
    end: date | None
    words: str

    def as_filter(self) -> dict[str, str]:
        """Return the period as a condition on a date field."""
        bounds = {"gte": self.start, "lte": self.end}
        return {operator: day.isoformat() for operator, day in bounds.items() if day is not None}


def find_period(text: str, today: date) -> Period | None:
    """Find the first period that a text names; `last month` and the like are counted from `today`."""
    folded = fold(text)
    for pattern, read in _FORMS:
        if match := pattern.search(folded):
            try:
                start, end = read(match.groupdict(), today)
            except (ValueError, OverflowError):
                continue  # a 31st of February, a year 0
            return _open(Period(start, end, match.group().strip()), folded, match)
    return None


def _open(period: Period, text: str, match: re.Match[str]) -> Period:
    """Leave one side open where the words before or after say so: since, before, 以来, 之前."""
    before, after = text[: match.start()], text[match.end() :]
    if re.search(r"\b(before|until|prior to|earlier than)\s*$", before) or re.match(r"\s*(以前|之前)", after):
        last = period.start - timedelta(days=1) if period.start else None
        return Period(None, last, period.words)
    if re.search(r"\bafter\s*$", before) or re.match(r"\s*(以后|之后)", after):
        return Period(period.end + timedelta(days=1) if period.end else None, None, period.words)
    if re.search(r"\b(as of|up to|by)\s*$|截至\s*$", before):
        return Period(None, period.end, period.words)
    if re.search(r"\b(since|starting|from)\s*$|自\s*$", before) or re.match(r"\s*(以来|起)", after):
        return Period(period.start, None, period.words)
    return period


Parts = dict[str, str | None]
Days = tuple[date, date]


def _day(parts: Parts, today: date) -> Days:
    day = date(int(parts["year"] or 0), _month(parts), int(parts["day"] or 0))
    return day, day


def _whole_month(parts: Parts, today: date) -> Days:
    start, end = _months(int(parts["year"] or 0), _month(parts), 1)
    third = parts.get("third")
    if third:
        first = {"上": 1, "中": 11, "下": 21}[third]
        return start.replace(day=first), end if third == "下" else start.replace(day=first + 9)
    return start, end


def _latest_month(parts: Parts, today: date) -> Days:
    month = _month(parts)
    return _months(today.year if month <= today.month else today.year - 1, month, 1)


def _quarter(parts: Parts, today: date) -> Days:
    quarter = str(parts["quarter"])
    nth = int(quarter) if quarter.isdigit() else _ORDINALS[quarter]
    return _months(int(parts["year"] or 0), 3 * nth - 2, 3)


def _half(parts: Parts, today: date) -> Days:
    half = str(parts["half"])
    nth = int(half) if half.isdigit() else _ORDINALS[half]
    return _months(int(parts["year"] or 0), 6 * nth - 5, 6)


def _season(parts: Parts, today: date) -> Days:
    return _months(int(parts["year"] or 0), _SEASONS[str(parts["season"])], 3)


def _whole_year(parts: Parts, today: date) -> Days:
    return _months(int(parts["year"] or 0), 1, 12)


def _relative(parts: Parts, today: date) -> Days:
    """`this`, `last` or `next` day, week, month, quarter, half or year."""
    shift = {"last": -1, "previous": -1, "past": -1, "this": 0, "current": 0, "next": 1}[str(parts["which"])]
    return _shifted(str(parts["unit"]), shift, today)


def _relative_zh(parts: Parts, today: date) -> Days:
    shifts = {"上": -1, "上个": -1, "上一": -1, "上一个": -1, "本": 0, "这": 0, "这个": 0, "当": 0}
    shifts |= {"去": -1, "前": -2, "今": 0, "昨": -1, "下": 1, "下个": 1, "明": 1}
    units = {"季度": "quarter", "季": "quarter", "月": "month", "周": "week", "星期": "week", "年": "year"}
    units |= {"天": "day", "日": "day", "半年": "half"}
    return _shifted(units[str(parts["unit"])], shifts[str(parts["which"])], today)


def _shifted(unit: str, shift: int, today: date) -> Days:
    if unit in ("day", "week"):
        length = 7 if unit == "week" else 1
        start = today - timedelta(days=today.weekday() if unit == "week" else 0) + timedelta(days=length * shift)
        return start, start + timedelta(days=length - 1)
    length = {"month": 1, "quarter": 3, "half": 6, "year": 12}[unit]
    first = (today.month - 1) // length * length
    return _months(today.year, first + 1 + length * shift, length)


def _recent(parts: Parts, today: date) -> Days:
    """The last so many days, weeks, months or years, up to today."""
    count = str(parts["count"])
    n = int(count) if count.isdigit() else _COUNTS[count]
    unit = _UNITS.get(str(parts["unit"]), str(parts["unit"]))
    if unit in ("day", "week"):
        return today - timedelta(days=n * (7 if unit == "week" else 1)), today
    year, month = divmod(today.year * 12 + today.month - 1 - n * (12 if unit == "year" else 1), 12)
    return date(year, month + 1, min(today.day, monthrange(year, month + 1)[1])), today


def _named_day(parts: Parts, today: date) -> Days:
    return _shifted("day", -1 if parts["named"] in ("yesterday", "昨天", "昨日") else 0, today)


def _month(parts: Parts) -> int:
    month = str(parts["month"])
    return int(month) if month.isdigit() else _MONTHS[month]


def _months(year: int, month: int, n: int) -> Days:
    """The first and the last day of `n` months from `month`, which may lie outside 1 to 12."""
    start = year * 12 + month - 1
    end = start + n - 1
    last = monthrange(end // 12, end % 12 + 1)[1]
    return date(start // 12, start % 12 + 1, 1), date(end // 12, end % 12 + 1, last)


def _form(pattern: str, read: Callable[[Parts, date], Days]) -> tuple[re.Pattern[str], Callable[[Parts, date], Days]]:
    return re.compile(pattern), read


# The narrowest first: "May 2024" holds a year as well.
_FORMS = (
    _form(rf"(?<!\d){_YEAR}\s*[-/年]\s*(?P<month>\d{{1,2}})\s*[-/月]\s*(?P<day>\d{{1,2}})(?!\d)", _day),
    _form(rf"\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? {_MONTH},? {_YEAR}\b", _day),
    _form(rf"\b{_MONTH} (?P<day>\d{{1,2}})(?:st|nd|rd|th)?,? {_YEAR}\b", _day),
    _form(rf"(?<!\d){_YEAR}\s*年\s*(?P<month>\d{{1,2}})\s*月份?(?:\s*(?P<third>[上中下])旬)?", _whole_month),
    _form(rf"\b{_MONTH},?(?: of)? {_YEAR}\b", _whole_month),
    _form(rf"(?<![\d-]){_YEAR}-(?P<month>\d\d)(?![\d-])", _whole_month),
    _form(rf"\bq(?P<quarter>[1-4])[ /-]*(?:of )?{_YEAR}\b", _quarter),
    _form(rf"(?<!\d){_YEAR}[ /-]*q(?P<quarter>[1-4])\b", _quarter),
    _form(rf"\b{_NTH.replace('nth', 'quarter')} quarter(?: of)? {_YEAR}\b", _quarter),
    _form(rf"(?<!\d){_YEAR}\s*年?度?\s*的?\s*第?\s*(?P<quarter>[一二三四1-4])\s*季度", _quarter),
    _form(rf"\bh(?P<half>[12])[ /-]*(?:of )?{_YEAR}\b", _half),
    _form(rf"(?<!\d){_YEAR}[ /-]*h(?P<half>[12])\b", _half),
    _form(rf"\b(?P<half>first|second) half(?: of)? {_YEAR}\b", _half),
    _form(rf"(?<!\d){_YEAR}\s*年?\s*的?\s*(?P<half>[上下])半年", _half),
    _form(rf"\b(?P<season>spring|summer|autumn|fall|winter)(?: of)? {_YEAR}\b", _season),
    _form(rf"(?<!\d){_YEAR}\s*年?\s*的?\s*(?P<season>[春夏秋冬])[天季]", _season),
    _form(rf"\b(?:last|past|previous|recent) {_COUNT} (?P<unit>day|week|month|year)s\b", _recent),
    _form(rf"(?:最近|近|过去|这)的?\s*{_COUNT_ZH}\s*(?P<unit>天|日|周|星期|个月|年)", _recent),
    _form(r"\b(?P<which>last|previous|past|this|current|next) (?P<unit>day|week|month|quarter|half|year)\b", _relative),
    _form(r"(?P<which>上一个|上个|上一|上|本|这个|这|当|下个|下)\s*(?P<unit>季度|月|周|星期)", _relative_zh),
    _form(r"(?P<half>[上下])半年", lambda parts, today: _half({**parts, "year": str(today.year)}, today)),
    _form(r"(?P<which>去|前|今|明|本)(?P<unit>年)", _relative_zh),
    _form(r"\b(?P<named>yesterday|today)\b|(?P<named_zh>昨[天日]|今[天日])", lambda parts, today: _named_day(
        {"named": parts["named"] or parts["named_zh"]}, today
    )),
    _form(r"(?<![\d年月.-])(?P<month>1[0-2]|[1-9])\s*月(?!\d)", _latest_month),
    _form(rf"\b(?:in|during|since|before|after|until|of|last) {_MONTH}\b(?! \d)", _latest_month),
    _form(rf"(?<![\d.,-]){_YEAR}\s*(?:年|(?![\d.,-]*\d|[a-z]))", _whole_year),
)  # fmt: skip
