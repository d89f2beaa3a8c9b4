"""Documents to passages: split by structure, packed to a size in tokens, with overlap."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from retrievers.metadata import parse_date
from retrievers.readers.markdown import FENCE, TABLE_ROW, read_heading
from retrievers.readers.parsed import PAGE_BREAK
from retrievers.records import Document, Passage, Scalar

VERSION = "structure-5"
TITLE_WEIGHT = 2
_MAX_LEAD = 400  # characters of a title, and of a heading path, before a text: an embedder sees little of a longer one

_LIST_ITEM = re.compile(r"^\s*(?:[-*+•]|\d{1,3}[.)、])\s+")
# A sentence ends at Chinese full stops, or at a Latin one before a space; its closing quotes belong to it.
# Every character is looked at once, however many stops or quotes follow each other.
_SENTENCE = re.compile(
    r".(?:[^。！？；….!?\n]++|[.!?](?![\"')\]”’]*+\s))*+"
    r"(?:[。！？；…]+[”’」』）》\"']*|[.!?][\"')\]”’]*(?=\s)|\n|$)\s*",
    re.DOTALL,
)

# A longer text's tokens are estimated from three samples of so many characters: counting all of them costs a good part
# of embedding it.
_SAMPLE = 800

_LETTERS = re.compile(r"[A-Za-z\s]+")

_UNSEARCHED = frozenset({"heading", "lang", "type"})
_ADDRESS = re.compile(r"[a-z]+://")

CountTokens = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Chunker:
    """How documents are split: the size of a passage and the overlap of neighbours, in the embedder's tokens."""

    size: int = 512
    overlap: int = 96
    version: str = VERSION  # of the rules, another one in an index that an earlier version of this project built

    def __post_init__(self) -> None:
        """Refuse sizes that cannot work.

        Raises:
            ValueError: The size is below 16, or the overlap is negative or half the size or more.
        """
        if self.size < 16:
            raise ValueError(f"passage size must be at least 16 tokens, got {self.size}")
        if not 0 <= self.overlap < self.size / 2:
            raise ValueError(f"overlap must be from 0 to below half the passage size {self.size}, got {self.overlap}")

    @property
    def fingerprint(self) -> str:
        """Name what decides the passages."""
        return f"{self.version} size={self.size} overlap={self.overlap}"


@dataclass(frozen=True, slots=True)
class _Unit:
    """A piece of text that stays whole: a sentence, a list item, a table, a block of code."""

    start: int
    end: int
    headings: tuple[str, ...]
    lead: str = ""  # what is repeated before it: the header rows of a table that was cut


def parse_chunker(fingerprint: str) -> Chunker:
    """Read a chunker back from its fingerprint."""
    version, *parts = fingerprint.split()
    size, overlap = (int(part.split("=")[1]) for part in parts[:2])
    return Chunker(size, overlap, version)


