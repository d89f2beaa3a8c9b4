"""What each LM call is asked, and nothing else."""

from signatures.answer import AnswerFromPassages
from signatures.condense import CondenseQuestion
from signatures.judge import JudgeEvidence, Verdict
from signatures.plan import TOOLS, PlanSearches, SearchStep, Tool
from signatures.rewrite import RewriteQuery
from signatures.tools import CallTool, WriteQuery

__all__ = [
    "TOOLS",
    "AnswerFromPassages",
    "CallTool",
    "CondenseQuestion",
    "JudgeEvidence",
    "PlanSearches",
    "RewriteQuery",
    "SearchStep",
    "Tool",
    "Verdict",
    "WriteQuery",
]
