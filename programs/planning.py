"""Which searches a question needs, in which order: by rule where that is plain, else as the LM planned them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Literal

from programs import rules
from programs.narrowing import Fields, find_filters, name_values
from programs.tools import SQL, Toolbox
from signatures import SearchStep

MAX_STEPS = 3
_NEEDED = re.compile(r"\{(\d+)\}")
_VAGUE = re.compile(
    r"^(?!.*\b(?:(?:is|was|will) it\b|(?:does|did) it (?:take|matter|rain)))(and |so |but )?"
    r"(what|how|when|where|which|who|why|can|does|do|did|is|are|was|were)\b.*"
    r"\b(it|its|they|them|that one|this one|those|these|this thing)\b|"
    r"^(它们?|这个|那个|这款|那款|这种|那种|该产品|该型号|这东西)(的|是|要|能|有|多|怎|可|在|会|支|坏|多久|多少)",
    re.IGNORECASE,
)
_POINTS_BACK = re.compile(
    r"^(and|or|but|so|then|also|what about|how about|same)\b|"
    r"\b(it|its|itself|they|them|their|theirs|that|this|those|these|one|ones|there|then|he|she|him|her|his|hers|same|other|"
    r"others|another|else|too|instead|such|former|latter|mentioned|above|again|both|more)\b",
    re.IGNORECASE,
)
_POINTS_BACK_ZH = re.compile(
    r"[它他她其该此]|[这那](?!么)|呢(?=[，,？?\s]|$)|的话|^(还有|另外|那么|然后|以及|要是|如果|假如|万一|换成|改成)|"
    r"上述|上面|前面|刚才|刚刚|同样|一样|前者|后者|也[是有要能]"
)
_WHOLE_WORDS = 5
_WHOLE_CHARACTERS = 10
_VAGUE_WORDS = 9
_VAGUE_CHARACTERS = 14
_CHOICE_KEYS = ("product", "model", "device", "region", "site", "customer", "department", "team", "category")
_MAX_CHOICES = 12


@dataclass(frozen=True, slots=True)
class Step:
    """One search to make. A query may hold `{1}`: what step 1 finds goes there."""

    tool: str
    query: str
    decided_by: Literal["rule", "lm"]
    filters: Mapping[str, Any] | None = None
    goal: str = ""

    @property
    def needs(self) -> tuple[int, ...]:
        """The numbers of the steps whose results the query waits for."""
        return tuple(int(number) for number in dict.fromkeys(_NEEDED.findall(self.query)))

    def fill(self, found: Mapping[int, str]) -> "Step":
        """Put results in the place of their numbers; a number without a result falls away."""
        query = _NEEDED.sub(lambda match: found.get(int(match.group(1)), ""), self.query)
        return replace(self, query=" ".join(query.split()), goal=self.goal or self.query)


def stands_alone(question: str) -> bool:
    """Tell whether a question can be understood without the conversation before it: nothing in it points back.

    What is not surely whole counts as a follow-up: condensing it costs a call, missing what it means costs the answer.
    """
    if rules.is_chinese(question):
        return len(question) >= _WHOLE_CHARACTERS and not _POINTS_BACK_ZH.search(question)
    return len(question.split()) >= _WHOLE_WORDS and not _POINTS_BACK.search(question)


def plan_by_rule(question: str, toolbox: Toolbox, today: date) -> list[Step] | None:
    """Plan by rule: one plain search, filtered beside, and the tools it is a question for; None leaves it to the LM."""
    plain = Step("hybrid", question, "rule")
    by_tools = [Step(SQL, question, "rule")] if toolbox.choose_tables(question) else []
    by_tools += [Step(tool.name, question, "rule") for tool in toolbox.choose_apis(question)[:1]]
    if not by_tools and not rules.is_plain(question):
        return None
    return narrow([plain], toolbox.fields, today) + by_tools


def read_plan(steps: Sequence[SearchStep], question: str, fields: Fields, today: date) -> list[Step]:
    """Read what the LM planned: at most three searches, empty ones left out.

    Where it splits nothing, the question itself is searched for too: rewording it can only lose words.
    """
    planned = [Step(step.tool, step.query.strip(), "lm") for step in steps[:MAX_STEPS] if step.query.strip()]
    if len(planned) < 2:
        reworded = [step for step in planned if rules.fold(step.query) != rules.fold(question)]
        planned = [*reworded, Step("hybrid", question, "lm" if planned and not reworded else "rule")]
    return narrow(planned, fields, today)


def narrow(steps: Sequence[Step], fields: Fields, today: date) -> list[Step]:
    """Ask a step again with filters, where its query says enough of the document it is about.

    Beside, not instead: a filter that shuts the right document out costs nothing then. The new steps come last, so the
    numbers that other steps refer to stay.
    """
    found = [(step, find_filters(step.query, fields, today)) for step in steps if not step.needs]
    return [*steps, *(replace(step, filters=filters, decided_by="rule") for step, filters in found if filters)]


def split_waves(steps: Sequence[Step]) -> list[list[int]]:
    """Group the places of steps so that every step comes after those it needs; within a group all are independent."""
    waves: list[list[int]] = []
    placed: dict[int, int] = {}
    for place, step in enumerate(steps):
        earlier = [placed[number - 1] for number in step.needs if number - 1 in placed]
        placed[place] = max(earlier) + 1 if earlier else 0
        waves += [[]] * (placed[place] + 1 - len(waves))
        waves[placed[place]] = [*waves[placed[place]], place]
    return waves


def find_choices(question: str, fields: Fields) -> dict[str, tuple[str, ...]]:
    """Return what the user may mean, where a question can't be pinned down: the values of the index, by key.

    Only a short question that points at something with no name, id or value in it is asked back.
    """
    is_short = (
        len(question) <= _VAGUE_CHARACTERS
        if rules.is_chinese(question)
        else len(question.split()) <= _VAGUE_WORDS and not re.search(r"(?<!^)\b[A-Z]\w+", question)
    )
    if not is_short or rules.find_ids(question) or not _VAGUE.search(question) or name_values(question, fields):
        return {}
    keys = [key for key in _CHOICE_KEYS if 2 <= len(fields.values.get(key, ())) <= _MAX_CHOICES]
    return {key: fields.values[key] for key in keys[:2]}
