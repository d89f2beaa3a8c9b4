"""A follow-up question, made to stand alone."""

import dspy


class CondenseQuestion(dspy.Signature):
    """Rewrite the last question so that it can be understood without the conversation.

    Put in what it refers to, keep everything else, keep its language. Do not answer it.
    """

    conversation: str = dspy.InputField()
    question: str = dspy.InputField()
    standalone: str = dspy.OutputField(desc="the rewritten question")
