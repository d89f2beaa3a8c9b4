"""LMs by flag: `local`, `local:PATH.gguf`, or any DSPy model string; metered, cached, one adapter for all."""

import hashlib
import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import dspy
from dspy.lm15 import AccessPolicy, ModelSupport, OpenAIChatCompat, ProviderDefinition, register_provider
from dspy.utils.exceptions import LMConfigurationError, LMError, LMInvalidRequestError

from programs.adapter import LeanJSONAdapter
from programs.addresses import bypass_proxies, without_secrets
from programs.endpoint import (
    FAILURES_BEFORE_FALLBACK,
    Breaker,
    Patience,
    StreamCutError,
    WatchedStream,
    call_patiently,
    within,
)
from programs.local_lm import DEFAULT_MODEL, MODELS, cache_dir, start
from programs.meter import BudgetExceeded, LMCall, Meter, Usage

# What is cut off is counted in `Usage.truncations` and told at the end; a warning at each would tear the progress.
logging.getLogger("dspy.clients.lm").addFilter(lambda line: not str(line.msg).startswith("LM response was truncated"))

MAX_TOKENS = 400
_SOCKET_TIMEOUT_S = 300  # ends what a deadline left behind; a part of DSPy's cache key, so the same for all calls
_CACHE_BYTES = 4 << 30
_SAMPLING = ("temperature", "top_p", "seed", "max_tokens", "max_completion_tokens")


class LMSpecError(ValueError):
    """An `--lm` or `--api-base` that can't be understood."""


class AnswerCacheError(RuntimeError):
    """The LM answers kept on disk can't be read or written."""


class MeteredLM(dspy.LM):
    """A `dspy.LM` that passes every call through its meter and, inside a run, the run's; patient, and with a fallback.

    A call is bound in time and tried again where that may help. An endpoint that keeps failing is left alone for a
    while; where there is a `fallback`, the adapter asks it instead. Copies share the breaker, as they share the
    endpoint.
    """

    def __init__(
        self,
        model: str,
        *,
        meter: Meter | None = None,
        label: str = "",
        patience: Patience | None = None,
        fallback: "MeteredLM | None" = None,
        **kwargs: Any,
    ) -> None:
        """Wrap `dspy.LM`; `label` is how tables and manifests call this LM, without an address or a secret."""
        super().__init__(model, num_retries=0, **kwargs)
        self.meter = meter or Meter()
        self.label = label or model
        self.patience = patience or Patience()
        self.fallback = fallback
        self.reports_options = False  # whether the probabilities of the next token are known to be right
        self.breaker = Breaker(FAILURES_BEFORE_FALLBACK) if fallback else Breaker()

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """Call the LM unless it keeps failing.

        Raises:
            BudgetExceeded: The block that bound this LM has been left, or what counts the calls is at its limit.
            EndpointDown: This call failed, and so did the ones before it.
            LMError: This call failed.
        """
        if (is_over := dspy.settings.get("is_over")) and is_over.is_set():
            raise BudgetExceeded("the run that made this call is over")
        return self.breaker.guard(lambda: self._call(prompt, messages, kwargs))

    def stand_in(self, error: BaseException) -> "MeteredLM | None":
        """Return the LM to ask after `error`, if another one may help; counts it."""
        if self.fallback is None or isinstance(error, LMInvalidRequestError | StreamCutError):
            return None
        self._add(Usage(fallback_calls=1))
        return self.fallback

    def _call(self, prompt: Any, messages: Any, kwargs: dict[str, Any]) -> Any:
        def ask(**more: Any) -> Any:
            with dspy.context(call_began=time.monotonic()):
                return dspy.LM.__call__(self, prompt, messages=messages, **kwargs, **more)

        if dspy.settings.send_stream is None:
            return call_patiently(lambda left: within(left, ask, self.model), self.patience, self._count_retry)
        return call_patiently(lambda left: self._stream(ask, left), self.patience, self._count_retry)

    def _stream(self, ask: Callable[..., Any], seconds: float) -> Any:
        # On this very thread: DSPy hands tokens to the event loop that waits for it.
        stream = WatchedStream(dspy.settings.send_stream, seconds, self.model)
        try:
            with dspy.context(send_stream=stream):
                return ask(timeout=min(seconds, self.patience.first_token_s))
        except LMError as error:
            if stream.has_sent:
                raise StreamCutError(f"the answer broke off: {error.message}", model=self.model) from error
            raise

    def _count_retry(self) -> None:
        self._add(Usage(retries=1))

    def _add(self, usage: Usage, call: LMCall | None = None) -> None:
        for meter in (self.meter, dspy.settings.get("run_meter")):
            if meter is not None:
                meter.add(usage, call)

    def copy(self, **kwargs: Any) -> "MeteredLM":
        """Copy; a meter given is the fallback's too."""
        copied: MeteredLM = super().copy(**kwargs)
        if self.fallback is not None and "meter" in kwargs:
            copied.fallback = self.fallback.copy(meter=kwargs["meter"])
        return copied

    def update_history(self, entry: dict[str, Any]) -> None:
        """Meter a finished call; DSPy calls this once for each, cached or not."""
        usage = _usage_of(entry)
        if (reply := dspy.settings.get("reply_facts")) is not None:
            reply["is_cut_off"] = usage.truncations > 0
        began = dspy.settings.get("call_began") or time.monotonic()
        call = LMCall(
            asked=_asking(),
            lm=self.label,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            seconds=round(time.monotonic() - began, 3),
            is_cached=usage.cached_calls > 0,
            is_cut_off=usage.truncations > 0,
            cost_usd=usage.cost_usd,
        )
        self._add(usage, call)
        super().update_history(entry)


