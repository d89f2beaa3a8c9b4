"""The prompt format: instructions, inputs by name, JSON out; as few fixed tokens as a small LM can do with."""

import re
from typing import Any

import dspy
from dspy.adapters.utils import format_field_value, get_annotation_name
from dspy.utils.exceptions import AdapterParseError, LMError

from programs.meter import EndpointDown, Usage
from programs.rules import repair

# A half of a surrogate pair as JSON escapes it: no LM takes it back, and no file holds it.
_HALF_CHARACTER = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


class CutOffError(AdapterParseError):
    """An output that ended at the token limit, before it was whole."""

    default_code = "output_cut_off"


class LeanJSONAdapter(dspy.JSONAdapter):
    """DSPy's JSON adapter with a short system message.

    The stock format spends about 300 tokens a call on describing itself, which is seconds on a CPU. What never
    changes (instructions, output fields, demos) comes first, so that a server keeps it cached; the inputs come last.
    An output that can't be parsed is counted in the run's meter and raised, never retried in another format. Where an
    LM fails that has a fallback, that is asked, in the format it can do.
    """

    def __init__(self) -> None:
        """No native function calling: every output is a JSON object of the signature's schema."""
        super().__init__(use_native_function_calling=False)

    def format_system_message(self, signature: type[dspy.Signature]) -> str:
        """Return the instructions, then one line a described field."""
        lines = [signature.instructions.strip(), "", "Reply with one JSON object:"]
        lines += [_field_line(name, info) for name, info in signature.output_fields.items()]
        return "\n".join(lines)

    def format_user_message_content(
        self,
        signature: type[dspy.Signature],
        inputs: dict[str, Any],
        prefix: str = "",
        suffix: str = "",
        main_request: bool = False,
    ) -> str:
        """Return `name: value`, one input a line; long values start on a line of their own."""
        parts = [prefix] if prefix else []
        for name, info in signature.input_fields.items():
            if name in inputs:
                value = format_field_value(field_info=info, value=inputs[name])
                parts.append(f"{name}:\n{value}" if "\n" in value else f"{name}: {value}")
        return "\n".join([*parts, suffix] if suffix else parts)

    def parse(self, signature: type[dspy.Signature], completion: str) -> dict[str, Any]:
        """Parse the JSON object of one completion.

        Raises:
            AdapterParseError: It is no JSON object, or a field is missing, null or of the wrong type.
        """
        completion = _HALF_CHARACTER.sub(r"\\ufffd", repair(completion))
        fields = super().parse(signature, completion)
        for name, value in fields.items():  # DSPy reads null as the text "None"
            if value == "None" and re.search(rf'"{name}"\s*:\s*null\b', completion):
                raise AdapterParseError(type(self).__name__, signature, completion, message=f"Field {name} is null.")
        return fields

    def __call__(
        self, lm: dspy.BaseLM, lm_kwargs: dict[str, Any], signature: type[dspy.Signature], *args: Any, **kwargs: Any
    ) -> list[dict[str, Any]]:
        """Format, call the LM, parse.

        Raises:
            CutOffError: The output ended at the token limit and can't be parsed.
            AdapterParseError: The output is empty or no JSON object, or a field is missing or of the wrong type.
        """
        reply: dict[str, Any] = {}  # filled in by the LM
        try:
            with dspy.context(reply_facts=reply):
                return self._ask(lm, lm_kwargs, signature, *args, **kwargs)
        except AdapterParseError as error:
            for meter in (getattr(lm, "meter", None), dspy.settings.get("run_meter")):
                if meter is not None:
                    meter.add(Usage(parse_failures=1))
            if reply.get("is_cut_off"):
                raise CutOffError(error.adapter_name, signature, error.lm_response, "Cut off at max_tokens.") from error
            raise

    def _ask(self, lm: dspy.BaseLM, lm_kwargs: dict[str, Any], *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        try:
            return super().__call__(lm, dict(lm_kwargs), *args, **kwargs)
        except (LMError, EndpointDown) as error:
            stand_in = lm.stand_in(error) if hasattr(lm, "stand_in") else None
            if stand_in is None:
                raise
        return super().__call__(stand_in, dict(lm_kwargs), *args, **kwargs)


def _field_line(name: str, info: Any) -> str:
    extra = info.json_schema_extra or {}
    description = extra.get("desc", "")
    described = "" if description.startswith("${") or not description else f": {description}"
    kind = getattr(info.annotation, "prompt_name", None) or get_annotation_name(info.annotation)
    return f'"{name}" ({kind}){described}'
