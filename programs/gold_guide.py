"""What gold evidence calls for at every step of a run: the plan, the verdict, the next query, the answer."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from programs.bridging import content_words, phrase
from programs.prompting import format_passages
from programs.quotes import stands_in, text_of
from programs.rules import fold
from programs.run import Bounds
from programs.shortening import Shown, sentences
from retrievers.records import Hit, Retriever
from retrievers.tokenizer import find_ids, load_tokenizer, query_tokens
from signatures import SearchStep

_BLOCK = re.compile(r"<passage \d+> (.*?)\n(.*?)\n</passage>", re.DOTALL)
_LINKS = 6  # names that lead from found to missing evidence, tried in turn
_LINK_WORDS = 3
_QUERY_WORDS = 6
_GAP_WORDS = 10
_WORDS_WITHOUT_LINK = 3  # fewer, and nothing new in it, is no rewrite to learn from
_NEAR = 2  # ranks at which a query is taken to have found what it looks for
_DEEP = 30
_LEAST_SHARE, _NEAR_SHARE, _ABOUT_SHARE = 0.2, 0.5, 0.3  # of the question's words: to miss, to miss narrowly, to meet
_MAX_STEPS = 3
_ANSWER_CHARS = 40  # a longer answer shows no brevity
# What questions hold beside their subject, and no search needs.
_EMPTY = frozenset(
    "one two three tell say get know use used uses make makes last lasts directly still currently exactly now "
    "里 后 内 时 前 中 个 只 次 位 件 台 块 种 家 条 米 号 最 现在 目前 有没有 是否 就是 也就是 我们 你们 一只 一台 "
    "一块 那次 那个 那块 那家 时间 多长 多久 最后 哪位 哪家 哪天 哪儿".split()
)


class GoldLike(Protocol):
    """The gold side of a case."""

    @property
    def is_answerable(self) -> bool: ...  # noqa: D102
    @property
    def needs_all(self) -> bool: ...  # noqa: D102
    @property
    def answer(self) -> str: ...  # noqa: D102
    @property
    def gold_ids(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def spans(self) -> Sequence[str]: ...  # noqa: D102
    def missing(self, hits: Iterable[Hit]) -> list[str]: ...  # noqa: D102
    def is_gold(self, hit: Hit) -> bool: ...  # noqa: D102
    def states_answer(self, text: str) -> bool: ...  # noqa: D102
    def states_part(self, text: str) -> bool: ...  # noqa: D102
    def misleads(self, text: str) -> bool: ...  # noqa: D102


class NoGuidance(LookupError):  # noqa: N818
    """The gold does not tell what this step should give."""


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a predictor: what the program gave it, and what the gold calls for.

    `quotes` are the words of the passages that the output rests on. A step that is not `certain` keeps the run going
    and is no demo. In a `clear` one a reader sees at once why the output is what it is: such make the better demos.
    """

    predictor: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    shown: tuple[Shown, ...] = ()
    quotes: tuple[str, ...] = ()
    certain: bool = True
    clear: bool = True


