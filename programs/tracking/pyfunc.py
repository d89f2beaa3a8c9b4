"""An export as an MLflow model: a table of questions in, a table of answers out. Loaded by MLflow, never pickled."""

import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from programs.export import Manifest

# What a served model has to be told and a version can't know. Every key must stand here: MLflow drops unknown ones.
CONFIG: dict[str, Any] = {
    "index": "runs/index",
    "lm": "",  # empty: the LM that the version was compiled for
    "answer_lm": "",
    "decision_lm": "",
    "api_base": "",
    "threads": 1,
    "trace_to": "",  # an MLflow store that every answer is logged to as a trace
}
_FROM_ENVIRONMENT = {
    "index": "COMPILED_RAG_INDEX",
    "lm": "COMPILED_RAG_LM",
    "api_base": "COMPILED_RAG_API_BASE",
    "trace_to": "COMPILED_RAG_TRACE_TO",
}


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> "AnswerTable":
    """Open the program of a model version; MLflow calls this by its name.

    Args:
        path: The export inside the model.
        model_config: Keys of `CONFIG`; addresses may come from the environment instead.
    """
    return AnswerTable(Path(path), settings_of(model_config or {}))


def settings_of(model_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return every setting: the defaults, over them the environment, over both what `model_config` gives."""
    found = {name: value for name, variable in _FROM_ENVIRONMENT.items() if (value := os.environ.get(variable))}
    given = {name: value for name, value in model_config.items() if value is not None and value != CONFIG.get(name)}
    return CONFIG | found | given


class AnswerTable:
    """A program with its index and its LMs, asked by the table."""

    def __init__(self, export: Path, settings: Mapping[str, Any]) -> None:
        """Open the index and load the program; see `CONFIG` for the settings.

        Raises:
            IndexNotFound: No index at `settings["index"]`.
            ProgramStateError: The export does not fit this code or that index.
            LMSpecError: `settings["lm"]` or `settings["api_base"]` can't be understood.
            TrackingError: The store `settings["trace_to"]` can't be used.
        """
        from programs.export import load_export, read_manifest
        from programs.lms import make_roles
        from programs.load import open_tools

        tools, manifest = open_tools(Path(settings["index"])), read_manifest(export)
        self._program = load_export(export, tools.retrievers, tools.facts, tools.toolbox)
        self._roles = make_roles(
            settings["lm"] or manifest.lm,
            answer_lm=settings["answer_lm"] or None,
            decision_lm=settings["decision_lm"] or None,
            api_base=settings["api_base"] or None,
        )
        self._n_threads = int(settings["threads"])
        self._trace = _make_tracer(settings["trace_to"], manifest, self._roles.label)

    def predict(self, model_input: "pd.DataFrame", params: Mapping[str, Any] | None = None) -> "pd.DataFrame":
        """Answer every row of `question` (and `history`, if there is one), in the order of the rows.

        Returns:
            One row a question: `answer`, `citations`, `abstained`, `stop_reason`, `lm_calls`, `seconds` and `error`,
            which says why a row has no answer.

        Raises:
            RuntimeError: The LM is down; rows answered before stay in its answer cache.
        """
        import pandas as pd

        from programs.lms import bind
        from programs.meter import EndpointDown

        asked = model_input.to_dict("records")
        try:
            with bind(self._roles), ThreadPoolExecutor(self._n_threads) as pool:
                contexts = [copy_context() for _ in asked]
                rows = list(pool.map(lambda one: one[0].run(self._row, one[1]), zip(contexts, asked, strict=True)))
        except EndpointDown as error:  # no `Exception`, so a scoring server would not answer at all
            raise RuntimeError(str(error)) from error
        table = pd.DataFrame(rows, index=model_input.index, columns=list(_EMPTY), dtype=object)  # None stays None
        return table.astype({"abstained": "bool", "lm_calls": "int64", "seconds": "float64"})

    def _row(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        question, history = str(asked["question"] or "").strip(), asked.get("history")
        if not question:
            return _EMPTY | {"error": "the question is empty"}
        try:
            prediction = self._program(question=question, history=[dict(turn) for turn in _turns(history)])
        except Exception as error:  # noqa: BLE001 - what one row raises is that row's outcome, and said in it
            return _EMPTY | {"error": f"{type(error).__name__}: {error}"}
        self._trace(prediction)
        return {
            "answer": prediction.answer,
            "citations": list(prediction.citations),
            "abstained": prediction.abstained,
            "stop_reason": prediction.stop_reason,
            "lm_calls": prediction.usage.lm_calls,
            "seconds": float(prediction.usage.seconds),
            "error": prediction.error,
        }


def _make_tracer(store: str, manifest: "Manifest", lm: str) -> Callable[[Any], None]:
    """Return what logs an answer as a trace, tagged as the version is; without a store it does nothing."""
    if not store:
        return lambda prediction: None
    from programs.record import to_json
    from programs.tracking.stores import TrackingError
    from programs.tracking.traces import log_answer, open_served

    experiment_id = open_served(store, manifest.program)
    tags = {"program": str(manifest.built_by.get("model") or manifest.program), "lm": lm}
    tags |= {"state_sha256": manifest.state_sha256}

    def trace(prediction: Any) -> None:
        try:
            log_answer(store, experiment_id, to_json(prediction), tags)
        except TrackingError as error:  # an answer matters more than its trace
            logging.getLogger(__name__).warning("an answer has no trace: %s", error)

    return trace


def _turns(history: Any) -> list[Any]:
    """Return earlier turns; a table holds a missing list as None or NaN."""
    return [] if history is None or isinstance(history, float) else list(history)


_EMPTY: dict[str, Any] = {
    "answer": "",
    "citations": [],
    "abstained": True,
    "stop_reason": "error",
    "lm_calls": 0,
    "seconds": 0.0,
    "error": None,
}
