"""The command line of a compile: its flags, and the settings and limits that they stand for."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from programs.cli import (
    add_case_flags,
    add_gate_flags,
    add_index_flag,
    add_lm_flags,
    add_tool_flags,
    add_tracking_flags,
    amount,
    count,
    positive,
)
from programs.places import EXPORT_DIR
from programs.settings import OPTIMIZERS, Limits, Settings, stages_of


def parse(argv: Sequence[str] | None, description: str | None) -> argparse.Namespace:
    """Read the command line of `optimize.py`."""
    parser = argparse.ArgumentParser(prog="optimize.py", description=description)
    parser.add_argument("--program", choices=("naive", "hybrid", "agentic"), default="agentic", help="seed program")
    parser.add_argument(
        "--optimizer",
        type=optimizer,
        default="bootstrap",
        metavar="NAME",
        help=f"{', '.join(OPTIMIZERS)}, or chain:ONE,ANOTHER (bootstrap)",
    )
    parser.add_argument("--auto", choices=("light", "medium", "heavy"), default="light", help="size of the run (light)")
    parser.add_argument("--trials", type=positive, metavar="N", help="size of the run in candidates, instead of --auto")
    parser.add_argument("--max-demos", type=positive, default=3, metavar="N", help="demos of a predictor (3)")
    parser.add_argument("--step-demos", action="store_true", help="start from demos made of the gold evidence")
    parser.add_argument("--teacher-lm", metavar="LM", help="LM that runs the program while demos are collected")
    parser.add_argument("--proposer-lm", metavar="LM", help="LM that writes instructions")
    parser.add_argument("--max-lm-calls", type=positive, metavar="N", help="compile with N calls at most")
    parser.add_argument("--max-cost", type=amount, metavar="USD", help="compile until this much is spent")
    parser.add_argument("--max-minutes", type=amount, metavar="M", help="compile for M minutes at most")
    parser.add_argument(
        "--restart", action="store_true", help="forget the trials of an earlier attempt, ask the LM anew"
    )
    parser.add_argument("--dry-run", action="store_true", help="only look at what the compile would meet and cost")
    parser.add_argument("--probe", type=count, default=6, metavar="N", help="train cases run to look ahead (6)")
    parser.add_argument("--force", action="store_true", help="compile even if it looks hopeless")
    parser.add_argument("--prune-demos", action="store_true", help="drop demos without which no score falls")
    parser.add_argument("--limit", type=positive, metavar="N", help="train on a stratified sample of N cases")
    parser.add_argument("--eval-limit", type=positive, metavar="N", help="compare on N dev cases, a stratified sample")
    parser.add_argument("--threads", type=positive, default=1, help="cases at the same time (1)")
    parser.add_argument("--out", type=Path, default=EXPORT_DIR, metavar="DIR", help=f"export folder ({EXPORT_DIR})")
    add_index_flag(parser)
    add_tool_flags(parser)
    add_case_flags(parser)
    add_lm_flags(parser)
    add_tracking_flags(parser)
    add_gate_flags(parser, on_by_default=True)
    parser.add_argument("--champion", metavar="EXPORT", help="the program in use, which the new one has to beat")
    return parser.parse_args(argv)


def optimizer(text: str) -> str:
    """Check the name of an optimizer, for argparse."""
    try:
        stages_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def settings_from(args: argparse.Namespace) -> Settings:
    """Collect how to compile from the flags."""
    return Settings(
        args.optimizer, args.max_demos, args.auto, args.trials, args.seed, args.threads, step_demos=args.step_demos
    )


def limits_from(args: argparse.Namespace) -> Limits:
    """Collect what the compile may spend from the flags."""
    return Limits(args.max_lm_calls, args.max_cost, args.max_minutes)
