"""The commands on registered versions: versions, show, diff, promote, rollback; and log, for what is not logged yet."""

import argparse
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from programs.cli import UsageError, add_command, add_store_flag, show_table
from programs.progress import note

if TYPE_CHECKING:
    from programs.tracking.versions import Version

_COLUMNS = ("version", "aliases", "created", "LM", "optimizer", "seed", "compiled", "gate", "corpus")


def add_commands(commands: Any) -> None:
    """Add the commands to the parsers of `python -m programs`; each names its function as `run`."""
    versions = _add(commands, "versions", run_versions, "list the registered versions of a program")
    versions.add_argument("--json", action="store_true", help="print them as JSON")
    show = _add(commands, "show", run_show, "show where a version comes from and what its prompts are")
    show.add_argument("version", metavar="V", help="number or alias")
    diff = _add(commands, "diff", run_diff, "show what differs between two versions: facts, scores, prompts")
    diff.add_argument("before", metavar="A", help="number or alias")
    diff.add_argument("after", metavar="B", help="number or alias")
    promote = _add(commands, "promote", run_promote, "make a version the champion")
    promote.add_argument("version", metavar="V", help="number or alias")
    promote.add_argument("--force", action="store_true", help="even if the gate rejected it")
    _add(commands, "rollback", run_rollback, "make the champion before this one champion again")
    log = _add(commands, "log", run_log, "log what MLflow could not take, or an export that it does not know")
    log.add_argument("export", type=Path, metavar="EXPORT", help="export folder (or records file of an evaluation)")


