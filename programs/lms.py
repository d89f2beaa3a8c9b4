"""LMs by flag: `local`, `local:PATH.gguf`, or any DSPy model string; metered, cached, one adapter for all."""

import hashlib
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import dspy
from dspy.lm15 import AccessPolicy, ModelSupport, OpenAIChatCompat, ProviderDefinition, register_provider
from dspy.utils.exceptions import LMConfigurationError, LMError, LMInvalidRequestError

from programs.adapter import LeanJSONAdapter
from programs.addresses import bypass_proxies, without_secrets
from programs.local_lm import DEFAULT_MODEL, MODELS, cache_dir, start
from programs.meter import BudgetExceeded, Meter, Usage

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "true")  # prices from the package: nothing is fetched at run time

TIMEOUT_S = 300
MAX_TOKENS = 400
N_RETRIES = 2
_CACHE_BYTES = 4 << 30
_SAMPLING = ("temperature", "top_p", "seed", "max_tokens", "max_completion_tokens")


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
        """Call the LM unless the budget is spent.

        Raises:
            BudgetExceeded: The budget of the meter is spent, or the block that bound this LM has been left.
            EndpointDown: This call failed, and so did the ones before it.
            LMError: This call failed.
        """
        if (is_over := dspy.settings.get("is_over")) and is_over.is_set():
            raise BudgetExceeded("the run that made this call is over")
        self.meter.admit()
        try:
            return super().__call__(prompt, messages=messages, **kwargs)
        except LMInvalidRequestError:  # this request is wrong (too long, say), which tells nothing about the endpoint
            raise
        except LMError as error:
            self.meter.fail(error)
            raise

    def update_history(self, entry: dict[str, Any]) -> None:
        """Meter a finished call; DSPy calls this once for each, cached or not."""
        usage = _usage_of(entry)
        for meter in (self.meter, dspy.settings.get("run_meter")):
            if meter is not None:
                meter.add(usage)
        super().update_history(entry)


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


def make_lm(spec: str = "local", api_base: str | None = None, meter: Meter | None = None, **kwargs: Any) -> MeteredLM:
    """Build an LM from a flag.

    Args:
        spec: `local` (the packaged default), `local:NAME` (another packaged model), `local:PATH.gguf`, or a DSPy
            model string such as `openai/gpt-5-mini` or `ollama/qwen3:8b`.
        api_base: Address of an OpenAI-compatible server that serves the model; its key, if any, is in `LM_API_KEY`.
        meter: Counts the calls; a fresh one if left out.
        **kwargs: Settings for `dspy.LM`, over the defaults (temperature 0, two retries, a timeout).

    Raises:
        LMSpecError: Not a model string, or an address that is no HTTP URL.
        LocalLMError: The embedded LM can't be started.
    """
    settings = {"temperature": 0.0, "max_tokens": MAX_TOKENS, "num_retries": N_RETRIES, "timeout": TIMEOUT_S, **kwargs}
    if spec == "local" or spec.startswith("local:"):
        return _local(DEFAULT_MODEL if spec == "local" else spec.removeprefix("local:"), meter, settings)
    if not re.fullmatch(r"[\w.-]+/\S+", spec):
        names = ", ".join(f"local:{name}" for name in MODELS)
        raise LMSpecError(f"not an LM: {spec!r}; use local, {names}, local:PATH.gguf or PROVIDER/MODEL")
    if api_base is None:
        return _remote(spec, spec, meter, settings)
    _check_address(api_base)
    provider, _, name = spec.partition("/")
    key = os.environ.get("LM_API_KEY") or (os.environ.get("OPENAI_API_KEY") if provider == "openai" else None)
    settings |= {"api_key": key} if key else {}
    return _remote(f"{_declare(api_base)}/{name}", spec, meter, settings)


def _local(model: str, meter: Meter | None, settings: dict[str, Any]) -> MeteredLM:
    server = start(model)
    bypass_proxies(urlsplit(server.url).hostname or "")
    _declare(server.url, "embedded")
    return MeteredLM(f"embedded/{server.model_id}", meter=meter, label=f"local:{server.name}", **settings)


def _remote(model: str, label: str, meter: Meter | None, settings: dict[str, Any]) -> MeteredLM:
    try:
        return MeteredLM(model, meter=meter, label=label, **settings)
    except LMConfigurationError:  # OpenAI's reasoning models refuse both settings
        free = settings | {"temperature": None, "max_tokens": None}
        return MeteredLM(model, meter=meter, label=label, **free)


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

    def with_budget(self, max_calls: int | None) -> "Roles":
        """Return the same LMs with a meter of their own, which lets `max_calls` calls through."""
        meter = Meter(max_calls)
        answer = self.answer.copy(meter=meter)
        return Roles(answer if self.decision is self.answer else self.decision.copy(meter=meter), answer)

    def without_cache(self) -> "Roles":
        """Return the same LMs, asked anew every time."""
        answer = self.answer.copy(cache=False)
        return Roles(answer if self.decision is self.answer else self.decision.copy(cache=False), answer)


def make_roles(
    lm: str = "local", *, answer_lm: str | None = None, decision_lm: str | None = None, api_base: str | None = None
) -> Roles:
    """Build the LMs of a program from flags; both share one meter."""
    meter = Meter()
    answer = make_lm(answer_lm or lm, api_base, meter)
    decision = answer if (decision_lm or lm) == (answer_lm or lm) else make_lm(decision_lm or lm, api_base, meter)
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
    """Point DSPy's cache at one folder per endpoint and model; plain data only, never a pickled object."""
    models = dict.fromkeys(_cache_name(lm) for lm in (roles.decision, roles.answer))
    name = "+".join(models) + (f"-again-{generation}" if generation else "")
    folder = cache_dir() / "answers" / name
    folder.mkdir(parents=True, exist_ok=True)
    dspy.configure_cache(disk_cache_dir=str(folder), disk_size_limit_bytes=_CACHE_BYTES, restrict_pickle=True)


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

    Raises:
        LMError: The call failed; the message names the model and the reason.
    """
    for lm in {id(one): one for one in lms}.values():
        brief = lm.copy(num_retries=0, **({"max_tokens": 4} if "max_tokens" in lm.kwargs else {}))
        try:
            brief("Say OK.", cache=False)
        except LMError as error:
            raise LMError(f"no answer from {lm.label}: {error}; check --lm, --api-base and the key") from error
