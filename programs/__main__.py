"""Ask a program: `python -m programs ask "…" --program EXPORT`; tell a recorded run: `replay`; look after versions."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from programs.cli import (
    PROGRAM_HELP,
    UsageError,
    add_command,
    add_index_flag,
    add_lm_flags,
    add_store_flag,
    add_tool_flags,
    roles_from,
    run_guarded,
    show_table,
)
from programs.progress import note, printable
from programs.registry import add_commands

if TYPE_CHECKING:
    from datetime import date

    import dspy

    from programs.rag import NaiveRAG
    from programs.record import Hop


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m programs", description="Use a program.")
    commands = parser.add_subparsers(dest="command", required=True)
    ask = add_command(commands, "ask", run_ask, "answer one question with citations")
    ask.add_argument("question")
    ask.add_argument("--program", default="agentic", metavar="PROGRAM", help=PROGRAM_HELP)
    ask.add_argument("--show-hops", action="store_true", help="show what was searched, found and judged")
    ask.add_argument("--json", action="store_true", help="print the whole record as JSON")
    ask.add_argument("--today", metavar="DATE", help="day from which `last month` is counted, as 2026-01-31 (today)")
    ask.add_argument(
        "--trace", action="store_true", help="log the run as a trace, to PROGRAM-served in the MLflow store"
    )
    add_index_flag(ask)
    add_tool_flags(ask)
    add_lm_flags(ask)
    add_store_flag(ask)
    replay = add_command(commands, "replay", run_replay, "tell a recorded run as a story")
    replay.add_argument("record", type=Path, metavar="RECORD", help="JSON of ask --json, or JSONL of evaluate.py")
    replay.add_argument("--case", metavar="ID", help="case of a file with several")
    routes = add_command(commands, "routes", run_routes, "count which questions need the planner; no LM")
    routes.add_argument("--cases", metavar="PATH", help="case file, folder of splits, or hub id (the sample set)")
    routes.add_argument("--split", help="train, dev or test of a folder or hub set (dev for the sample set)")
    routes.add_argument("--today", metavar="DATE", help="day from which `last month` is counted, as 2026-01-31 (today)")
    add_index_flag(routes)
    add_tool_flags(routes)
    add_commands(commands)
    return parser.parse_args(argv)


def run_ask(args: argparse.Namespace) -> int:
    """Answer one question; exit code 1 means that the program abstained."""
    from programs.lms import bind, check
    from programs.load import load_program, open_tools
    from programs.record import to_json
    from programs.watching import show_steps, watch

    if not args.question.strip():
        raise UsageError("the question is empty")
    today = _read_day(args.today)
    with show_steps() as say:
        say("opening index and program")
        tools = open_tools(args.index, args.database, args.tools)
        program = load_program(args.program, tools, tracking_uri=args.tracking_uri)
        say("starting the LM")
        roles = roles_from(args)
        check(roles.decision, roles.answer)
        trace = make_tracer(args, program, roles.label, say) if args.trace else None
        with bind(roles), watch(program, say):
            prediction = program(question=args.question, today=today)
    show_answer(args, prediction)
    if trace:
        trace(to_json(prediction))
    return int(prediction.abstained)


def make_tracer(
    args: argparse.Namespace, program: "NaiveRAG", lm: str, say: Callable[[str], None]
) -> Callable[[dict[str, Any]], None]:
    """Open the MLflow store before any work, and return what logs an answer there; if that fails, it is said."""
    from programs.export import name_of
    from programs.load import is_version
    from programs.tracking import TrackingError
    from programs.tracking.traces import log_answer, open_served

    say("opening the MLflow store")
    experiment_id = open_served(args.tracking_uri, name_of(program))
    tags = {"program": args.program if is_version(args.program) else Path(args.program).name, "lm": lm}

    def trace(prediction: dict[str, Any]) -> None:
        try:
            note(f"trace: {log_answer(args.tracking_uri, experiment_id, prediction, tags)}")
        except TrackingError as error:
            note(f"warning: no trace was logged: {error}")

    return trace


def show_answer(args: argparse.Namespace, prediction: "dspy.Prediction") -> None:
    """Print an answer, and what it cost."""
    from programs.record import to_json

    if args.json:
        sys.stdout.write(json.dumps(to_json(prediction), ensure_ascii=False, indent=2) + "\n")
        return
    if args.show_hops:
        sys.stdout.write(
            "".join(f"{printable(line)}\n" for hop in prediction.hops for line in describe_hop(hop)) + "\n"
        )
    sys.stdout.write("".join(f"{printable(line)}\n" for line in describe_answer(prediction)))
    usage = prediction.usage
    cut_off = f"{usage.truncations} cut off at the token limit · " if usage.truncations else ""
    note(
        f"{usage.lm_calls} LM calls · {usage.prompt_tokens + usage.completion_tokens} tokens · {cut_off}"
        f"{usage.seconds:.1f} s · stopped: {prediction.stop_reason}"
    )


def run_replay(args: argparse.Namespace) -> int:
    """Tell a recorded run."""
    from programs.replay import choose_record, read_records, tell

    record = choose_record(read_records(args.record), args.case, args.record)
    sys.stdout.write("".join(f"{printable(line)}\n" for line in tell(record)))
    return 0


def run_routes(args: argparse.Namespace) -> int:
    """Count the routes of cases."""
    from programs.routes import COLUMNS, count_routes, route_rows
    from programs.tools import make_toolbox
    from retrievers import open_index
    from trainsets.cases import load_cases, load_sample

    today = _read_day(args.today)
    cases = load_cases(args.cases, args.split) if args.cases else load_sample(args.split or "dev")
    toolbox = make_toolbox(open_index(args.index), args.database, args.tools)
    show_table("Cases by route", COLUMNS, route_rows(count_routes(cases, toolbox, today)))
    return 0


def _read_day(text: str | None) -> "date":
    from datetime import date

    try:
        return date.fromisoformat(text) if text else date.today()
    except ValueError:
        raise UsageError(f"--today: {text!r} is no date; write it as 2026-01-31") from None


def describe_answer(prediction: "dspy.Prediction") -> list[str]:
    """Return the answer and its sources, one a line."""
    titles = {hit.passage.passage_id: hit.passage.title for hit in prediction.context}
    lines = [prediction.answer]
    lines += [f"  [{number}] {one}  {titles[one]}" for number, one in enumerate(prediction.citations, 1)]
    return lines + ([f"  ({prediction.error})"] if prediction.error else [])


def describe_hop(hop: "Hop") -> list[str]:
    """Return one search as a reader would tell it: what was asked, what came, what was made of it."""
    filters: Any = f" where {dict(hop.filters)}" if hop.filters else ""
    lines = [f"{hop.tool} search by {hop.decided_by}: {hop.query}{filters}  ({hop.seconds:.2f} s)"]
    lines += [f"  nothing where {dict(hop.dropped)}, so without it"] if hop.dropped else []
    lines += [f"  failed: {hop.error}"] if hop.error else []
    lines += [
        f"  {hit.rank:>2}. {hit.score:.3f} "
        + (f"relevance {relevance:.2f}  " if relevance is not None else "")
        + f"{hit.passage.passage_id}  {hit.passage.title}"
        + ("" if hit.passage.passage_id in hop.kept else "  (seen before)")
        for hit, relevance in zip_longest(hop.hits, hop.relevance[: len(hop.hits)])
    ]
    if hop.verdict:
        lines.append(
            f"  judged {hop.verdict} by {hop.judged_by}" + (f", missing: {hop.missing}" if hop.missing else "")
        )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    args = parse(argv)
    return run_guarded(lambda: int(args.run(args)))


if __name__ == "__main__":
    sys.exit(main())
