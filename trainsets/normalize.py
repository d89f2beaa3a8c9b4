"""Bring an answer to one form in both languages: widths, case, numbers, dates, units; then tokens that can be compared.

English follows SQuAD's evaluation script (casefold, no articles, no punctuation). It differs where that script would
harm an engineer's answers: ids (`E-1024`), numbers and versions (`4.2.1`), units and signs keep their parts. Chinese
is compared by characters, as in CMRC 2018 and DuReader.

Source: Rajpurkar et al. 2016, arXiv:1606.05250 (evaluate-v1.1.py); Cui et al. 2019, arXiv:1810.07366.
"""

import re
import unicodedata
from decimal import Decimal
from functools import lru_cache

_MONTHS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_MONTH = (
    r"(?P<m>january|february|march|april|may|june|july|august|september|october|november|december"
    rf"|{_MONTHS}|sept)\.?"
)
_DAY, _YEAR = r"(?P<d>\d{1,2})(?:st|nd|rd|th)?", r"(?P<y>\d{4})"
_DATES = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?<!\d)(?P<y>\d{4})\s*年\s*(?P<m>\d{1,2})\s*月(?:\s*(?P<d>\d{1,2})\s*[日号])?",
        r"(?<!\d)(?P<m>\d{1,2})\s*月\s*(?P<d>\d{1,2})\s*[日号]",
        rf"(?<![\w.]){_DAY}\s+(?:of\s+)?{_MONTH},?\s+{_YEAR}(?!\d)",
        rf"(?<![\w.]){_MONTH}\s+{_DAY},?\s+{_YEAR}(?!\d)",
        rf"(?<![\w.]){_MONTH},?\s+{_YEAR}(?!\d)",
        rf"(?<![\w.]){_DAY}\s+(?:of\s+)?{_MONTH}(?!\w)",
        rf"(?<![\w.]){_MONTH}\s+{_DAY}(?![\w.])",
        r"(?<![\d./-])(?P<y>\d{4})([-/.])(?P<m>\d{1,2})\2(?P<d>\d{1,2})(?![\d./-])",
        r"(?<![\d./-])(?P<d>\d{1,2})\.(?P<m>\d{1,2})\.(?P<y>\d{4})(?![\d./-])",
        r"(?<![\d./-])(?P<d>1[3-9]|2\d|3[01])/(?P<m>\d{1,2})/(?P<y>\d{4})(?![\d/])",
        r"(?<![\d./-])(?P<m>\d{1,2})/(?P<d>1[3-9]|2\d|3[01])/(?P<y>\d{4})(?![\d/])",
    )
]

_ZH_DIGITS = {c: i for i, c in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2}
_ZH_UNITS = {"十": 10, "百": 100, "千": 1000}
_COUNTERS = "个台套件次年月日号天周小季度分秒米元人份块项种级类倍路点条层页章节款位名万亿"
_ZH_NUMBER = re.compile(rf"[零〇一二两三四五六七八九十百千]+(?=[{_COUNTERS}])")
_ZH_PERCENT = re.compile(r"百分之([零〇一二两三四五六七八九十百千]+|\d+(?:\.\d+)?)")

