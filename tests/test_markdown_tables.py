from retrievers.readers.markdown import find_tables

ORDERS = """# Orders

| Region | Q1 | Q2 |
|:-------|---:|---:|
| **Nordics** | 1,412 | 438 |
| Alps \\| Tyrol | – | 2.5 |
| `China` | -3 | 0 |
"""


def test_a_table_is_read_with_numbers_as_numbers_and_empty_cells_as_none() -> None:
    [table] = find_tables(ORDERS, "Orders 2025")
    assert (table.name, list(table.columns)) == ("Orders 2025", ["Region", "Q1", "Q2"])
    assert list(map(list, table.rows)) == [["Nordics", 1412, 438], ["Alps | Tyrol", None, 2.5], ["China", -3, 0]]


def test_of_several_tables_each_has_the_heading_it_stands_under() -> None:
    text = f"{ORDERS}\n## Stock ##\n|a|b|\n|-|-|\n|x|1|\n|y|2|"
    assert [table.name for table in find_tables(text, "T")] == ["T Orders", "T Stock"]
    assert [table.name for table in find_tables(ORDERS, "")] == ["Orders"]


def test_rows_may_be_short_or_long_and_columns_nameless_or_alike() -> None:
    [table] = find_tables("| a | a | |\n|---|---|---|\n| 1 |\n| 2 | x | 3 | 4 |", "T")
    assert list(table.columns) == ["a", "a 2", "column 3", "column 4"]
    assert list(map(list, table.rows)) == [[1, None, None, None], [2, "x", 3, 4]]


def test_what_has_nothing_to_add_up_is_no_table_for_sql() -> None:
    assert find_tables("| Property | Value |\n|---|---|\n| Weight | 340 g |\n| Version | 007 |", "T") == []
    assert find_tables("| a | b |\n|---|---|\n| x | 1 |", "T") == []  # one row
    assert find_tables("| a | 1 |\n| b | 2 |\n| c | 3 |\n| d | 4 |", "T") == []  # no header
    assert find_tables("a | b\n1 | 2\n| alone |", "T") == []


def test_a_heading_is_read_in_time_linear_in_its_length() -> None:
    lines = ["# " + " " * 20_000 + "x", "# x" + " #" * 10_000, "#" * 20_000]
    [table] = find_tables("\n".join([*lines, ORDERS]), "")
    assert table.name == "Orders"


def test_code_is_left_alone() -> None:
    assert find_tables(f"```\n{ORDERS}\n```", "T") == []
