"""MLflow runs: one a compile, with a child a trial; one an evaluation. A store that fails loses nothing."""

import difflib
import hashlib
import json
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from programs.addresses import without_secrets
from programs.places import TRACKING_URI
from programs.tracking.journal import Entry, Pending, write_pending
from programs.tracking.provenance import case_set_name, describe_code, describe_environment, digest_of
from programs.tracking.stores import STORE_ERRORS, make_experiment, one_error, tracking_error
from programs.tracking.traces import log_traces
from programs.tracking.versions import promote, register

EVALUATION_RUN = {"mlflow.runType": "genai_evaluate"}  # shows a run, and its traces, among the evaluations of the UI
_PROCESS = "process"
_VERSION = "version"
_PARENT = "mlflow.parentRunId"
_PARAM_CHARS = 250
_DIGITS = 4  # of a score; 0.7142857142857143 reads badly in a table
_SLICES = ("kind", "lang")
_SLICE_SCORES = ("combined", "answer_score", "all_evidence_recall_at_5")
_TOTALS = ("n", "n_errors", "lm_calls", "tokens", "cost_usd", "parse_failures", "truncations", "n_cached_calls")


class TrackedRun:
    """An open MLflow run; a thin face that keeps MLflow's limits (short params, no `@` in metric names).

    What the store does not take is tried again at the end of the run.
    """

    def __init__(self, tracking_uri: str, experiment_id: str, run_id: str) -> None:
        """Wrap an active run."""
        self.run_id = run_id
        self._target = _Target(tracking_uri, experiment_id, run_id, MlflowClient(tracking_uri))
        self._left: list[Entry] = []
        self._lock = threading.RLock()  # optimizers score on threads

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log settings; None is left out, long values are cut."""
        self.add("params", {name: str(value)[:_PARAM_CHARS] for name, value in params.items() if value is not None})

    def log_tags(self, tags: Mapping[str, Any]) -> None:
        """Log what a list of runs can be searched by; None is left out."""
        self.add("tags", {name: str(value) for name, value in tags.items() if value is not None})

    def log_scores(self, prefix: str, scores: Mapping[str, float | None], step: int = 0) -> None:
        """Log metrics as `<prefix>.<name>`; what could not be measured is left out."""
        values = {f"{prefix}.{name}": float(value) for name, value in scores.items() if value is not None}
        self.add("metrics", {"metrics": values, "step": step, "time": _now()})

    def log_summary(self, prefix: str, summary: Any) -> None:
        """Log everything a summary of an evaluation measured."""
        main = {name: summary.scores.get(name) for name in _SLICE_SCORES}  # tables show columns in this order
        self.log_scores(prefix, _rounded({**main, **summary.scores, **summary.abstention}))
        self.log_scores(prefix, {name: float(getattr(summary, name)) for name in _TOTALS})
        self.log_scores(prefix, {"seconds_p50": summary.seconds_p50, "seconds_p95": summary.seconds_p95})
        self.log_scores(f"{prefix}.outcome", {name: float(n) for name, n in summary.outcomes.items()})

    def log_slices(self, prefix: str, results: Sequence[Any], summarise: Callable[[Sequence[Any]], Any]) -> None:
        """Log the main scores of every kind and language of cases, as `<prefix>.kind/<kind>.<name>`."""
        for key in _SLICES:
            parts: dict[str, list[Any]] = {}
            for result in results:
                parts.setdefault(getattr(result.case, key) or "none", []).append(result)
            scores: dict[str, float | None] = {}
            for value, part in parts.items():
                summary = summarise(part)
                scores |= {f"{value}.{name}": summary.scores.get(name) for name in _SLICE_SCORES}
                scores[f"{value}.n"] = float(len(part))
            self.add("metrics", {"metrics": _prefixed(f"{prefix}.{key}/", _rounded(scores)), "step": 0, "time": _now()})

    def log_program(self, prefix: str, program: Any) -> None:
        """Log how many demos and how long a prompt every predictor has, as `<prefix>.predictor/<predictor>.<name>`."""
        sizes: dict[str, float | None] = {}
        for name, predictor in program.named_predictors():
            sizes[f"{name}.demos"] = float(len(predictor.demos))
            sizes[f"{name}.prompt_chars"] = float(len(prompt_text(predictor)))
        self.add("metrics", {"metrics": _prefixed(f"{prefix}.predictor/", sizes), "step": 0, "time": _now()})

    def log_prompts(self, seed: Any, compiled: Any) -> None:
        """Log the size of every prompt before and after, and one diff a predictor that compiling changed."""
        self.log_program("seed", seed)
        self.log_program("compiled", compiled)
        after = dict(compiled.named_predictors())
        for name, predictor in seed.named_predictors():
            lines = diff_lines(prompt_text(predictor), prompt_text(after[name]), "seed", "compiled")
            if lines:
                self.log_text("\n".join(lines) + "\n", f"prompt_diffs/{name}.diff")

    def log_evaluation(
        self,
        prefix: str,
        results: Sequence[Any],
        summarise: Callable[[Sequence[Any]], Any],
        records: Path,
        tags: Mapping[str, str],
    ) -> None:
        """Log an evaluation: its summary, its slices, its records, and every record as a trace.

        Args:
            prefix: Of the metrics.
            results: One a case.
            summarise: Adds results up.
            records: The same results as JSONL.
            tags: Of every trace.
        """
        self.log_summary(prefix, summarise(results))
        self.log_slices(prefix, results, summarise)
        self.log_files(records, "records")
        self.log_traces(records, tags)

    def log_spend(self, prefix: str, usage: Any) -> None:
        """Log what LM calls cost, as `<prefix>.spend.<name>`."""
        names = ("lm_calls", "cached_calls", "prompt_tokens", "completion_tokens", "cost_usd")
        self.log_scores(f"{prefix}.spend", {name: getattr(usage, name) for name in names})

    def log_data(self, splits: Mapping[str, Sequence[Any]], index: Any, cases: str | Path | None) -> None:
        """Log the gold cases of every split and the corpus as datasets with digests, and the facts of the index.

        Args:
            splits: What they are used for → gold cases.
            index: The facts of the index.
            cases: Where the cases came from; only its name is logged.
        """
        for context, split in splits.items():
            if split:
                digest = digest_of({case.id: case.model_dump(mode="json") for case in split})
                self.log_dataset(case_set_name(cases), digest, len(split), context)
        self.log_dataset("corpus", index.corpus_version, index.n_documents, "index")
        self.log_text(index.model_dump_json(indent=1) + "\n", "index.json")

    def log_text(self, text: str, path: str) -> None:
        """Log a text as an artifact at `path`."""
        self.add("text", {"text": text, "path": path})

    def log_files(self, path: Path, folder: str | None = None) -> None:
        """Log a file, or all files of a folder, as artifacts."""
        self.add("files", {"folder": folder}, path)

    def log_dataset(self, name: str, digest: str, n: int, context: str) -> None:
        """Log which data a run used: a split of gold cases, or the corpus."""
        self.add("dataset", {"name": name, "digest": digest[:36], "n": n, "context": context})

    def log_trial(
        self,
        number: int,
        score: float,
        *,
        n_cases: int,
        is_full: bool = True,
        seconds: float = 0.0,
        n_demos: Mapping[str, int] | None = None,
        prompts: Mapping[str, str] | None = None,
        thresholds: Mapping[str, float] | None = None,
    ) -> None:
        """Log a program that the optimizer scored as a child run, and its score as the next point of the curve.

        Args:
            number: Of the trial, from 1.
            score: 0..1.
            n_cases: How many validation cases it was scored on.
            is_full: Whether those are all of them; scores on minibatches have a curve of their own.
            seconds: How long it took.
            n_demos: Demos of every predictor.
            prompts: The prompt of every predictor.
            thresholds: The threshold of every decision.
        """
        facts: dict[str, Any] = {"number": number, "score": score, "n_cases": n_cases, "is_full": is_full}
        facts |= {"seconds": seconds, "time": _now()}
        facts |= {"n_demos": dict(n_demos or {}), "prompts": dict(prompts or {}), "thresholds": dict(thresholds or {})}
        self.add("trial", facts)

    def log_candidate(self, trial: Any, program: Any) -> None:
        """Log a trial of a compile with the prompts, the number of demos and the thresholds of its program."""
        from programs.decisions import thresholds_of  # brings DSPy, which lists of versions do without

        predictors = dict(program.named_predictors())
        self.log_trial(
            trial.number,
            trial.score,
            n_cases=trial.n_cases,
            n_demos={name: len(one.demos) for name, one in predictors.items()},
            prompts={name: prompt_text(one) for name, one in predictors.items()},
            thresholds=thresholds_of(program),
        )

    def log_traces(self, records: Path, tags: Mapping[str, str]) -> None:
        """Log every record of an evaluation as a trace with its hops, its scores attached."""
        self.add("traces", {"tags": dict(tags)}, records)

    def register(self, name: str, export: Path, tags: Mapping[str, Any], *, champion: bool = False) -> None:
        """Register an export as a model version: the candidate unless the gate rejected it, or even the champion."""
        values = {"name": name, "tags": {key: value for key, value in tags.items() if value is not None}}
        self.add("version", values | {"champion": champion}, export)

    def rename(self, name: str) -> None:
        """Give the run the name that a list of runs shows."""
        self.log_tags({"mlflow.runName": name})

    def add(self, kind: str, values: dict[str, Any], path: Path | None = None) -> None:
        """Log one entry, or keep it with the ones that wait already."""
        with self._lock:
            self._left.append(Entry(kind, values, path))
            if len(self._left) == 1:
                with suppress(*STORE_ERRORS):  # tried again at the end of the run, and then it is an error
                    self.send_rest()

    def send_rest(self) -> None:
        """Log what is left, in its order.

        Raises:
            MlflowException: The store did not take it; the same call goes on from there.
        """
        with self._lock:
            while self._left:
                _send(self._target, self._left[0])
                self._left.pop(0)

    @property
    def version(self) -> str:
        """Name and number of the version that the run registered; empty before that."""
        return str(self._target.client.get_run(self.run_id).data.tags.get(_VERSION, ""))

    @property
    def left(self) -> tuple[Entry, ...]:
        """What the store has not taken yet."""
        return tuple(self._left)


@dataclass(frozen=True, slots=True)
class _Target:
    tracking_uri: str
    experiment_id: str
    run_id: str
    client: MlflowClient


def _send(target: _Target, entry: Entry) -> None:
    {
        "params": _send_params,
        "tags": _send_tags,
        "metrics": _send_metrics,
        "text": _send_text,
        "files": _send_files,
        "dataset": _send_dataset,
        "trial": _send_trial,
        "traces": _send_traces,
        "version": _send_version,
    }[entry.kind](target, entry)


def _send_params(target: _Target, entry: Entry) -> None:
    target.client.log_batch(target.run_id, params=[Param(name, value) for name, value in entry.values.items()])


def _send_tags(target: _Target, entry: Entry) -> None:
    target.client.log_batch(target.run_id, tags=[RunTag(name, value) for name, value in entry.values.items()])


def _send_metrics(target: _Target, entry: Entry) -> None:
    moment, step = entry.values["time"], entry.values["step"]
    metrics = [Metric(name, value, moment, step) for name, value in entry.values["metrics"].items()]
    target.client.log_batch(target.run_id, metrics=metrics)


def _send_text(target: _Target, entry: Entry) -> None:
    target.client.log_text(target.run_id, entry.values["text"], entry.values["path"])


def _send_files(target: _Target, entry: Entry) -> None:
    path, folder = str(entry.path), entry.values["folder"]
    if Path(path).is_dir():
        target.client.log_artifacts(target.run_id, path, folder)
    else:
        target.client.log_artifact(target.run_id, path, folder)


def _send_dataset(target: _Target, entry: Entry) -> None:
    values = entry.values
    dataset = Dataset(
        name=values["name"],
        digest=values["digest"],
        source_type="local",
        source=json.dumps({"uri": values["name"]}),  # where it lay on this machine helps nobody else
        profile=json.dumps({"num_rows": values["n"]}),
    )
    context = InputTag("mlflow.data.context", values["context"])
    target.client.log_inputs(target.run_id, [DatasetInput(dataset, [context])])


def _send_trial(target: _Target, entry: Entry) -> None:
    values, client = entry.values, target.client
    name = f"trial {values['number']} · {values['score']:.3f} on {values['n_cases']} cases"
    start = values["time"] - round(values["seconds"] * 1000)
    child = client.create_run(target.experiment_id, start, {_PARENT: target.run_id}, name).info
    metrics = {"trial.score": values["score"], "trial.n_cases": float(values["n_cases"])}
    metrics |= {f"predictor/{one}.demos": float(n) for one, n in values["n_demos"].items()}
    metrics |= {f"predictor/{one}.threshold": at for one, at in values.get("thresholds", {}).items()}
    client.log_batch(child.run_id, [Metric(key, value, values["time"], 0) for key, value in metrics.items()])
    for predictor, prompt in values["prompts"].items():
        client.log_text(child.run_id, prompt, f"prompts/{predictor}.txt")
    client.set_terminated(child.run_id, "FINISHED", values["time"])
    curve = "optimizer.score" if values["is_full"] else "optimizer.minibatch_score"
    client.log_metric(target.run_id, curve, values["score"], values["time"], values["number"])


def _send_traces(target: _Target, entry: Entry) -> None:
    records = Path(str(entry.path))
    log_traces(target.tracking_uri, target.experiment_id, target.run_id, records, entry.values["tags"])


def _send_version(target: _Target, entry: Entry) -> None:
    values = entry.values
    version = register(target.tracking_uri, values["name"], Path(str(entry.path)), target.run_id, values["tags"])
    if values["champion"]:
        promote(target.tracking_uri, version)
    target.client.set_tag(target.run_id, _VERSION, f"{version.name} {version.number}")


@contextmanager
def track(tracking_uri: str, experiment: str, name: str, *, keep: Path | None = None) -> Iterator[TrackedRun]:
    """Open a run in an experiment; it ends as FINISHED, or as FAILED or KILLED after an error or Ctrl-C.

    Args:
        tracking_uri: The store.
        experiment: See `experiment_name`.
        name: What a list of runs shows.
        keep: What the run makes (an export, a records file). Where the store stops taking what is logged, the rest is
            kept beside it, for `python -m programs log`, and that is said on stderr; without it, it is an error.

    Raises:
        TrackingError: The store can't be opened, or stopped taking what is logged and `keep` is not given.
    """
    with one_error(tracking_uri):
        try:
            experiment_id = make_experiment(tracking_uri, experiment)
            _close_orphans(experiment_id)
            # MLflow would note the absolute path of the script.
            tags = {"mlflow.source.name": Path(sys.argv[0]).name, _PROCESS: f"{_machine()}:{os.getpid()}"}
            active = mlflow.start_run(run_name=name, tags=tags | describe_code())
        except OSError as error:
            raise tracking_error(tracking_uri, error) from error
    tracked = TrackedRun(tracking_uri, experiment_id, active.info.run_id)
    try:
        tracked.log_text(json.dumps(describe_environment(), indent=1) + "\n", "environment.json")
        yield tracked
        _finish(tracked, tracking_uri, experiment, name, keep)
    except KeyboardInterrupt:
        _end_run("KILLED")
        raise
    except BaseException:
        _end_run("FAILED")
        raise


def _finish(tracked: TrackedRun, tracking_uri: str, experiment: str, name: str, keep: Path | None) -> None:
    try:
        tracked.send_rest()
        mlflow.end_run()
    except STORE_ERRORS as error:
        failure = tracking_error(tracking_uri, error)
        if keep is None:
            raise failure from error
        kept = write_pending(keep, experiment, tracked.run_id, name, tracked.left)
        later = f"python -m programs log {shlex.quote(str(keep))}"
        if tracking_uri != TRACKING_URI:
            later += f" --tracking-uri {shlex.quote(without_secrets(tracking_uri))}"
        sys.stderr.write(f"warning: {failure}\nnothing is lost: log it later with: {later}\n")
        sys.stderr.write(f"(until then it waits in {keep.with_name(kept.name)})\n")
        _end_run("FINISHED")


def log_later(tracking_uri: str, pending: Pending) -> str:
    """Log what a run left over, into that run where this store has it, else into a new one; returns the run's id.

    Raises:
        TrackingError: The store can't be used; what it took of the run is not sent again.
    """
    with one_error(tracking_uri):
        experiment_id = make_experiment(tracking_uri, pending.experiment)
        client = MlflowClient(tracking_uri)
        run_id = pending.run_id if _has_run(client, pending.run_id) else ""
        run_id = run_id or client.create_run(experiment_id, run_name=pending.name, tags=describe_code()).info.run_id
        tracked = TrackedRun(tracking_uri, experiment_id, run_id)
        for entry in pending.entries:
            tracked.add(entry.kind, entry.values, entry.path)
        tracked.send_rest()
        client.set_terminated(run_id, "FINISHED")
    return run_id


def _has_run(client: MlflowClient, run_id: str) -> bool:
    try:
        client.get_run(run_id)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        return False
    return True


def diff_lines(old: str, new: str, before: str, after: str) -> list[str]:
    """Return a unified diff of two texts, one line each; none where they are the same."""
    return list(difflib.unified_diff(old.splitlines(), new.splitlines(), before, after, lineterm=""))


def prompt_text(predictor: Any) -> str:
    """Return the messages of a predictor as one text, with `{field}` where an input goes."""
    from programs.export import format_prompt  # brings DSPy, which lists of versions do without

    return "\n\n".join(f"[{one['role']}]\n{one['content']}" for one in format_prompt(predictor, "{%s}"))


def _rounded(scores: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else round(value, _DIGITS) for name, value in scores.items()}


def _prefixed(prefix: str, scores: Mapping[str, float | None]) -> dict[str, float]:
    return {f"{prefix}{name}": float(value) for name, value in scores.items() if value is not None}


def _now() -> int:
    return round(time.time() * 1000)


def _close_orphans(experiment_id: str) -> None:
    """End the runs of processes that are gone, which a kill left as running for ever."""
    running = mlflow.search_runs([experiment_id], "attributes.status = 'RUNNING'", output_format="list")
    for one in running:
        host, _, pid = one.data.tags.get(_PROCESS, "").rpartition(":")
        if host == _machine() and not _is_alive(int(pid)):
            MlflowClient().set_terminated(one.info.run_id, "KILLED")


def _machine() -> str:
    """Return what tells this machine from others, and its name to nobody."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's process
        return True
    return True


def _end_run(status: str) -> None:
    with suppress(*STORE_ERRORS):  # the error that ended the run matters more than that the store could not note it
        mlflow.end_run(status)