_WORDS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_EN_NUMBERS = {word: i for i, word in enumerate((_WORDS + " seventeen eighteen nineteen").split())}
_EN_TENS = {word: 10 * i for i, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)}
# "one" is a pronoun more often than a count, so it needs a thing that is counted.
_ONE = r"one(?=[\s-]+(?:year|month|week|day|hour|minute|second|business|working|calendar|percent|unit)s?\b)"
_EN_NUMBER = re.compile(
    rf"\b(?:(?P<tens>{'|'.join(_EN_TENS)})(?:-(?P<ones>{'|'.join(list(_EN_NUMBERS)[1:10])}))?"
    rf"|(?P<plain>{'|'.join(w for w in _EN_NUMBERS if w != 'one')}|{_ONE}))\b"
)
_SCALES = {"万": 10**4, "亿": 10**8, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_SCALED = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s*(万|亿|thousand\b|million\b|billion\b)")

_CURRENCIES = {"€": "eur", "euros": "eur", "euro": "eur", "$": "usd", "us$": "usd", "dollars": "usd", "¥": "cny"}
_CURRENCIES |= {"rmb": "cny", "元": "cny", "yuan": "cny", "人民币": "cny"}
_CODES = "eur|usd|cny|nok|sek|gbp|chf"
_MONEY_BEFORE = re.compile(rf"(?<![a-z])(us\$|[€$¥]|人民币|rmb|{_CODES})\s*(\d+(?:\.\d+)?)(?:\s*元)?")
_MONEY_AFTER = re.compile(r"(\d+(?:\.\d+)?)\s*(€|euros?\b|dollars?\b|rmb\b|yuan\b|元)")

_TOKEN = re.compile(
    r"""
    (?<![\d-])\d{4}-\d{2}(?:-\d{2})?(?![\d-])           # a date, a month
  | (?<!\w)--\d{2}-\d{2}(?!\d)                           # a day without its year
  | (?<![a-z0-9])(?=[a-z0-9-]*\d)[a-z][a-z0-9]*(?:-(?:[a-z]{0,3}\d[a-z0-9]*|[a-z]{1,3}(?![a-z])))+  # E-1024, NX-220-EU
  | (?<![a-z0-9])[a-z]+\d[a-z0-9]*                       # m12, ipv6
  | \d{1,2}:\d{2}(?!\d)                                  # a time
  | (?:(?<![\w)-])-)?\d+(?:\.\d+)*                       # -20, 4.2.1
  | [\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]
  | °[cf]?
  | %
  | (?:(?![\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f])[^\W\d])+
    """,
    re.VERBOSE,
)
_ISO = re.compile(r"(?:(?P<y>\d{4})|-)-(?P<m>\d{2})(?:-(?P<d>\d{2}))?")
_CJK = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]")


def normalize(text: str) -> str:
    """Bring a text to one form: NFKC, casefold, no articles, ISO dates, plain digits, one name a currency.

    Thousands separators go (`1,250` is `1250`), number words and Chinese numerals before a counter become digits
    (`三个月` is `3个月`), `3.2万` is `32000`, `24.0` is `24`. A trailing zero that may be a version (`4.10`) stays.
    """
    text = re.sub(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3}(?!\d))", "", text)
    # A full-width comma separates a list, it never groups digits; NFKC would make the two alike.
    text = unicodedata.normalize("NFKC", re.sub(r"[，、]", " , ", text))
    text = re.sub(r"[\u2010-\u2015\u2212]", "-", text)
    text = re.sub(r"[\u2018\u2019\u02bc]", "'", text)
    text = _without_articles(text).casefold()
    text = re.sub(r"(?<![\d.])(?<!\d,)(\d{1,3}(?:,\d{3})+)(?!,?\d)", lambda m: m[1].replace(",", ""), text)
    return _plain_units(_plain_dates(_plain_numbers(text)))


@lru_cache(maxsize=16_384)
def tokens(text: str) -> tuple[str, ...]:
    """Split the normal form: ids, numbers and versions whole, words, Chinese by characters; no punctuation.

    A date becomes year, month and day (`2025`, `month-03`, `day-14`), so that "March 2025" stands in "14 March 2025".
    """
    return tuple(part for token in _TOKEN.findall(normalize(text)) for part in _date_parts(token))


def has_chinese(text: str) -> bool:
    """Tell whether a text holds a Chinese character."""
    return _CJK.search(text) is not None


def _date_parts(token: str) -> tuple[str, ...]:
    match = _ISO.fullmatch(token)
    if not match or int(match["m"]) > 12:
        return (token,)
    parts = (match["y"] or "", f"month-{match['m']}", f"day-{match['d']}" if match["d"] else "")
    return tuple(part for part in parts if part)


