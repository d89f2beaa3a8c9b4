"""What rules decide better and cheaper than an LM: small talk, ids, plain questions, numbers asked for."""

import re
import unicodedata

_SMALL_TALK = re.compile(
    r"(hi|hello|hey|good (morning|afternoon|evening|day)|thanks?|thank you|thx|cheers|bye|goodbye|see you|ok(ay)?|"
    r"great|perfect|how are you|who are you|what can you do|nice to meet you|have a (nice|good|great) \w+|"
    r"你好|您好|嗨|早上好|上午好|下午好|晚上好|谢谢|多谢|感谢|辛苦了|再见|拜拜|好的|你是谁|您是谁|你能做什么|在吗|你叫什么)"
)
_FILLER = re.compile(
    r"\b(there|you|very much|so much|a lot|for (the|your) help|team|everyone|anyone|all|again|for now|that'?s all|your|"
    r"help(s|ed)?|doing|job|work|the|for|and|a|is|was|were|re|this|that|it)\b|(非常|大家|帮助|帮忙|这样|周末愉快|[了啊呀吗呢您你的先就])"
)
_ID = re.compile(
    r"(?<![A-Za-z0-9-])"
    r"(?:[A-Za-z]{1,5}-[0-9][A-Za-z0-9]*(?:-[A-Za-z0-9]+)*|[A-Za-z]{1,4}[0-9]{2,}[A-Za-z0-9]*)"
    r"(?![A-Za-z0-9-])"
)
_CJK = re.compile(r"[\u3400-\u9fff]")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_SEVERAL = re.compile(
    r"\b(compared?|compares|difference|differ|versus|vs|both|respectively|each of|than|as well as|which (is|has|was)"
    r" (the )?(more|less|higher|lower|longer|shorter|earlier|later|older|newer|larger|smaller))\b|"
    r"(比较|对比|相比|区别|差别|分别|哪个更|谁更|以及|同时|各自|比.+[多少高低长短早晚])",
    re.IGNORECASE,
)
_BRIDGE = re.compile(
    r"\b(of the \w+ (that|which|who|whose)|(that|which|who|whose) (supplies|supplied|makes|made|signed|wrote|"
    r"approved|handled|caused|owns|manages|led|reported|replaced)|where the|"
    r"by the (supplier|person|engineer|manager|company))\b|(的.{1,12}的.{1,12}的)",
    re.IGNORECASE,
)
_ASKS_NUMBER = re.compile(
    r"\b(how (many|much|long|often|old|high|low|heavy|far|tight|big|large|short|fast|late)|"
    r"what (year|date|price|percentage|temperature|voltage|weight)|which (year|month|quarter)|lead time|"
    r"when (is|are|was|were|do|does|did|has|have|had|can|may|must|should|will))\b|"
    r"(多少|多久|多长|多大|多高|多重|几[个天次台年月小件份名位岁时点]|何时|什么时候|哪[一]?[天年月])",
    re.IGNORECASE,
)
_NUMBER_WORD = re.compile(
    r"\b(zero|no|none|one|once|two|twice|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|"
    r"forty|fifty|sixty|ninety|hundred|thousand|half|quarter|third|january|february|march|april|may|june|july|august|"
    r"september|october|november|december|monday|tuesday|wednesday|thursday|friday|daily|weekly|monthly|yearly|annual|"
    r"immediately|never|always)|[零一二两三四五六七八九十百千万半每]"
)
_STOP = frozenset(
    "the of to in is it and or for on at by an be as are was were do does did how what which who when where why our we "
    "you your from with that this there can may must has have had not if any".split()
)
_PLAIN_WORDS = 22
_PLAIN_CHARACTERS = 42


def fold(text: str) -> str:
    """Fold width, case and runs of white space, so that texts compare as a reader would compare them."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def repair(text: str) -> str:
    """Replace halves of surrogate pairs, which a terminal or JSON can bring and nothing can be sent with."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def is_chinese(text: str) -> bool:
    """Tell whether a text is mainly Chinese: it holds Chinese characters, and as many as Latin words."""
    return len(_CJK.findall(text)) >= max(1, len(re.findall(r"[A-Za-z]{3,}", text)))


def is_in_other_language(question: str, answer: str) -> bool:
    """Tell whether a Chinese question got an answer in English words; ids, numbers and names alone do not count."""
    return is_chinese(question) and not _CJK.search(answer) and re.search(r"\b[a-z]{3,}\b", answer) is not None


def is_small_talk(question: str) -> bool:
    """Tell whether a question is a greeting, thanks or the like, with nothing in it to search for."""
    text = re.sub(r"[^\w\s']", " ", fold(question))
    if not _SMALL_TALK.search(text) or find_ids(question):
        return False
    rest = _FILLER.sub(" ", _SMALL_TALK.sub(" ", text))
    return len(re.sub(r"\s", "", rest)) <= 4


def find_ids(text: str) -> tuple[str, ...]:
    """Return ids such as `E-1024`, `INC-778801` or `FK-22`, as written, without repeats."""
    return tuple(dict.fromkeys(_ID.findall(unicodedata.normalize("NFKC", text))))


def is_plain(question: str) -> bool:
    """Tell whether one search with the question itself is the right plan: short, and one fact is asked for."""
    length_ok = len(question) <= _PLAIN_CHARACTERS if is_chinese(question) else len(question.split()) <= _PLAIN_WORDS
    return length_ok and len(find_ids(question)) <= 1 and not _SEVERAL.search(question) and not _BRIDGE.search(question)


def lacking_ids(question: str, text: str) -> tuple[str, ...]:
    """Return the ids of a question that do not stand in `text`; with no other way to name a thing, it is not there."""
    return tuple(one for one in find_ids(question) if not holds_id(one, text))


def asks_for_number(question: str) -> bool:
    """Tell whether the answer must hold a number: an amount, a length of time, a date, a price."""
    return _ASKS_NUMBER.search(question) is not None


def has_number(text: str) -> bool:
    """Tell whether a text holds a number, in digits or in words."""
    return re.search(r"\d", fold(text)) is not None or _NUMBER_WORD.search(fold(text)) is not None


def words(text: str) -> set[str]:
    """Return what a text is about, roughly: Latin words and ids of two letters or more, and pairs of Chinese ones."""
    folded = fold(text)
    pairs = {run[n : n + 2] for run in re.findall(r"[\u3400-\u9fff]+", folded) for n in range(len(run) - 1)}
    latin = re.findall(r"[^\W_\u3400-\u9fff]+(?:[.-][^\W_\u3400-\u9fff]+)*", folded)
    return pairs | ({word for word in latin if len(word) > 1} - _STOP)


def bare(text: str) -> str:
    """Fold a text and keep its letters and digits alone, so that a quote is found in spite of markup and spacing."""
    return re.sub(r"[\W_]+", "", fold(text))


def holds_id(identifier: str, text: str) -> bool:
    """Tell whether `text` holds this very id, not a longer one that starts or ends like it."""
    pattern = rf"(?<![a-z0-9]){re.escape(fold(identifier))}(?![a-z0-9])"
    return re.search(pattern, fold(text)) is not None


def numbers(text: str) -> set[str]:
    """Return the numbers in a text, thousands separators removed."""
    return {one.replace(",", "") for one in _NUMBER.findall(fold(text))}