def _asking() -> str:
    """Return the name of the predictor that makes this call in the program that was called, if any."""
    modules = dspy.settings.caller_modules or []
    names = (name for name, one in modules[0].named_predictors() if one is modules[-1]) if modules else iter(())
    return next(names, "")


def _usage_of(entry: dict[str, Any]) -> Usage:
    # A cached call reports no usage of its own, but its stored responses still do. A server that never reports usage
    # has neither, and its calls are taken as paid, so that a budget holds there too.
    response = entry["response"]
    responses = response if isinstance(response, tuple | list) else (response,)
    spent = [getattr(one, "usage", None) for one in responses]
    finishes = [getattr(one, "finish_reason", None) for one in responses]
    prompts = [_count(one, "input_tokens", "prompt_tokens") for one in spent]
    replies = [_count(one, "output_tokens", "completion_tokens") for one in spent]
    was_reported = any(n is not None for n in prompts) or any(getattr(one, "cache_hit", False) for one in responses)
    is_cached = was_reported and not entry["usage"]
    return Usage(
        lm_calls=len(responses),
        cached_calls=len(responses) if is_cached else 0,
        prompt_tokens=sum(n or 0 for n in prompts),
        completion_tokens=sum(n or 0 for n in replies),
        truncations=finishes.count("length"),
        cost_usd=entry.get("cost") or 0.0,
    )


def _count(usage: Any, *names: str) -> int | None:
    for name in names:
        value = usage.get(name) if isinstance(usage, dict) else getattr(usage, name, None)
        if value is not None:
            return int(value)
    return None