def split_document(document: Document, chunker: Chunker, count_tokens: CountTokens) -> list[Passage]:
    """Split a document into passages `doc_id#0`, `doc_id#1`, …; a short one stays whole.

    A passage is a slice of the text (a cut table repeats its header before each part). Its metadata are the
    document's, with `heading` (the path of headings it stands under), `position` (its offset in the text) and, in a
    paged document, `page`.
    """
    text = document.text.strip()
    limit = _bound_length(text, chunker.size)
    if len(text) > limit or PAGE_BREAK in text:
        limit = _measure_length(text, chunker.size, count_tokens)
    if len(text) <= limit and PAGE_BREAK not in text:
        return [_make_passage(document, 0, text, (), 0, 0)]
    units = [unit for block in _find_blocks(text) for unit in _cut_block(text, block, limit)]
    groups = _pack(units, limit, limit * chunker.overlap // chunker.size)
    ends = [found.start() for found in re.finditer(PAGE_BREAK, text)]
    return [
        _make_passage(document, n, _join(text, group), _common_path(group), group[0].start, _find_page(ends, group[0]))
        for n, group in enumerate(groups)
    ]


def embedding_text(passage: Passage) -> str:
    """Put title and heading path before the text: what is embedded.

    A title that only repeats the file's name is left out, so a renamed file keeps its vectors.
    """
    title = "" if _is_named_after_file(passage) else passage.title
    heading = str(passage.metadata.get("heading", ""))
    if passage.text:
        title, heading = title[:_MAX_LEAD], heading[-_MAX_LEAD:]
    return "\n".join(part for part in (title, heading, passage.text) if part)


def lexical_text(passage: Passage) -> str:
    """Put title, heading path and metadata around the text, the title as often as it weighs: what BM25 counts.

    Questions name sources, authors and products that stand in no text; addresses and dates are left out.
    """
    lead = [passage.title] * TITLE_WEIGHT + [str(passage.metadata.get("heading", ""))]
    values = [value for key, value in passage.metadata.items() if key not in _UNSEARCHED and isinstance(value, str)]
    words = [value for value in values if not _ADDRESS.match(value) and parse_date(value) is None]
    return "\n".join(part for part in (*lead, passage.text, *words) if part)


def _is_named_after_file(passage: Passage) -> bool:
    source = passage.metadata.get("source")
    return isinstance(source, str) and bool(passage.title) and PurePosixPath(source).stem == passage.title


def split_sentences(text: str) -> list[str]:
    """Cut prose into sentences, English and Chinese."""
    return [sentence for piece in _SENTENCE.findall(text) if (sentence := piece.strip())]


def _bound_length(text: str, size: int) -> int:
    """Return how many characters of such words, numbers or Chinese are hardly ever over `size` tokens."""
    share = len(_LETTERS.sub("", text)) / max(1, len(text))
    return int(size / (1.1 * share + 0.45 * (1 - share)))


def _measure_length(text: str, size: int, count_tokens: CountTokens) -> int:
    """Return how many characters of `text` are `size` tokens: as counted in all of it, or in its start, middle and end.

    No more than 20 characters a token, of which there are hardly any in a sample of blanks.
    """
    middle = len(text) // 2 - _SAMPLE // 2
    samples = [text] if len(text) <= 3 * _SAMPLE else [text[:_SAMPLE], text[middle:][:_SAMPLE], text[-_SAMPLE:]]
    n_tokens, n_characters = sum(map(count_tokens, samples)), sum(map(len, samples))
    return max(1, min(20 * size, size * n_characters // max(1, n_tokens)))


def _make_passage(document: Document, n: int, text: str, headings: Sequence[str], position: int, page: int) -> Passage:
    metadata: dict[str, Scalar] = dict(document.metadata)
    if headings:
        metadata["heading"] = " > ".join(headings)
    if position:
        metadata["position"] = position
    if page:
        metadata["page"] = page
    return Passage(f"{document.doc_id}#{n}", document.doc_id, document.title, text, metadata)


@dataclass(frozen=True, slots=True)
class _Block:
    kind: str  # "text", "list", "table", "code"
    start: int
    end: int
    headings: tuple[str, ...]


def _find_blocks(text: str) -> Iterator[_Block]:
    """Cut the text at blank lines, headings and changes of kind; a fence of code is one block."""
    path: list[tuple[int, str]] = []
    kind, start, end = "", 0, 0
    for line_start, line in _lines(text):
        if kind == "code":
            end = line_start + len(line)
            if FENCE.match(line):
                yield _Block("code", start, end, tuple(title for _, title in path))
                kind = ""
            continue
        new = _name_line(line)
        if kind and (new != kind or new == "heading") and not (kind == "list" and new == "text" and line[:1] in " \t"):
            yield _Block(kind, start, end, tuple(title for _, title in path))
            kind = ""
        if new == "heading" and (heading := read_heading(line)):
            path = [(depth, title) for depth, title in path if depth < heading[0]] + [heading]
        if new and not kind:
            kind, start = new, line_start
        end = line_start + len(line)
    if kind:
        yield _Block(kind, start, end, tuple(title for _, title in path))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    position = 0
    for line in text.splitlines(keepends=True):
        yield position, line
        position += len(line)


def _name_line(line: str) -> str:
    if not line.strip():
        return ""
    if FENCE.match(line):
        return "code"
    if read_heading(line):
        return "heading"
    if TABLE_ROW.match(line):
        return "table"
    return "list" if _LIST_ITEM.match(line) else "text"


def _cut_block(text: str, block: _Block, limit: int) -> Iterator[_Unit]:
    """Keep a block whole when it fits; else cut prose at sentences, the rest at lines, and what is left by length.

    What is blank is left out.
    """
    if block.end - block.start <= limit and block.kind != "text":
        yield _Unit(block.start, block.end, block.headings)
        return
    lead, start = "", block.start
    if block.kind == "table":
        lead, start = _take_table_header(text, block, limit // 2)
        limit -= len(lead)
    body = text[start : block.end]
    pieces = _SENTENCE.findall(body) if block.kind == "text" else body.splitlines(keepends=True)
    for piece in pieces:
        for offset in range(0, len(piece), limit):
            end = min(start + limit, start + len(piece) - offset)
            if not text[start:end].isspace():
                yield _Unit(start, end, block.headings, lead)
            start = end


def _take_table_header(text: str, block: _Block, longest: int) -> tuple[str, int]:
    """Split off the first row and the rule under it, where rows follow and it leaves them room."""
    rows = text[block.start : block.end].splitlines(keepends=True)
    n = 2 if len(rows) > 1 and set(rows[1].strip()) <= set("|-: ") else 1
    lead = "".join(rows[:n])
    if len(rows) <= n or len(lead) > longest:  # the header is all there is, or most of it, and is cut itself
        return "", block.start
    return lead, block.start + len(lead)


def _pack(units: Sequence[_Unit], limit: int, overlap: int) -> Iterator[list[_Unit]]:
    """Fill passages up to `limit` characters; start a new one at a heading once half full."""
    group: list[_Unit] = []
    for unit in units:
        new_section = bool(group) and unit.headings != group[-1].headings and _span(group[0], group[-1]) >= limit // 2
        if group and (new_section or _span(group[0], unit) > limit):
            yield group
            group = [] if new_section else _take_tail(group, unit, overlap, limit)
        group.append(unit)
    if group:
        yield group


def _take_tail(group: Sequence[_Unit], following: _Unit, overlap: int, limit: int) -> list[_Unit]:
    """Take the last units of a passage that fit the overlap and stand under the same headings as what follows."""
    first = len(group)
    while first > 1:
        unit = group[first - 1]
        too_much = _span(unit, group[-1]) > overlap or _span(unit, following) > limit
        if unit.headings != following.headings or too_much:
            break
        first -= 1
    return list(group[first:])


def _span(first: _Unit, last: _Unit) -> int:
    """Measure a passage from one unit to another: the header it repeats, and what is blank between them, count too."""
    return len(first.lead) + last.end - first.start


def _join(text: str, group: Sequence[_Unit]) -> str:
    return (group[0].lead + text[group[0].start : group[-1].end]).replace(PAGE_BREAK, "\n").strip()


def _find_page(ends: Sequence[int], unit: _Unit) -> int:
    """Find the page, from 1, on which a passage starts; 0 where the document has none."""
    return bisect_left(ends, unit.start) + 1 if ends else 0


def _common_path(group: Sequence[_Unit]) -> tuple[str, ...]:
    path = group[0].headings
    for unit in group[1:]:
        shared = (i for i, (a, b) in enumerate(zip(path, unit.headings, strict=False)) if a != b)
        path = path[: next(shared, min(len(path), len(unit.headings)))]
    return path
