"""What to search for first."""

from typing import TYPE_CHECKING, Any, Literal, get_args

import dspy
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import CoreSchema, core_schema

Tool = Literal["hybrid", "keyword", "dense"]
TOOLS: tuple[Tool, ...] = get_args(Tool)


if TYPE_CHECKING:
    NamedTool = str
else:

    class NamedTool(str):
        """The name of a tool: the schema binds an LM that honours it to the three, and any other is read all the same.

        A name that is none is told off by the record of the run; as a wrong value it would cost the whole output.
        """

        __slots__ = ()
        prompt_name = f"Literal{list(TOOLS)}"

        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
            """Take any text, and leave it a plain `str`."""
            return core_schema.str_schema(strip_whitespace=True)

        @classmethod
        def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: Any) -> dict[str, Any]:
            """Ask for one of the three."""
            return {"enum": list(TOOLS), "type": "string"}


class SearchStep(BaseModel):
    """One search: which tool is asked what."""

    model_config = ConfigDict(extra="forbid")

    tool: NamedTool = Field(description="keyword for ids and codes, dense for paraphrase, hybrid when unsure")
    query: str


class PlanSearches(dspy.Signature):
    """Split the question into the fewest searches that find its answer.

    One search is enough unless two separate facts are asked for. Each query is short, names what it looks for, and is
    in the language of the question. A search that needs what an earlier one finds has {1} in its place. Never answer
    the question.
    """

    question: str = dspy.InputField()
    steps: list[SearchStep] = dspy.OutputField(desc='1 to 3 items {"tool": "hybrid", "keyword" or "dense", "query"}')