def make_lm(
    spec: str = "local",
    api_base: str | None = None,
    meter: Meter | None = None,
    *,
    patience: Patience | None = None,
    fallback: MeteredLM | None = None,
    **kwargs: Any,
) -> MeteredLM:
    """Build an LM from a flag.

    Args:
        spec: `local` (the packaged default), `local:NAME` (another packaged model), `local:PATH.gguf`, or a DSPy
            model string such as `openai/gpt-5-mini` or `ollama/qwen3:8b`.
        api_base: Address of an OpenAI-compatible server that serves the model; its key, if any, is in `LM_API_KEY`.
        meter: Counts the calls; a fresh one if left out.
        patience: How long and how often a call is tried.
        fallback: Answers where this one fails.
        **kwargs: Settings for `dspy.LM`, over the defaults (temperature 0, bounded output).

    Raises:
        LMSpecError: Not a model string, or an address that is no HTTP URL.
        LocalLMError: The embedded LM can't be started.
    """
    settings = {"temperature": 0.0, "max_tokens": MAX_TOKENS, "timeout": _SOCKET_TIMEOUT_S, **kwargs}
    settings |= {"meter": meter, "patience": patience, "fallback": fallback}
    if spec == "local" or spec.startswith("local:"):
        return _local(DEFAULT_MODEL if spec == "local" else spec.removeprefix("local:"), settings)
    if not re.fullmatch(r"[\w.-]+/\S+", spec):
        names = ", ".join(f"local:{name}" for name in MODELS)
        raise LMSpecError(f"not an LM: {spec!r}; use local, {names}, local:PATH.gguf or PROVIDER/MODEL")
    if api_base is None:
        return _remote(spec, spec, settings)
    _check_address(api_base)
    provider, _, name = spec.partition("/")
    key = os.environ.get("LM_API_KEY") or (os.environ.get("OPENAI_API_KEY") if provider == "openai" else None)
    settings |= {"api_key": key} if key else {}
    return _remote(f"{_declare(api_base)}/{name}", spec, settings)


def _local(model: str, settings: dict[str, Any]) -> MeteredLM:
    server = start(model)
    bypass_proxies(urlsplit(server.url).hostname or "")
    _declare(server.url, "embedded")
    lm = MeteredLM(f"embedded/{server.model_id}", label=f"local:{server.name}", **settings)
    lm.reports_options = True
    return lm


def _remote(model: str, label: str, settings: dict[str, Any]) -> MeteredLM:
    try:
        return MeteredLM(model, label=label, **settings)
    except LMConfigurationError:  # OpenAI's reasoning models refuse both settings
        free = settings | {"temperature": None, "max_tokens": None}
        return MeteredLM(model, label=label, **free)


