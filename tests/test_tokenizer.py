import copy
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievers.tokenizer import Tokenizer, WordsError, find_ids, load_tokenizer, read_words, tokenize


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


WORDS = "塔罗斯网关\n\n 网关离 \n塔罗斯网关\n云计算 5 n\n冰火两重天 3\n量子云\tnz\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030"])
def test_a_file_of_words_may_be_a_dictionary_of_jieba_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "words.txt").write_text(WORDS, encoding=encoding)
    words, unused = read_words(tmp_path / "words.txt")
    assert set(words) == {"塔罗斯网关", "网关离", "云计算", "冰火两重天", "量子云"}
    assert unused == []


def test_lines_that_can_not_be_words_of_jieba_are_told(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("B超\n塔罗斯网关\nABC\n中 国\n", encoding="utf-8")
    assert read_words(tmp_path / "words.txt") == (["塔罗斯网关"], ["1: 'B超'", "3: 'ABC'", "4: '中 国'"])
    assert Tokenizer(["B超", "塔罗斯网关", "ABC", "中 国", "中\x00国", "\ud800"]).words == ("塔罗斯网关",)


def test_a_file_of_words_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_bytes(bytes(range(256)) * 8)
    with pytest.raises(WordsError, match=r"words.txt: binary, not text; expected a file of words"):
        read_words(tmp_path / "words.txt")


def test_a_tokenizer_is_copied_and_pickled_with_its_words() -> None:
    tokenizer = load_tokenizer(("塔罗斯网关",))
    assert "塔罗斯网关" in tokenizer("塔罗斯网关离线")
    assert copy.deepcopy(tokenizer) is tokenizer
    assert pickle.loads(pickle.dumps(Tokenizer(["网关离"]))).words == ("网关离",)


def test_many_threads_cut_with_one_tokenizer_that_none_has_loaded_yet() -> None:
    tokenizer, texts = Tokenizer(["塔罗斯网关"]), [f"塔罗斯网关离线第{n}次请检查电源" * 50 for n in range(20)]
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(tokenizer, texts * 4)] == [*map(Tokenizer(["塔罗斯网关"]), texts)] * 4