@dataclass
class Guide:
    """Answers the calls of one run from the gold evidence of its case; every call is kept in `steps`."""

    gold: GoldLike
    question: str
    retrievers: Mapping[str, Retriever]
    bounds: Bounds
    steps: list[Step] = field(default_factory=list, init=False)
    _next: tuple[str, str] | None = field(default=None, init=False)
    _seen: list[Hit] = field(default_factory=list, init=False)

    def answer_for(self, predictor: str) -> Callable[..., Mapping[str, Any]]:
        """Return what takes the place of a predictor: its inputs to the outputs that the gold calls for.

        Raises:
            NoGuidance: When called for a predictor that gold evidence says nothing about.
        """
        make: dict[str, Callable[[dict[str, Any]], Step]] = {
            "plan": self._plan,
            "judge": self._judge,
            "rewrite": self._rewrite,
            "answer": self._answer,
        }

        def call(**inputs: Any) -> Mapping[str, Any]:
            if predictor not in make:
                raise NoGuidance(predictor)
            step = make[predictor](inputs)
            self.steps.append(step)
            return step.outputs

        return call

    def search(self, tool: str, query: str, k: int, filters: Mapping[str, Any] | None = None) -> list[Hit]:
        """Search for the program, and remember the hits it may show."""
        hits = self.retrievers[tool].search(query, k, filters)
        self._seen += hits
        return list(hits)

    def _plan(self, inputs: dict[str, Any]) -> Step:
        plans = [plan for plan in self._plans() if plan]
        if not self.gold.gold_ids or not plans:
            return Step("plan", inputs, {"steps": [SearchStep(tool="hybrid", query=self.question)]}, certain=False)
        n_missing = [len(self.gold.missing(self._found_by(plan))) for plan in plans]
        best = min(range(len(plans)), key=lambda place: (n_missing[place], len(plans[place])))
        found_some = n_missing[best] < len(self.gold.gold_ids)
        subjects = [[word for word in step.query.split() if not find_ids(word)] for step in plans[best]]
        is_clear = not n_missing[best] and all(subjects)
        return Step("plan", inputs, {"steps": plans[best]}, certain=found_some, clear=is_clear)

    def _plans(self) -> list[list[SearchStep]]:
        """Offer one search for what is asked about, or one for each document that holds a part of the evidence."""
        located = self._locate(self.gold.gold_ids)
        parts = dict.fromkeys(self._words_shared_with(hit) for hit in located)
        whole = [self._words_shared_with(*located), self._subject]
        return [*([_step(query)] for query in whole if query), [_step(part) for part in parts if part][:_MAX_STEPS]]

    def _found_by(self, plan: Sequence[SearchStep]) -> list[Hit]:
        n = self.bounds.n_passages // len(plan) or 1
        return [hit for step in plan for hit in self.retrievers[step.tool].search(step.query, n)]

    def _judge(self, inputs: dict[str, Any]) -> Step:
        shown = self._shown(inputs["passages"])
        quotes = self._quotes(shown)
        lacking = self.gold.missing(one.hit for one in shown) if self.gold.is_answerable else ["everything"]
        if self.gold.is_answerable and self._is_whole(quotes):
            contrary = self._contrary(shown, quotes)
            outputs = {"quotes": [*quotes, *contrary], "verdict": "conflict" if contrary else "sufficient"}
            quotes = (*quotes, *contrary)
            is_clear = self.gold.states_answer("\n".join(quotes)) and self._is_about(shown, quotes)
            return Step("judge", inputs, outputs | {"missing": ""}, shown, quotes, not lacking, is_clear)
        gap = self._gap(shown, lacking)
        outputs = {"quotes": list(quotes), "verdict": "insufficient", "missing": gap}
        near = self._share("\n".join(f"{one.heading}\n{one.body}" for one in shown))
        is_clear = self._next is not None if quotes else near >= _NEAR_SHARE
        return Step("judge", inputs, outputs, shown, quotes, bool(lacking) and near >= _LEAST_SHARE, is_clear)

    def _is_about(self, shown: Sequence[Shown], quotes: Sequence[str]) -> bool:
        """Tell whether quotes, with the headings they stand under, speak of what is asked; a sum needs several."""
        if self.gold.needs_all and len(quotes) < 2:
            return False
        headings = [one.heading for one in shown if one.holds_any(quotes)]
        return self._share("\n".join([*headings, *quotes])) >= _ABOUT_SHARE

    def _share(self, text: str) -> float:
        """Return the share of the question's words that stand in a text."""
        asked, there = set(query_tokens(self.question, load_tokenizer())), set(load_tokenizer()(text))
        return len(asked & there) / max(1, len(asked))

    def _gap(self, shown: Sequence[Shown], lacking: Sequence[str]) -> str:
        """Name what is missing, and remember the query that finds it."""
        self._next = self._finding(shown, lacking) if self.gold.is_answerable else None
        return self._next[0] if self._next else self._subject

    @property
    def _subject(self) -> str:
        return phrase(_without_empty(content_words(self.question))[:_GAP_WORDS], self.question) or self.question

    def _finding(self, shown: Sequence[Shown], lacking: Sequence[str]) -> tuple[str, str] | None:
        """Return the first query, built from what was found and what is asked, that brings missing evidence up."""
        for target in self._locate(lacking):
            asked = self._words_shared_with(target)
            for link in self._links(shown, target):
                tool = "keyword" if find_ids(link) else "hybrid"
                if self._brings(tool, f"{link} {asked}".strip(), target):
                    return f"{link} {asked}".strip(), tool
            if len(content_words(asked)) >= _WORDS_WITHOUT_LINK and self._brings("hybrid", asked, target):
                return asked, "hybrid"
        return None

    def _brings(self, tool: str, query: str, target: Hit) -> bool:
        hits = self.retrievers[tool].search(query, _NEAR)
        return any(hit.passage.passage_id == target.passage.passage_id for hit in hits)

    def _links(self, shown: Sequence[Shown], target: Hit) -> list[str]:
        """List names that shown evidence and the target share and the question lacks: ids, then names, then words."""
        evidence = [one for one in shown if self.gold.is_gold(one.hit)]
        quoted = "\n".join(self._quotes(shown))
        found = "\n".join([quoted, *(f"{one.heading}\n{one.body}" for one in evidence)])
        wanted, asked = fold(text_of([target])), fold(self.question)
        shared = [word for word in content_words(found) if fold(word) not in asked and fold(word) in wanted]
        links = sorted(shared, key=lambda word: (not find_ids(word), not word[0].isupper()))[:_LINKS]
        if links and not find_ids(links[0]):  # a name of several words
            named = _without_empty([word for word in shared if word in quoted])[:_LINK_WORDS]
            links = [phrase(named, quoted), *links] if named else links
        return links

    def _words_shared_with(self, *hits: Hit) -> str:
        text = {token for hit in hits for token in query_tokens(text_of([hit]), load_tokenizer())}
        asked = _without_empty(content_words(self.question))
        shared = [one for one in asked if text & set(query_tokens(one, load_tokenizer()))]
        return phrase(shared[:_QUERY_WORDS], self.question)

    def _locate(self, gold_ids: Iterable[str]) -> list[Hit]:
        """Find the passages behind gold ids, by the evidence they hold."""
        wanted = list(gold_ids)
        query = " ".join([self.question, *self.gold.spans])
        hits = self.retrievers["hybrid"].search(query, _DEEP) if wanted else []
        first: dict[str, Hit] = {}
        for hit in sorted(hits, key=lambda hit: not any(stands_in(span, text_of([hit])) for span in self.gold.spans)):
            for id_ in (hit.passage.passage_id, hit.passage.doc_id):
                if id_ in wanted:
                    first.setdefault(id_, hit)
        return [first[id_] for id_ in wanted if id_ in first]

    def _rewrite(self, inputs: dict[str, Any]) -> Step:
        if self._next is None:  # nothing is to be found; the loop ends by itself
            return Step("rewrite", inputs, {"query": f"{inputs['missing']} ?", "tool": "keyword"}, certain=False)
        query, tool = self._next
        return Step("rewrite", inputs, {"query": query, "tool": tool})

    def _answer(self, inputs: dict[str, Any]) -> Step:
        shown = self._shown(inputs["passages"])
        quotes = self._quotes(shown)
        if not self.gold.answer or not self._is_whole(quotes):
            raise NoGuidance("the passages do not hold the answer")
        gold = [(number, one) for number, one in enumerate(shown, 1) if self.gold.is_gold(one.hit)]
        cited = [number for number, one in gold if one.holds_any(quotes)]
        is_short = len(self.gold.answer) <= _ANSWER_CHARS
        is_clear = is_short and stands_in(self.gold.answer, "\n".join(quotes)) and self._is_about(shown, quotes)
        outputs = {"answer": self.gold.answer, "citations": cited}
        return Step("answer", inputs, outputs, shown, quotes, clear=is_clear)

    def _shown(self, passages: str) -> tuple[Shown, ...]:
        """Find the hit behind every passage of a prompt.

        Raises:
            NoGuidance: A passage is not one that was retrieved.
        """
        known = {}
        for hit in self._seen:
            for block in _BLOCK.findall(format_passages([hit], self.question, self.bounds)):
                known[block] = hit
        blocks = _BLOCK.findall(passages)
        if any(block not in known for block in blocks):
            raise NoGuidance("a passage that was not retrieved")
        return tuple(Shown(heading, body, known[heading, body]) for heading, body in blocks)

    def _quotes(self, shown: Sequence[Shown]) -> tuple[str, ...]:
        """Pick the words of gold passages that answer: the evidence the case names, else the sentence with a part."""
        gold = [one for one in shown if self.gold.is_gold(one.hit)]
        named = [span for one in gold for span in self.gold.spans if stands_in(span, one.body)]
        stated = [[part for part in sentences(one.body) if self.gold.states_part(part)][:1] for one in gold]
        return tuple(dict.fromkeys(named or (part for parts in stated for part in parts)))

    def _is_whole(self, quotes: Sequence[str]) -> bool:
        """Tell whether the quotes are enough: they are all the evidence that the case names, or state the answer."""
        if self.gold.spans and all(span in quotes for span in self.gold.spans):
            return True
        return not self.gold.needs_all and self.gold.states_answer("\n".join(quotes))

    def _contrary(self, shown: Sequence[Shown], quotes: Sequence[str]) -> list[str]:
        """Pick one sentence of another gold passage that says otherwise."""
        others = [one for one in shown if self.gold.is_gold(one.hit) and not one.holds_any(quotes)]
        return [part for one in others for part in sentences(one.body) if self.gold.misleads(part)][:1]


def _without_empty(words: Sequence[str]) -> list[str]:
    return [word for word in words if word.casefold() not in _EMPTY]


def _step(query: str) -> SearchStep:
    return SearchStep(tool="hybrid", query=query)
