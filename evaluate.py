"""Evaluate programs on gold cases: one row a program, one record a case."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from programs.cli import (
    RUNS_DIR,
    add_case_flags,
    add_index_flag,
    add_lm_flags,
    add_tracking_flags,
    note,
    positive,
    progress,
    roles_from,
    run_guarded,
    show_table,
)

if TYPE_CHECKING:
    from trainsets.evaluation import Summary


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="evaluate.py", description=__doc__)
    parser.add_argument(
        "programs", nargs="+", metavar="PROGRAM", help="naive, hybrid, agentic, an export folder or models:/NAME@ALIAS"
    )
    add_index_flag(parser)
    add_case_flags(parser)
    parser.add_argument("--split", help="train, dev or test of a folder or hub set (dev for the sample set)")
    parser.add_argument("--limit", type=positive, metavar="N", help="a stratified sample of N cases")
    parser.add_argument("--threads", type=positive, default=1, help="cases at the same time (1)")
    parser.add_argument("--out", type=Path, default=RUNS_DIR / "evaluation", metavar="DIR", help="where records go")
    parser.add_argument("--json", action="store_true", help="print the summaries as JSON")
    add_lm_flags(parser)
    add_tracking_flags(parser)
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> int:
    """Evaluate each program in turn, write its records, print the table."""
    from programs.export import name_of
    from programs.lms import bind, check
    from programs.load import load_program, open_tools
    from programs.record import to_json
    from programs.tracking import EVALUATION_RUN, experiment_name, track
    from trainsets.cases import load_cases, load_sample, sample
    from trainsets.evaluation import COLUMNS, check_scorable, evaluate_program, summarise, table_row

    cases = load_cases(args.cases, args.split) if args.cases else load_sample(args.split or "dev")
    cases = sample(cases, args.limit, args.seed) if args.limit else cases
    check_scorable(cases)
    tools = open_tools(args.index)
    programs = {spec: load_program(spec, tools, tracking_uri=args.tracking_uri) for spec in args.programs}
    names = short_names(args.programs)
    roles = roles_from(args)
    check(roles.decision, roles.answer)
    args.out.mkdir(parents=True, exist_ok=True)
    summaries: dict[str, Summary] = {}
    for spec, program in programs.items():
        records = args.out / f"{names[spec]}.jsonl"
        name = f"evaluate {names[spec]} · {roles.label} · {len(cases)} cases"
        experiment = args.experiment or experiment_name(name_of(program), args.cases)
        with track(args.tracking_uri, experiment, name, keep=records) as tracked:
            with bind(roles), progress(spec, len(cases)) as step:
                results = evaluate_program(
                    program, cases, records=records, describe=to_json, step=step, n_threads=args.threads
                )
            summaries[spec] = summarise(results)
            facts = {"program": names[spec], "lm": roles.label, "n_cases": len(cases)}
            tracked.log_params(facts | tools.facts.model_dump())
            tracked.log_tags(EVALUATION_RUN)
            tracked.log_data({"eval": cases}, tools.facts, args.cases)
            tracked.log_evaluation("eval", results, summarise, records, {"program": names[spec]})
    note(f"records: {args.out}/")
    if args.json:
        sys.stdout.write(json.dumps({spec: asdict(one) for spec, one in summaries.items()}, indent=2) + "\n")
    else:
        rows = [table_row(spec, summary) for spec, summary in summaries.items()]
        show_table(f"{len(cases)} cases · {roles.label}", COLUMNS, rows)
    return 0


def short_names(specs: Sequence[str]) -> dict[str, str]:
    """Return a name for each program that fits a file: the last part of its path, as much longer as tells it apart."""
    parts = {spec: Path(spec).resolve().parts if "/" in spec or spec in (".", "..") else (spec,) for spec in specs}
    names: dict[str, str] = {}
    for spec, own in parts.items():
        others = [other for key, other in parts.items() if key != spec]
        n = next((n for n in range(1, len(own)) if all(other[-n:] != own[-n:] for other in others)), len(own))
        names[spec] = "-".join(part.strip("/") for part in own[-n:])
    return names


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    args = parse(argv)
    return run_guarded(lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
