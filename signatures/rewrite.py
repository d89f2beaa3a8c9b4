"""What to search for next, when the passages found do not answer the question."""

import dspy

from signatures.plan import NamedTool


class RewriteQuery(dspy.Signature):
    """Write one new search query for the missing fact.

    Use names and ids that the passages revealed. Differ from the queries already tried. Same language as the question.
    """

    question: str = dspy.InputField()
    known: list[str] = dspy.InputField()
    missing: str = dspy.InputField()
    tried: list[str] = dspy.InputField()
    query: str = dspy.OutputField(desc="a few words")
    tool: NamedTool = dspy.OutputField(desc="keyword for ids and codes, dense for paraphrase, hybrid when unsure")
