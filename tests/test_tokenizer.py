import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievers.tokenizer import Tokenizer, find_ids, load_tokenizer, tokenize


@pytest.mark.parametrize(
    "identifier", ["E-1024", "INC-778899", "FK-22", "v2.3.1", "RS-485", "PO/2024/0012", "2024-01-15"]
)
def test_ids_stay_whole(identifier: str) -> None:
    assert identifier.casefold() in tokenize(f"see {identifier}, please")
    assert identifier.casefold() in tokenize(f"请看{identifier}的说明")


def test_ids_that_differ_by_one_digit_share_no_whole_token() -> None:
    assert "e-1024" not in tokenize("E-1025")
    assert set(tokenize("E-1024")) & set(tokenize("E-1025")) == set()


def test_full_width_and_case_fold_to_the_same_tokens() -> None:
    assert tokenize("Ｅ－１０２４ ＡＢＣ") == tokenize("e-1024 abc")


def test_chinese_is_cut_into_words() -> None:
    tokens = tokenize("控制器的错误代码")
    assert "控制器" in tokens
    assert "错误" in tokens
    assert "控制器的错误代码" not in tokens


def test_custom_words_are_not_cut() -> None:
    text = "塔罗斯网关离线"
    assert "塔罗斯网关" not in tokenize(text)
    assert "塔罗斯网关" in Tokenizer(["塔罗斯网关"])(text)


def test_fingerprint_depends_on_the_custom_words_alone() -> None:
    assert Tokenizer(["甲", "乙"]).fingerprint == Tokenizer(["乙", "甲", "甲"]).fingerprint
    assert Tokenizer(["甲"]).fingerprint != Tokenizer().fingerprint


def test_joined_words_and_possessives_split() -> None:
    assert tokenize("state-of-the-art") == ["state", "of", "the", "art"]
    assert tokenize("Ferrari's Ferrari’s FK-22's") == ["ferrari", "ferrari", "fk-22"]


def test_parts_of_a_joined_number_are_found_by_their_words() -> None:
    assert "covid" in tokenize("COVID-19")


def test_find_ids_takes_codes_and_leaves_words_and_numbers() -> None:
    assert find_ids("Is E-1024 on FK22 a 10-year-old state-of-the-art 3.5 GHz issue since 2024? E-1024!") == [
        "e-1024",
        "fk22",
    ]


@given(st.text())
def test_any_text_gives_tokens_without_white_space(text: str) -> None:
    assert all(token and not any(map(str.isspace, token)) for token in tokenize(text))


def test_loading_prints_and_warns_nothing() -> None:
    code = "from retrievers.tokenizer import tokenize; tokenize('北京大学')"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


ALPHABET = "ab E-1024'ſK 继电器模块的框架合同，。_/:½１Ａ\n\ud800"


@given(st.text(alphabet=ALPHABET, max_size=60), st.text(alphabet=ALPHABET, max_size=30))
def test_what_is_found_in_a_text_is_what_its_tokens_and_those_sought_share(text: str, other: str) -> None:
    tokenizer = load_tokenizer()
    wanted = {*tokenizer(other), "继电", "合同", "1024"}
    assert tokenizer.find(text, wanted) == wanted & set(tokenizer(text))


def test_runs_of_chinese_without_a_token_that_is_sought_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, cut = Tokenizer(), list[str]()
    monkeypatch.setattr(tokenizer, "_cut", lambda chunk: cut.append(chunk) or list(chunk))
    assert tokenizer.find("仓库发货，运费由供应商承担，合同另附", {"合", "x"}) == {"合"}
    assert cut == ["合同另附"]
