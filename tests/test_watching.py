from io import StringIO

import tiny
from rich.console import Console
from scripted_server import ScriptedServer

from programs.lms import bind, make_roles
from programs.load import Tools, load_program
from programs.watching import show_steps, watch

ANSWERS = {question: answer for question, (answer, _, _) in tiny.ANSWERS.items()}


def steps_of(tools: Tools, question: str) -> list[str]:
    """Every step that is said while a question is answered."""
    said: list[str] = []
    program = load_program("agentic", tools)
    with ScriptedServer(ANSWERS) as server, bind(make_roles("openai/test", api_base=server.url)):
        with watch(program, said.append):
            program(question=question)
        program(question=question)  # nobody watches any more
    return said


def test_each_step_is_said_when_it_begins(tools: Tools) -> None:
    steps = steps_of(tools, "What does E-1024 mean?")
    assert steps == ["searching", "judging", "searching", "answering", "searching"]
    again = steps_of(tools, "Which town is the best one to live in?")
    assert again[:5] == ["searching", "judging", "searching", "rewriting the query", "searching"]


def test_a_terminal_shows_the_step_and_its_seconds_and_is_left_clean() -> None:
    text = StringIO()
    with show_steps(Console(file=text, force_terminal=True, width=60)) as say:
        say("judging [b]")
    assert "judging [b] 0 s" in text.getvalue()
    assert text.getvalue().endswith("\x1b[2K")  # the line is erased


def test_nothing_is_written_where_there_is_no_terminal() -> None:
    text = StringIO()
    with show_steps(Console(file=text)) as say:
        say("judging")
    assert text.getvalue() == ""
