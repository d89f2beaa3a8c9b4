import struct
from pathlib import Path

import pytest
from evaluations import case_of, errored, ladder, result_of, write_records

from trainsets.plots import label_names, write_plots
from trainsets.results import CaseResult

FIGURES = ["outcomes", "pareto", "slices_kind", "slices_language", "transitions"]


def size_of(path: Path) -> tuple[int, int]:
    """Width and height of a PNG file, from its header."""
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", header[16:])
    return width, height


def test_every_figure_is_a_picture(tmp_path: Path) -> None:
    written = write_plots(write_records(tmp_path / "runs", ladder()), tmp_path / "plots")
    assert sorted(path.stem for path in written) == FIGURES
    assert sorted(tmp_path.joinpath("plots").iterdir()) == sorted(written)
    assert all(250 < side < 4000 for path in written for side in size_of(path))


@pytest.mark.parametrize(
    ("results", "figures"),
    [
        ([errored(case_of(number)) for number in range(3)], ["outcomes", "slices_kind", "slices_language"]),
        ([result_of(case_of(1, kind="", lang=""), calls=0)], ["outcomes", "pareto"]),
    ],
    ids=["all errored", "no kinds and no LM"],
)
def test_what_one_program_leaves_nothing_to_show_in_is_left_out_and_an_earlier_file_of_it_goes(
    tmp_path: Path, results: list[CaseResult], figures: list[str]
) -> None:
    stale = tmp_path / "transitions.png"
    stale.write_bytes(b"of another evaluation")
    written = write_plots(write_records(tmp_path, {"agentic": results}), tmp_path)
    assert sorted(path.stem for path in written) == figures
    assert not stale.exists()


def test_names_that_the_font_lacks_or_that_look_like_formulas_are_drawn(tmp_path: Path) -> None:
    kinds = {"kind": "查询", "lang": "$\\frac$"}  # a missing glyph or a broken formula would be a warning or an error
    results = [result_of(case_of(number, **kinds)) for number in range(2)]
    write_plots(write_records(tmp_path, {"程序": results, "$x": results}), tmp_path)


def test_a_label_is_the_text_where_the_font_has_it_else_its_number() -> None:
    assert label_names(["naive", "程序", "", "$x$"]) == {
        "naive": "naive",
        "程序": "program 2",
        "": "(none)",
        "$x$": "$x$",
    }
