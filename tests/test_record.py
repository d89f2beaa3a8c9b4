import json

import pytest
import tiny
from scripted_server import ScriptedServer

from programs.lms import bind, make_roles
from programs.load import Tools
from programs.rag import AgenticRAG, NaiveRAG
from programs.record import from_json, to_json


@pytest.mark.parametrize("kind", [NaiveRAG, AgenticRAG])
def test_a_prediction_is_read_again_from_its_plain_data(tools: Tools, kind: type[NaiveRAG]) -> None:
    question = "How long may the sync cable be?"
    replies = {"quotes": lambda request: json.dumps({"quotes": [], "verdict": "insufficient", "missing": "relays"})}
    with (
        ScriptedServer({question: "140 m"}, replies=replies) as server,
        bind(make_roles("openai/t", api_base=server.url)),
    ):
        prediction = kind(tools.retrievers)(question=question)
    plain = json.loads(json.dumps(to_json(prediction), ensure_ascii=False))
    read = from_json(plain)
    assert json.loads(json.dumps(to_json(read))) == plain
    assert (read.usage, read.context[0].passage.text) == (prediction.usage, prediction.context[0].passage.text)
    assert [hop.hits[0].passage.doc_id for hop in read.hops] == [hop.hits[0].passage.doc_id for hop in prediction.hops]
    assert read.context[0].passage.doc_id in {document["id"] for document in tiny.DOCUMENTS}
    for mine, theirs in zip(read.hops, prediction.hops, strict=True):
        assert (mine.kept, mine.judged, mine.verdict) == (theirs.kept, theirs.judged, theirs.verdict)
        assert (mine.relevance, mine.left_out) == (theirs.relevance, theirs.left_out)
        assert len(mine.relevance) == len(mine.hits)