def _add(commands: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    parser = add_command(commands, name, run, text)
    parser.add_argument("--model", metavar="NAME", help="registered model, where the store has several")
    add_store_flag(parser)
    return parser


def run_versions(args: argparse.Namespace) -> int:
    """List the versions, newest first."""
    from programs.tracking.versions import list_versions

    versions = list_versions(args.tracking_uri, args.model)
    if args.json:
        sys.stdout.write(json.dumps([describe(one) for one in versions], ensure_ascii=False, indent=2) + "\n")
    else:
        show_table(versions[0].name if versions else "no versions", _COLUMNS, map(_row, versions))
    return 0


def describe(version: "Version") -> dict[str, Any]:
    """Return a version as plain data."""
    return {
        "name": version.name,
        "version": version.number,
        "aliases": list(version.aliases),
        "created": version.created.isoformat(timespec="seconds"),
        "run_id": version.run_id,
        "prompts": version.prompts,
        "tags": dict(version.tags),
    }


def _row(version: "Version") -> tuple[str, ...]:
    tags = ("lm", "optimizer", "seed_score", "compiled_score", "gate", "corpus_version")
    facts = (version.tags.get(name, "–") for name in tags)
    return (str(version.number), ", ".join(version.aliases) or "–", f"{version.created:%Y-%m-%d %H:%M}", *facts)


def run_show(args: argparse.Namespace) -> int:
    """Show one version: facts first, then its prompts."""
    from programs.tracking.versions import exported, find

    version = find(args.tracking_uri, args.version, args.model)
    with exported(args.tracking_uri, _uri(version)) as folder:
        prompts = (folder / "prompts.md").read_text(encoding="utf-8")
        built_by = _read_built_by(folder, _uri(version))
    lines = [f"{version.name} {version.number}  {', '.join(version.aliases)}".rstrip(), f"  run: {version.run_id}"]
    facts = {**built_by, **version.tags}
    lines += [f"  {name}: {value}" for name, value in facts.items() if value is not None]
    sys.stdout.write("\n".join([*lines, "", prompts]))
    return 0


def _read_built_by(folder: Path, uri: str) -> dict[str, Any]:
    """Read what built an export, without DSPy, which takes seconds to load."""
    try:
        return dict(json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["built_by"])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{uri}: its manifest.json is damaged ({type(error).__name__}: {error})") from None


def run_diff(args: argparse.Namespace) -> int:
    """Show what differs between two versions; nothing is printed where nothing does."""
    from programs.tracking.runs import diff_lines
    from programs.tracking.versions import exported, find

    both = [find(args.tracking_uri, which, args.model) for which in (args.before, args.after)]
    prompts: list[str] = []
    for version in both:
        with exported(args.tracking_uri, _uri(version)) as folder:
            prompts.append((folder / "prompts.md").read_text(encoding="utf-8"))
    before, after = ({name: value for name, value in one.tags.items() if name != "prompts"} for one in both)
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    lines = [f"{name}: {before.get(name, '–')} → {after.get(name, '–')}" for name in names]
    old, new = (_by_predictor(text) for text in prompts)
    for name in sorted(old.keys() | new.keys()):
        labels = [f"{name}, version {one.number}" for one in both]
        lines += diff_lines(old.get(name, ""), new.get(name, ""), *labels)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def _by_predictor(prompts: str) -> dict[str, str]:
    """Return the parts of a `prompts.md`, by the name that stands in the heading of each; what changed comes last."""
    prompts = re.split(r"^# What compiling changed$", prompts, maxsplit=1, flags=re.MULTILINE)[0].rstrip()
    parts = re.split(r"^## (\w+) (?=\(\d+ demos\)$)", prompts, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def run_promote(args: argparse.Namespace) -> int:
    """Make a version the champion; exit code 1 if the gate rejected it."""
    from programs.tracking.versions import find, promote

    version = find(args.tracking_uri, args.version, args.model)
    return _change_champion(lambda: promote(args.tracking_uri, version, force=args.force))


def run_rollback(args: argparse.Namespace) -> int:
    """Go back one champion; exit code 1 if there was none."""
    from programs.tracking.versions import roll_back

    return _change_champion(lambda: roll_back(args.tracking_uri, args.model))


def _change_champion(change: Callable[[], "Version"]) -> int:
    from programs.tracking.versions import PromotionError

    try:
        champion = change()
    except PromotionError as error:
        note(f"error: {error}")
        return 1
    sys.stdout.write(f"champion: {champion.name} {champion.number}, as models:/{champion.name}@champion\n")
    return 0


def run_log(args: argparse.Namespace) -> int:
    """Log what waits beside an export; without any, register the export as a version with a run of its own."""
    from programs.tracking.journal import pending_folders, read_pending
    from programs.tracking.runs import log_later
    from retrievers.locks import FolderBusy, hold_lock

    waiting = pending_folders(args.export)
    for folder in waiting:
        with hold_lock(folder, "log", FolderBusy):
            pending = read_pending(folder)
            log_later(args.tracking_uri, pending)
            shutil.rmtree(folder)
        sys.stdout.write(f"logged: {pending.name}\n")
    if not waiting:
        sys.stdout.write(f"registered: {log_export(args.tracking_uri, args.export, args.model)}\n")
    return 0


def log_export(tracking_uri: str, export: Path, model: str | None) -> str:
    """Register an export in a run made from its manifest; returns the name and number of the version.

    Raises:
        UsageError: It does not say which model it belongs to, and `model` does not either.
        FileNotFoundError: No export there.
        TrackingError: The store can't be used.
    """
    from programs.export import read_manifest
    from programs.tracking import track

    manifest = read_manifest(export)
    name = model or manifest.built_by.get("model")
    if not name:
        raise UsageError(f"{export} does not say which model it is a version of; name one with --model")
    title = (
        f"{manifest.built_by.get('optimizer', 'export')} · {manifest.lm} · {manifest.created[:16].replace('T', ' ')}"
    )
    with track(tracking_uri, name, title) as tracked:
        tracked.log_params({"lm": manifest.lm, **manifest.built_by})
        tracked.log_files(export, "export")
        tracked.register(name, export, {})
    return tracked.version


def _uri(version: "Version") -> str:
    return f"models:/{version.name}/{version.number}"
