"""What to search for first."""

from typing import Annotated, Literal, get_args

import dspy
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

Tool = Literal["hybrid", "keyword", "dense"]
TOOLS: tuple[Tool, ...] = get_args(Tool)
# The schema binds an LM that honours it to the three; one that does not is told off by the record, not by a crash.
NamedTool = Annotated[str, WithJsonSchema({"enum": list(TOOLS), "type": "string"})]


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
