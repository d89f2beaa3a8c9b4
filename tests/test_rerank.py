from collections.abc import Sequence
from pathlib import Path

import pytest

from retrievers.embedders import EmbedderError
from retrievers.records import Hit, Passage
from retrievers.rerank import CrossEncoderReranker, RerankingRetriever


class Fixed:
    """Ranks the same passages for every query."""

    def search(self, query: str, k: int = 10, filters: object = None) -> list[Hit]:
        texts = ["apple", "red apple pie", "pear", "apple tree"]
        return [Hit(Passage(f"d#{n}", "d", "", text), 1 / (n + 1), n + 1) for n, text in enumerate(texts)][:k]


class Overlap:
    """Scores by the words that query and text share."""

    def score(self, query: str, texts: Sequence[str]) -> list[float]:
        return [float(len(set(query.split()) & set(text.split()))) for text in texts]


def test_hits_are_ranked_by_the_reranker_and_ties_keep_their_order() -> None:
    hits = RerankingRetriever(Fixed(), Overlap()).search("red apple", k=3)
    assert [(hit.passage.text, hit.score, hit.rank) for hit in hits] == [
        ("red apple pie", 2.0, 1),
        ("apple", 1.0, 2),
        ("apple tree", 1.0, 3),
    ]


def test_hits_below_the_threshold_are_dropped() -> None:
    hits = RerankingRetriever(Fixed(), Overlap(), threshold=1.0).search("red apple", k=10)
    assert [hit.passage.text for hit in hits] == ["red apple pie", "apple", "apple tree"]


def test_only_the_candidates_are_read() -> None:
    assert len(RerankingRetriever(Fixed(), Overlap(), n_candidates=2).search("red apple", k=1)) == 1
    assert RerankingRetriever(Fixed(), Overlap(), n_candidates=1).search("red", k=1)[0].passage.text == "apple"


@pytest.mark.filterwarnings("ignore")
def test_a_cross_encoder_loads_from_a_local_path(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "apple", "red", "pie", "pear", "tree"]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=1,
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    reranker = CrossEncoderReranker(str(tmp_path), device="cpu", batch_size=2)
    scores = reranker.score("red apple", ["red apple pie", "pear", "apple tree"])
    assert len(scores) == 3
    assert reranker.score("red apple", []) == []
    hits = RerankingRetriever(Fixed(), reranker).search("red apple", k=4)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_a_name_that_is_no_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(EmbedderError, match="is no cross-encoder") as caught:
        CrossEncoderReranker(str(tmp_path / "none"))
    assert "\n" not in str(caught.value)