def _check_address(api_base: str) -> None:
    shown = without_secrets(api_base)
    try:
        parts = urlsplit(api_base)
        is_address = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        is_address = False
    if not is_address or re.search(r"\s", api_base):
        raise LMSpecError(f"--api-base is no HTTP address: {shown!r}; expected http://HOST:PORT/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise LMSpecError(f"--api-base holds more than an address: give {shown}, and the key in LM_API_KEY")


def _declare(url: str, provider: str | None = None) -> str:
    """Register an OpenAI-compatible server that honours JSON schemas; its id keeps its cached answers apart."""
    provider = provider or f"server-{hashlib.sha256(url.encode()).hexdigest()[:8]}"
    policy = AccessPolicy(provider=provider, base_url=url)
    compat = OpenAIChatCompat(instruction_role="system", max_tokens_field="max_tokens", json_schema="send")
    definition = ProviderDefinition.chat(policy, compat=compat, placeholder_key="none")
    register_provider(definition, supports=ModelSupport(response_schema=True), replace=True)
    return provider


@dataclass(frozen=True, slots=True)
class Roles:
    """The LMs of a program: one that decides (plan, judge, rewrite) and one that answers."""

    decision: MeteredLM
    answer: MeteredLM

    @property
    def label(self) -> str:
        """Name for tables: one LM, or `decision + answer`."""
        labels = dict.fromkeys((self.decision.label, self.answer.label))
        return " + ".join(labels)

    def with_own_meter(self) -> "Roles":
        """Return the same LMs, counted apart."""
        meter = Meter()
        answer = self.answer.copy(meter=meter)
        return Roles(answer if self.decision is self.answer else self.decision.copy(meter=meter), answer)

    def without_cache(self) -> "Roles":
        """Return the same LMs, asked anew every time."""
        answer = self.answer.copy(cache=False)
        return Roles(answer if self.decision is self.answer else self.decision.copy(cache=False), answer)


def make_roles(
    lm: str = "local",
    *,
    answer_lm: str | None = None,
    decision_lm: str | None = None,
    api_base: str | None = None,
    fallback_lm: str | None = None,
    patience: Patience | None = None,
) -> Roles:
    """Build the LMs of a program from flags; all share one meter. The fallback is not behind `api_base`."""
    meter = Meter()
    fallback = make_lm(fallback_lm, meter=meter, patience=patience) if fallback_lm else None

    def make(spec: str) -> MeteredLM:
        return make_lm(spec, api_base, meter, patience=patience, fallback=fallback)

    answer = make(answer_lm or lm)
    decision = answer if (decision_lm or lm) == (answer_lm or lm) else make(decision_lm or lm)
    return Roles(decision=decision, answer=answer)


@contextmanager
def bind(roles: Roles, generation: int = 0) -> Iterator[Roles]:
    """Bind the LMs and the adapter for the programs called inside, with an answer cache of their own.

    Another `generation` has a cache apart, so that answers are asked for anew.
    Threads that are still at work when the block is left (an interrupt, a straggler) stop at their next LM call.
    """
    use_cache(roles, generation)
    is_over = threading.Event()
    bound = {"lm": roles.answer, "decision_lm": roles.decision, "adapter": LeanJSONAdapter(), "is_over": is_over}
    with dspy.context(**bound, max_history_size=0):
        try:
            yield roles
        finally:
            is_over.set()


def use_cache(roles: Roles, generation: int = 0) -> None:
    """Point DSPy's cache at one folder per endpoint and model; plain data only, never a pickled object.

    Raises:
        AnswerCacheError: The folder can't be written, or holds a database that is broken.
    """
    models = dict.fromkeys(_cache_name(lm) for lm in (roles.decision, roles.answer))
    name = "+".join(models) + (f"-again-{generation}" if generation else "")
    folder = cache_dir() / "answers" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        dspy.configure_cache(disk_cache_dir=str(folder), disk_size_limit_bytes=_CACHE_BYTES, restrict_pickle=True)
    except (OSError, sqlite3.OperationalError) as error:  # what is there is whole: the disk is full, or read-only
        reason = error.strerror if isinstance(error, OSError) else error
        raise AnswerCacheError(
            f"no LM answers can be kept in {folder}: {reason}; set COMPILED_RAG_CACHE to a folder that can be written"
        ) from error
    except sqlite3.DatabaseError as error:
        raise AnswerCacheError(f"LM answers in {folder}: {error}; remove the folder to ask the LM anew") from error


def _cache_name(lm: MeteredLM) -> str:
    # An address given by flag is part of `model`; one that the environment gives to a provider is not.
    provider = lm.model.partition("/")[0].upper()
    endpoint = os.environ.get(f"{provider}_API_BASE") or os.environ.get(f"{provider}_BASE_URL") or ""
    digest = hashlib.sha256(f"{lm.model} {endpoint}".encode()).hexdigest()[:8]
    return f"{re.sub(r'[^a-zA-Z0-9.]+', '-', lm.model)[:80]}-{digest}"


def identify(lm: MeteredLM) -> dict[str, Any]:
    """Describe what an LM's answers depend on: its endpoint and name, without an address, and how it samples."""
    return {"lm": _cache_name(lm)} | {name: lm.kwargs[name] for name in _SAMPLING if name in lm.kwargs}


def check(*lms: MeteredLM) -> None:
    """Make one tiny call to each LM, past the cache, so that a dead endpoint is found before any work.

    An LM that is down and has a fallback is as good as that.

    Raises:
        LMError: The call failed; the message names the model and the reason.
    """
    for lm in {id(one): one for one in lms}.values():
        short = {"max_tokens": 4} if "max_tokens" in lm.kwargs else {}
        brief = lm.copy(patience=replace(lm.patience, n_retries=0), **short)
        try:
            brief("Say OK.", cache=False)
        except LMError as error:
            if lm.fallback is not None:
                check(lm.fallback)
                continue
            raise LMError(f"no answer from {lm.label}: {_reason(error)}; check --lm, --api-base and the key") from error


def _reason(error: LMError) -> str:
    """Leave out what only a caller of `dspy.LM` can use: its name for the server, and its keyword for the key."""
    text = re.sub(r"^\[[^\]]*\] ", "", " ".join(str(error).split()))
    return text.partition(", or pass api_key=")[0].rstrip(".")
