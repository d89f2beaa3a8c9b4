"""Public question-answering sets in the project's corpus and case formats: HotpotQA, MuSiQue, BEIR."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainsets.cases import Case
from trainsets.rows import Row, read_csv, read_hub, read_table

FORMATS = ("hotpotqa", "musique", "beir")


class FormatError(ValueError):
    """A file that is not in the format it was said to be in; one line with what was expected."""


@dataclass(slots=True)
class Imported:
    """Documents and cases in the project's formats, and how many source rows were left out, by reason."""

    documents: list[dict[str, Any]] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)


def import_set(
    kind: str, source: str, split: str = "test", config: str | None = None, limit: int | None = None, lang: str = "en"
) -> Imported:
    """Read a public set from disk or from the hub.

    Args:
        kind: one of `FORMATS`.
        source: a file of rows (`.json`, `.jsonl`, `.parquet`); for BEIR a folder with `corpus.jsonl`, `queries.jsonl`
            and `qrels/SPLIT.tsv`; or a hub id.
        split: of the hub set, or of BEIR's qrels.
        config: the configuration of a hub set that has several.
        limit: at most so many cases.
        lang: of the set.

    Raises:
        FormatError: a row lacks what the format promises, or nothing is in it.
        FileNotFoundError: neither a file nor a folder here, nor a set on the hub.
        RowsError: the source is no table.
    """
    if kind == "beir":
        imported = _import_beir(source, split, limit, lang)
    else:
        convert = {"hotpotqa": _convert_hotpotqa, "musique": _convert_musique}[kind]
        imported = _import_rows(_read_rows(source, split, config, limit), convert, kind, lang)
    if not imported.cases:
        raise FormatError(f"{source}: no case in it, expected {kind}")
    return imported