def facts(text: str) -> frozenset[str]:
    """Collect the tokens that can be checked to the letter: the ids, numbers, versions and dates of a text."""
    return frozenset(token for token in tokens(text) if any(c.isdigit() for c in token))


def fold(text: str) -> str:
    """Fold width, case and white space only, for finding a quote word for word."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def length_in_words(words: tuple[str, ...]) -> float:
    """Measure tokens in English words; a Chinese character is about 0.6 of one."""
    return sum(0.6 if _CJK.match(word) else 1.0 for word in words)


def _without_articles(text: str) -> str:
    """Drop articles, but not an ampere (`2 a`), a label (`Class A`), or all there is."""
    short = re.sub(r"(?<![\w'-])(?:an|the)(?![\w'-])", " ", text, flags=re.IGNORECASE)
    short = re.sub(r"(?<!\d )(?<![\w'.-])a(?![\w'.-])", " ", short)
    short = re.sub(r"(^\s*|[.!?:]\s+)A(?=\s+[a-z])", r"\1", short)
    return short if short.strip() else text


def _plain_numbers(text: str) -> str:
    text = _ZH_PERCENT.sub(lambda m: f"{_zh_number(m[1])}%", text)
    text = _ZH_NUMBER.sub(lambda m: str(_zh_number(m[0])), text)
    text = _EN_NUMBER.sub(_en_number, text)
    text = re.sub(r"(?<=\d)\s*(?:percent|per cent)\b", "%", text)
    return _SCALED.sub(lambda m: f"{Decimal(m[1]) * _SCALES[m[2]]:f}", text)


def _zh_number(numeral: str) -> int | str:
    if not any(c in _ZH_UNITS for c in numeral):
        return "".join(str(_ZH_DIGITS.get(c, c)) for c in numeral)
    total, digit = 0, 0
    for c in numeral:
        if c in _ZH_UNITS:
            total, digit = total + (digit or 1) * _ZH_UNITS[c], 0
        else:
            digit = _ZH_DIGITS[c]
    return total + digit


def _en_number(match: re.Match[str]) -> str:
    if match["plain"]:
        return str(_EN_NUMBERS[match["plain"]])
    return str(_EN_TENS[match["tens"]] + _EN_NUMBERS.get(match["ones"], 0))


def _plain_dates(text: str) -> str:
    for pattern in _DATES:
        text = pattern.sub(_iso_date, text)
    return text


def _iso_date(match: re.Match[str]) -> str:
    parts = match.groupdict()
    month = parts["m"]
    number = int(month) if month.isdigit() else _MONTHS.split("|").index(month[:3].lower()) + 1
    day = int(parts.get("d") or 1)
    if not (1 <= number <= 12 and 1 <= day <= 31):
        return match[0]
    year = parts.get("y") or "-"
    return f" {year}-{number:02d}" + (f"-{day:02d} " if parts.get("d") else " ")


def _plain_units(text: str) -> str:
    text = _MONEY_BEFORE.sub(lambda m: f" {m[2]} {_CURRENCIES.get(m[1], m[1])} ", text)
    text = _MONEY_AFTER.sub(lambda m: f" {m[1]} {_CURRENCIES.get(m[2].removesuffix('s'), m[2])} ", text)
    text = re.sub(rf"(\d+\.\d*?)0+(?=\s*(?:%|{_CODES})(?![a-z]))", r"\1", text)
    text = re.sub(r"(?<![\d.])(\d+)\.0*(?![\d.]*\d)", r"\1", text)
    text = re.sub(r"(?<![a-z])v(?=\d+\.\d)", "", text)
    text = re.sub(r"(?<![a-z])v(dc|ac)(?![a-z])", r"v \1", text)
    text = text.replace("摄氏度", "°c").replace("° c", "°c").replace("'", "")
    return re.sub(r"(?<![a-z.])(?:[a-z]\.){2,}", lambda m: m[0].replace(".", ""), text)
