"""LMs by flag: `local`, `local:PATH.gguf`, or any DSPy model string; metered, cached, one adapter for all."""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import dspy
from dspy.lm15 import AccessPolicy, ModelSupport, OpenAIChatCompat, ProviderDefinition, register_provider
from dspy.utils.exceptions import LMError

from programs.adapter import LeanJSONAdapter
from programs.local_lm import DEFAULT_MODEL, MODELS, cache_dir, start
from programs.meter import Meter, Usage

TIMEOUT_S = 300
MAX_TOKENS = 400
N_RETRIES = 2
_CACHE_BYTES = 4 << 30


class LMSpecError(ValueError):
    """An `--lm` or `--api-base` that can't be understood."""


class MeteredLM(dspy.LM):
    """A `dspy.LM` whose every call passes its meter and, inside a run, the run's meter."""

    def __init__(self, model: str, *, meter: Meter | None = None, label: str = "", **kwargs: Any) -> None:
        """Wrap `dspy.LM`; `label` is how tables and manifests call this LM, without an address or a secret."""
        super().__init__(model, **kwargs)
        self.meter = meter or Meter()
        self.label = label or model

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """Call the LM unless the budget is spent."""
        self.meter.admit()
        return super().__call__(prompt, messages=messages, **kwargs)

    def update_history(self, entry: dict[str, Any]) -> None:
        """Meter a finished call; DSPy calls this once for each, cached or not."""
        usage = _usage_of(entry)
        for meter in (self.meter, dspy.settings.get("run_meter")):
            if meter is not None:
                meter.add(usage)
        super().update_history(entry)


def _usage_of(entry: dict[str, Any]) -> Usage:
    # A cached call reports no usage of its own, but its stored responses still do.
    response = entry["response"]
    responses = response if isinstance(response, tuple | list) else (response,)
    spent = [getattr(one, "usage", None) for one in responses]
    finishes = [getattr(one, "finish_reason", None) for one in responses]
    return Usage(
        lm_calls=1,
        cached_calls=0 if entry["usage"] else 1,
        prompt_tokens=sum(_count(one, "input_tokens", "prompt_tokens") for one in spent),
        completion_tokens=sum(_count(one, "output_tokens", "completion_tokens") for one in spent),
        truncations=finishes.count("length"),
        cost_usd=entry.get("cost") or 0.0,
    )


def _count(usage: Any, *names: str) -> int:
    for name in names:
        value = usage.get(name) if isinstance(usage, dict) else getattr(usage, name, None)
        if value is not None:
            return int(value)
    return 0


def make_lm(spec: str = "local", api_base: str | None = None, meter: Meter | None = None, **kwargs: Any) -> MeteredLM:
    """Build an LM from a flag.

    Args:
        spec: `local` (the packaged default), `local:NAME` (another packaged model), `local:PATH.gguf`, or a DSPy
            model string such as `openai/gpt-5-mini` or `ollama/qwen3:8b`.
        api_base: Address of an OpenAI-compatible server that serves the model.
        meter: Counts the calls; a fresh one if left out.
        **kwargs: Settings for `dspy.LM`, over the defaults (temperature 0, two retries, a timeout).

    Raises:
        LMSpecError: Not a model string, or an address that is no HTTP URL.
        LocalLMError: The embedded LM can't be started.
    """
    settings = {"temperature": 0.0, "max_tokens": MAX_TOKENS, "num_retries": N_RETRIES, "timeout": TIMEOUT_S, **kwargs}
    if spec == "local" or spec.startswith("local:"):
        return _local(spec.partition(":")[2] or DEFAULT_MODEL, meter, settings)
    if not re.fullmatch(r"[\w.-]+/\S+", spec):
        names = ", ".join(f"local:{name}" for name in MODELS)
        raise LMSpecError(f"not an LM: {spec!r}; use local, {names}, local:PATH.gguf or PROVIDER/MODEL")
    if api_base is None:
        return MeteredLM(spec, meter=meter, **settings)
    _check_address(api_base)
    provider, _, name = spec.partition("/")
    if provider == "openai":
        key = os.environ.get("LM_API_KEY") or os.environ.get("OPENAI_API_KEY")
        settings |= {"api_key": key} if key else {}
        return MeteredLM(f"{_declare(api_base)}/{name}", meter=meter, label=spec, **settings)
    return MeteredLM(spec, meter=meter, api_base=api_base, **settings)


def _local(model: str, meter: Meter | None, settings: dict[str, Any]) -> MeteredLM:
    server = start(model)
    _declare(server.url, "embedded")
    return MeteredLM(f"embedded/{server.model_id}", meter=meter, label=f"local:{server.name}", **settings)


def _check_address(api_base: str) -> None:
    parts = urlsplit(api_base)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise LMSpecError(f"--api-base is no HTTP address: {without_secrets(api_base)!r}; expected http://HOST:PORT/v1")


def without_secrets(address: str) -> str:
    """Return `address` without user, password, query and fragment, fit for a log or a manifest."""
    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


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


def make_roles(
    lm: str = "local",
    *,
    answer_lm: str | None = None,
    decision_lm: str | None = None,
    api_base: str | None = None,
    max_calls: int | None = None,
) -> Roles:
    """Build the LMs of a program from flags; both share one meter, so a budget bounds them together."""
    meter = Meter(max_calls)
    answer = make_lm(answer_lm or lm, api_base, meter)
    decision = answer if (decision_lm or lm) == (answer_lm or lm) else make_lm(decision_lm or lm, api_base, meter)
    return Roles(decision=decision, answer=answer)


@contextmanager
def bind(roles: Roles) -> Iterator[Roles]:
    """Bind the LMs and the adapter for the programs called inside, with an answer cache of their own."""
    use_cache(roles)
    with dspy.context(lm=roles.answer, decision_lm=roles.decision, adapter=LeanJSONAdapter(), max_history_size=0):
        yield roles


def use_cache(roles: Roles) -> None:
    """Point DSPy's cache at one folder per endpoint and model; plain data only, never a pickled object."""
    models = dict.fromkeys(_cache_name(lm) for lm in (roles.decision, roles.answer))
    folder = cache_dir() / "answers" / "+".join(models)
    folder.mkdir(parents=True, exist_ok=True)
    dspy.configure_cache(disk_cache_dir=str(folder), disk_size_limit_bytes=_CACHE_BYTES, restrict_pickle=True)


def _cache_name(lm: MeteredLM) -> str:
    endpoint = lm.kwargs.get("api_base") or os.environ.get("OPENAI_API_BASE", "")
    digest = hashlib.sha256(f"{lm.model} {endpoint}".encode()).hexdigest()[:8]
    return f"{re.sub(r'[^a-zA-Z0-9.]+', '-', lm.model)}-{digest}"


def check(roles: Roles) -> None:
    """Make one tiny call to each LM, past the cache, so that a dead endpoint is found before any work.

    Raises:
        LMError: The call failed; the message names the model and the reason.
    """
    for lm in {id(one): one for one in (roles.decision, roles.answer)}.values():
        try:
            lm.copy(num_retries=0)("Say OK.", max_tokens=4, cache=False)
        except LMError as error:
            raise LMError(f"no answer from {lm.label}: {error}; check --lm, --api-base and the key") from error