class _Pool:
    """The paragraphs of many rows as one corpus, each once."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.ids: dict[tuple[str, str], str] = {}

    def add(self, title: str, text: str) -> str:
        return self.ids.setdefault((title, text), f"{self.prefix}-{len(self.ids):05d}")

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [{"id": id_, "title": title, "text": text, "metadata": {}} for (title, text), id_ in self.ids.items()]


def _import_rows(rows: Iterable[Row], convert: Callable[[Row, _Pool], Case | str], kind: str, lang: str) -> Imported:
    pool = _Pool(kind)
    imported = Imported()
    for number, row in enumerate(rows, start=1):
        try:
            case = convert(row, pool)
        except (KeyError, TypeError, IndexError) as error:
            raise FormatError(f"row {number}: {type(error).__name__} {error}, expected a row of {kind}") from None
        if isinstance(case, str):
            imported.left_out[case] = imported.left_out.get(case, 0) + 1
        else:
            imported.cases.append(case.model_copy(update={"lang": lang}))
    imported.documents = pool.documents
    return imported


def _convert_hotpotqa(row: Row, pool: _Pool) -> Case:
    """Convert a row as the authors publish it (lists of pairs) or as the hub holds it (columns).

    Source: Yang et al. 2018, arXiv:1809.09600.
    """
    paragraphs = _pairs(row["context"], "title", "sentences")
    facts = _pairs(row["supporting_facts"], "title", "sent_id")
    ids = {title: pool.add(title, "".join(sentences).strip()) for title, sentences in paragraphs}
    sentences_of = dict(paragraphs)
    spans = [sentences_of[title][i].strip() for title, i in facts if i < len(sentences_of.get(title, []))]
    return Case(
        id=str(row.get("id") or row["_id"]),
        question=row["question"],
        answer=(row["answer"],),
        gold_ids=tuple(dict.fromkeys(ids[title] for title, _ in facts if title in ids)),
        candidate_ids=tuple(ids.values()),
        gold_spans=tuple(span for span in spans if span),
        kind="comparison" if row.get("type") == "comparison" else "multi_hop",
        meta={key: row[key] for key in ("type", "level") if row.get(key)},
    )


def _convert_musique(row: Row, pool: _Pool) -> Case | str:
    """Convert a row. The unanswerable twin of a question lacks a paragraph that its answerable twin brings.

    Source: Trivedi et al. 2022, arXiv:2108.00573.
    """
    if not row.get("answerable", True):
        return "unanswerable only in its own paragraphs, not in the pooled corpus"
    ids = [pool.add(p["title"], p["paragraph_text"]) for p in row["paragraphs"]]
    gold = [id_ for id_, p in zip(ids, row["paragraphs"], strict=True) if p["is_supporting"]]
    return Case(
        id=row["id"],
        question=row["question"],
        answer=tuple(dict.fromkeys([row["answer"], *(row.get("answer_aliases") or [])])),
        gold_ids=tuple(dict.fromkeys(gold)),
        candidate_ids=tuple(dict.fromkeys(ids)),
        kind="multi_hop",
        meta={"decomposition": [{"q": q["question"], "a": q["answer"]} for q in row["question_decomposition"]]},
    )


def _import_beir(source: str, split: str, limit: int | None, lang: str) -> Imported:
    """Read a retrieval set: documents, queries, and graded judgements; its cases have no answers.

    Source: Thakur et al. 2021, arXiv:2104.08663.
    """
    folder = Path(source)
    if folder.is_dir():
        corpus, queries = read_table(folder / "corpus.jsonl"), read_table(folder / "queries.jsonl")
        judgements = read_csv(folder / "qrels" / f"{split}.tsv", delimiter="\t")
    else:
        corpus, queries = (read_hub(source, name, config=name) for name in ("corpus", "queries"))
        judgements = read_hub(f"{source}-qrels", split)
    try:
        qrels: dict[str, dict[str, int]] = {}
        for row in judgements:
            qrels.setdefault(str(row["query-id"]), {})[str(row["corpus-id"])] = int(row["score"])
        documents = [_document(row) for row in corpus]
        asked = {str(row["_id"]): row["text"] for row in queries}
    except (KeyError, ValueError) as error:
        raise FormatError(f"{source}: {type(error).__name__} {error}, expected BEIR's columns") from None
    known = {document["id"] for document in documents}
    judged = {id_: {doc: grade for doc, grade in grades.items() if doc in known} for id_, grades in qrels.items()}
    usable = [id_ for id_, grades in judged.items() if id_ in asked and any(grade > 0 for grade in grades.values())]
    cases = [_beir_case(id_, asked[id_], judged[id_], lang) for id_ in usable[:limit]]
    left_out = {"no relevant document in the corpus, or no query text": len(qrels) - len(usable)}
    return Imported(documents, cases, {reason: n for reason, n in left_out.items() if n})


def _document(row: Row) -> dict[str, Any]:
    return {"id": str(row["_id"]), "title": row.get("title") or "", "text": row["text"], "metadata": {}}


def _beir_case(id_: str, question: str, grades: Mapping[str, int], lang: str) -> Case:
    gold = tuple(doc for doc, grade in grades.items() if grade > 0)
    return Case(id=id_, question=question, gold_ids=gold, qrels=dict(grades), kind="retrieval_only", lang=lang)


def _read_rows(source: str, split: str, config: str | None, limit: int | None) -> Iterator[Row]:
    path = Path(source)
    if path.suffix == ".json" and path.is_file():
        # HotpotQA's own file: one list of rows whose cells mix texts and lists, which no table can hold.
        rows: Sequence[Row] = json.loads(path.read_text(encoding="utf-8"))
        yield from rows[:limit]
    elif path.is_file():
        yield from read_table(path, limit)
    elif path.is_dir():
        raise FormatError(f"{path}: a folder, expected one file of rows")
    else:
        yield from read_hub(source, split, config, limit)


def _pairs(cells: Any, first: str, second: str) -> list[tuple[Any, Any]]:
    if isinstance(cells, Mapping):
        return list(zip(cells[first], cells[second], strict=True))
    return [(cell[0], cell[1]) for cell in cells]
