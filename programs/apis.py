"""HTTP tools, each declared by a small TOML file: GET, one host, checked parameters, limits of time and size."""

import hashlib
import os
import re
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote, urlsplit

import httpx
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from programs.rules import fold
from retrievers.records import Hit, Passage

_TYPES: dict[str, type] = {"string": str, "integer": int, "number": float, "boolean": bool}
_MAX_REDIRECTS = 3
_SLOT = re.compile(r"\{(\w+)\}")


class ApiError(ValueError):
    """A call that was not made, or that failed; or a declaration that can't be used."""


class Parameter(BaseModel):
    """What one argument may be."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["string", "integer", "number", "boolean"] = "string"
    description: str = ""
    required: bool = True
    pattern: str | None = None
    choices: tuple[str, ...] = ()
    minimum: FiniteFloat | None = None
    maximum: FiniteFloat | None = None

    @field_validator("pattern")
    @classmethod
    def _compile(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"no pattern: {error}") from None
        return pattern

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        limited = self.minimum is not None or self.maximum is not None
        if limited and self.type not in ("integer", "number"):
            raise ValueError(f"minimum and maximum are for numbers, not for a {self.type}")
        if (self.pattern is not None or self.choices) and self.type != "string":
            raise ValueError(f"pattern and choices are for strings, not for {self.type}")
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum:g} is above maximum {self.maximum:g}")
        return self

    def as_field(self, name: str) -> Any:
        """Return the parameter as a field of a pydantic model, in which it has any name and this alias."""
        kind: Any = Literal[self.choices] if self.choices else _TYPES[self.type]
        limits: dict[str, Any] = {"pattern": rf"^(?:{self.pattern})\Z"} if self.pattern and not self.choices else {}
        limits |= {} if self.minimum is None else {"ge": self.minimum}
        limits |= {} if self.maximum is None else {"le": self.maximum}
        limits |= {"max_length": 200} if kind is str else {}
        checked = Annotated[kind, Field(**limits)]
        return (checked, Field(alias=name)) if self.required else (checked | None, Field(default=None, alias=name))


class ApiTool(BaseModel):
    """One HTTP tool.

    `when` are the words of a question that make it worth asking, `host` is all it may talk to, and `token_env` names
    the environment variable that holds its bearer token.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,40}$")
    description: str = Field(min_length=1, max_length=300)
    url: str
    host: str
    method: Literal["GET"] = "GET"
    when: tuple[Annotated[str, Field(pattern=r"\S")], ...] = Field(min_length=1)
    parameters: dict[str, Parameter] = {}
    timeout_s: float = Field(default=5.0, gt=0, le=60)
    max_bytes: int = Field(default=20_000, gt=0, le=1_000_000)
    token_env: str = ""

    @model_validator(mode="after")
    def _check_url(self) -> "ApiTool":
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or parts.netloc != self.host or _SLOT.search(parts.netloc):
            raise ValueError(f"url: expected http(s)://{self.host}/…, without a user or a password")
        if unknown := set(_SLOT.findall(self.url)) - set(self.parameters):
            raise ValueError(f"url: {{{sorted(unknown)[0]}}} is no parameter")
        return self

    def describe(self) -> str:
        """Return the tool as an LM is shown it: name, what it gives, its parameters."""
        parts = [f"{name} ({_describe_parameter(one)})" for name, one in self.parameters.items()]
        return f"{self.name}({', '.join(parts)}): {self.description}"

    def is_asked_for(self, question: str) -> bool:
        """Tell whether a question holds one of the words that this tool is for."""
        text = fold(question)
        return any(re.search(rf"(?<![a-z0-9]){re.escape(fold(word))}(?![a-z0-9])", text) for word in self.when)

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check arguments against the declared parameters.

        Raises:
            ApiError: One is unknown, missing or not what it may be.
        """
        # The fields have names of their own: a parameter may be called what pydantic keeps for itself.
        fields = {f"field_{n}": one.as_field(name) for n, (name, one) in enumerate(self.parameters.items())}
        config = ConfigDict(extra="forbid", regex_engine="python-re")
        model: type[BaseModel] = create_model(self.name, __config__=config, **fields)
        try:
            return model.model_validate(dict(arguments)).model_dump(exclude_none=True, by_alias=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ApiError(f"{self.name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None

    def arguments_by_rule(self, question: str) -> dict[str, str] | None:
        """Fill the arguments where a rule can: one required parameter whose pattern fits one part of the question."""
        required = [(name, one) for name, one in self.parameters.items() if one.required]
        if len(required) != 1 or not required[0][1].pattern or required[0][1].type != "string":
            return None
        pattern = _without_groups(required[0][1].pattern)
        found = set(re.findall(rf"(?<![A-Za-z0-9_-])(?:{pattern})(?![A-Za-z0-9_-])", question))
        return {required[0][0]: found.pop()} if len(found) == 1 else None

    def call(self, arguments: Mapping[str, Any]) -> Hit:
        """Make the call; what comes back is evidence that can be judged and cited.

        Raises:
            ApiError: The arguments are wrong, or the call failed, left its host, or brought too much.
        """
        url, query = self._fill(self.check(arguments))
        deadline = time.monotonic() + self.timeout_s
        try:
            with httpx.Client(timeout=self.timeout_s, follow_redirects=False, headers=self._headers()) as client:
                text = self._read(client, httpx.URL(url, params=query or None), deadline)
        except httpx.HTTPError as error:
            raise ApiError(f"{self.name}: {type(error).__name__}: {error}") from None
        shown = ", ".join(f"{key}={value}" for key, value in sorted(arguments.items()))
        passage_id = f"{self.name}#{hashlib.sha256(f'{url}{query}'.encode()).hexdigest()[:8]}"
        return Hit(Passage(passage_id, self.name, f"{self.name}({shown})", text, {"type": "api"}), 1.0, 1)

    def _fill(self, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        slots = set(_SLOT.findall(self.url))
        if missing := sorted(slots - set(arguments)):
            raise ApiError(f"{self.name}: {missing[0]}: is missing")
        if stray := [name for name in slots if str(arguments[name]) in ("", ".", "..")]:
            raise ApiError(f"{self.name}: {stray[0]}: names no resource")
        url = _SLOT.sub(lambda match: quote(str(arguments[match.group(1)]), safe=""), self.url)
        return url, {name: value for name, value in arguments.items() if name not in slots}

    def _headers(self) -> dict[str, str]:
        if not self.token_env:
            return {}
        if not os.environ.get(self.token_env):
            raise ApiError(f"{self.name}: {self.token_env} is not set in the environment")
        return {"Authorization": f"Bearer {os.environ[self.token_env]}"}

    def _read(self, client: httpx.Client, url: httpx.URL, deadline: float) -> str:
        for _ in range(_MAX_REDIRECTS + 1):
            with client.stream("GET", url) as response:
                if response.next_request is None:
                    return self._read_body(response, deadline)
                target = response.next_request.url
            if (target.scheme, target.netloc) != (url.scheme, url.netloc):
                raise ApiError(f"{self.name}: sent on to another host, which is not followed")
            url = target
        raise ApiError(f"{self.name}: sent on more than {_MAX_REDIRECTS} times")

    def _read_body(self, response: httpx.Response, deadline: float) -> str:
        if response.status_code != httpx.codes.OK:
            raise ApiError(f"{self.name}: HTTP {response.status_code} {response.reason_phrase}")
        kind = response.headers.get("content-type", "text/plain")
        if not re.match(r"text/|application/(\w+\+)?(json|xml)", kind):
            raise ApiError(f"{self.name}: expected text or JSON, got {kind}")
        body = b""
        for part in response.iter_bytes():
            body += part
            if len(body) > self.max_bytes:
                raise ApiError(f"{self.name}: more than {self.max_bytes:,} bytes")
            if time.monotonic() > deadline:
                raise ApiError(f"{self.name}: took longer than {self.timeout_s:g} s")
        text = body.decode(response.encoding or "utf-8", "replace").strip()
        if not text:
            raise ApiError(f"{self.name}: an empty reply")
        return text


def load_apis(path: Path) -> dict[str, ApiTool]:
    """Read HTTP tools from a TOML file of `[[tool]]` tables.

    Raises:
        FileNotFoundError: There is no such file.
        ApiError: It is no TOML, or a declaration is wrong; the message names the place.
    """
    try:
        record = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ApiError(f"{path}: not TOML: {error}") from None
    declared = record.get("tool")
    if set(record) != {"tool"} or not isinstance(declared, list):
        raise ApiError(f"{path}: expected [[tool]] tables and nothing else")
    tools: dict[str, ApiTool] = {}
    for number, one in enumerate(declared, start=1):
        try:
            tool = ApiTool.model_validate(one)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            what = [".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")]
            raise ApiError(f"{path}: tool {number}: {': '.join(filter(None, what))}") from None
        if tool.name in tools:
            raise ApiError(f"{path}: tool {number}: name: {tool.name!r} is used twice")
        tools[tool.name] = tool
    return tools


def _without_groups(pattern: str) -> str:
    """Make groups uncounted, so that a search returns whole matches."""
    return re.sub(r"(?<!\\)\((?!\?)", "(?:", pattern)


def _describe_parameter(parameter: Parameter) -> str:
    parts = [parameter.type, parameter.description, " or ".join(parameter.choices), parameter.pattern or ""]
    return ", ".join([*filter(None, parts), *([] if parameter.required else ["optional"])])
