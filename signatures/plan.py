"""What to search for first."""

from typing import Literal

import dspy
from pydantic import BaseModel, ConfigDict, Field

Tool = Literal["hybrid", "keyword", "dense"]
TOOLS: tuple[Tool, ...] = ("hybrid", "keyword", "dense")


class SearchStep(BaseModel):
    """One search: which tool is asked what."""

    model_config = ConfigDict(extra="forbid")

    tool: Tool = Field(description="keyword for ids and codes, dense for paraphrase, hybrid when unsure")
    query: str


class PlanSearches(dspy.Signature):
    """Split the question into the fewest searches that find its answer.

    One search is enough unless two separate facts are asked for. Each query is short, names what it looks for, and is
    in the language of the question. Never answer the question.
    """

    question: str = dspy.InputField()
    steps: list[SearchStep] = dspy.OutputField(desc='1 to 3 items {"tool": "hybrid", "keyword" or "dense", "query"}')
