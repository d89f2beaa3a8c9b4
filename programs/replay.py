"""A recorded run as a readable story: what was asked of which tool and why, what came, what was made of it."""

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]
_NEEDED = frozenset({"question", "answer", "stop_reason", "hops", "usage"})


class RecordError(ValueError):
    """A file that holds no record of a run, or not the one asked for."""


def read_records(path: Path) -> dict[str, Record]:
    """Read the runs of a file by case id: what `ask --json` printed, or the JSONL that `evaluate.py` wrote.

    A single record has the id "". A case that errored holds no run; its record is `{"error": …}`.

    Raises:
        FileNotFoundError: No such file.
        RecordError: A line is no JSON, or is no record.
    """
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    try:
        return {"": _check(json.loads(text), str(path))}
    except (json.JSONDecodeError, RecursionError):
        pass  # not one JSON text: lines of them
    records: dict[str, Record] = {}
    # Not `splitlines`: texts of a corpus hold other line ends of Unicode, which JSON leaves as they are.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                one = json.loads(line)
            except (json.JSONDecodeError, RecursionError) as error:
                raise RecordError(f"{path}:{number}: no JSON: {error}") from None
            case_id = str(one.get("id", f"line {number}")) if isinstance(one, dict) else ""
            records[case_id] = _check(one, f"{path}:{number}")
    if not records:
        raise RecordError(f"{path}: holds no record")
    return records


def choose_record(records: Mapping[str, Record], case: str | None, path: Path) -> Record:
    """Return the record of a case, or the only one there is.

    Raises:
        RecordError: There is no such case, or several and none was named.
    """
    if case is None and len(records) == 1:
        return next(iter(records.values()))
    if case is not None and case in records:
        return records[case]
    known = ", ".join(list(records)[:5]) + (", …" if len(records) > 5 else "")
    wrong = f"no case {case!r} here" if case is not None else f"{len(records)} runs here; name one with --case"
    raise RecordError(f"{path}: {wrong}; there are {known or 'one run without an id'}")


def tell(record: Record) -> list[str]:
    """Tell a run, one line each: question, every hop, the answer, what it cost and who decided what."""
    if "hops" not in record:
        return [f"The run failed: {record['error']}"]
    lines = [f"Question: {record['question']}"]
    for number, hop in enumerate(record["hops"], start=1):
        lines += ["", *_tell_hop(number, hop)]
    lines += ["", f"{'Abstained' if record.get('abstained') else 'Answer'}: {record['answer']}"]
    titles = {one["passage_id"]: one.get("title", "") for one in record.get("context") or []}
    lines += [f"  cites {one}  {titles.get(one, '')}".rstrip() for one in record.get("citations") or []]
    if check := record.get("check"):
        lines.append(
            f"  checked by {check['by']}: {check['outcome']}" + f" ({check['reason']})" * bool(check["reason"])
        )
    lines += [f"  ({record['error']})"] if record.get("error") else []
    return [*lines, "", *tell_costs(record)]


def tell_costs(record: Record) -> list[str]:
    """Tell the size of the plan, what the run spent, and how much of it rules decided."""
    hops, usage = record["hops"], record["usage"]
    first_verdict = next((n for n, hop in enumerate(hops, 1) if hop.get("verdict")), len(hops))
    judged = [hop["judged_by"] for hop in hops if hop.get("judged_by")]
    tokens = usage["prompt_tokens"] + usage["completion_tokens"]
    return [
        f"Plan: {_count(first_verdict, 'search', 'searches')}, then {len(hops) - first_verdict} more · "
        f"stopped: {record['stop_reason']}",
        f"Searches asked for by rule {_share(hops, 'decided_by')} · verdicts by rule "
        f"{judged.count('rule')} of {len(judged)}",
        f"{_count(usage['lm_calls'], 'LM call', 'LM calls')}, {usage.get('cached_calls', 0)} from the cache · "
        f"{tokens} tokens · {usage['seconds']:.1f} s · {usage.get('parse_failures', 0)} outputs unreadable, "
        f"{usage.get('truncations', 0)} cut off",
    ]


def _tell_hop(number: int, hop: Record) -> list[str]:
    lines = [f"{number}. {hop['tool']}, by {hop['decided_by']}: {hop['query']}  ({hop['seconds']:.2f} s)"]
    if hop.get("goal") and hop["goal"] != hop["query"]:
        lines.append(f"   to find: {hop['goal']}")
    if hop.get("filters"):
        lines.append(f"   only where {_plain(hop['filters'])}")
    if hop.get("dropped"):
        lines.append(f"   nothing where {_plain(hop['dropped'])}, so without it")
    if hop.get("error"):
        lines.append(f"   failed: {hop['error']}")
    kept, ratings = set(hop.get("kept") or []), hop.get("relevance") or []
    lines += [
        f"   {hit['rank']:>2}. {hit['score']:.3f} {hit['passage_id']}"
        + (f"  relevance {relevance:.2f}" if relevance is not None else "")
        + ("" if hit["passage_id"] in kept else "  (seen before)")
        for hit, relevance in zip_longest(hop["hits"], ratings[: len(hop["hits"])])
    ]
    if hop.get("left_out"):
        lines.append(f"   not read, too little relevant: {', '.join(hop['left_out'])}")
    if hop.get("verdict"):
        quoted = "; ".join(f"“{quote}”" for quote in hop.get("quotes") or [])
        lines.append(f"   judged {hop['verdict']} by {hop['judged_by']}" + (f": {quoted}" if quoted else ""))
        lines += [f"   missing: {hop['missing']}"] if hop.get("missing") else []
    return lines


def _check(one: Any, place: str) -> Record:
    if isinstance(one, dict) and "prediction" in one:  # a line of an evaluation
        if one["prediction"] is None:
            return {"error": str(one.get("error") or "no reason was recorded")}
        one = one["prediction"]
    missing = sorted(_NEEDED - set(one)) if isinstance(one, dict) else sorted(_NEEDED)
    if missing:
        raise RecordError(f"{place}: no record of a run: {missing[0]} is missing; make one with ask --json")
    try:
        tell(one)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RecordError(
            f"{place}: no record of a run ({type(error).__name__}: {error}); make one with ask --json"
        ) from None
    return dict(one)


def _plain(filters: Mapping[str, Any]) -> str:
    return json.dumps(filters, ensure_ascii=False)


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


def _share(hops: Sequence[Record], key: str) -> str:
    return f"{sum(hop.get(key) == 'rule' for hop in hops)} of {len(hops)}"
