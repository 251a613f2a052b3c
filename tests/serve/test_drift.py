"""Guards the drift warning: silent on texts like the held-out ones, loud on others, absent where nothing is known."""

from dataclasses import replace

import numpy as np
import pytest
from starlette.testclient import TestClient

from aplc.serve.app import Service, make_app
from aplc.serve.drift import FEWEST, MOST, Drift
from aplc.store.folder import load_tagger
from helpers import topic_rows
from load import read_metrics


@pytest.fixture(scope="module")
def tagger(words_model):
    return load_tagger(words_model)


def with_ranges(tagger, **ranges):
    return replace(tagger, held_out={**tagger.held_out, "ranges": ranges})


def test_training_stores_where_19_of_20_held_out_documents_lie(tagger, trained):
    ranges = tagger.held_out["ranges"]
    assert all(0 <= ranges[name][0] <= ranges[name][1] <= 1 for name in ("top_probability", "unknown_words"))
    few = load_tagger(trained).held_out["ranges"]  # of ten documents
    assert few == {"top_probability": None, "unknown_words": None}
    assert load_tagger(trained).model.unknown_words(["zebra"]) is None  # a network has pieces for every word


def test_unknown_words_are_those_that_training_did_not_have(tagger):
    unknown = tagger.model.unknown_words(["cat dog", "cat zebra", "zebra zebra cat giraffe", "?!"])
    assert unknown == pytest.approx([0, 1 / 2, 3 / 4, 0])


def test_warning_needs_three_times_as_many_as_expected(tagger):
    drift = Drift(with_ranges(tagger, top_probability=[0.2, 0.9]))
    drift.add("top_probability", [0.1] * (FEWEST - 1))
    assert drift.warnings() == []  # too few to say
    drift.add("top_probability", [0.195, 0.905] * 1000)
    assert drift.share("top_probability") == 0
    rng = np.random.default_rng(1)
    drift.add("top_probability", np.where(rng.random(1000) < 0.05, 0.95, 0.5))
    assert 0.02 < drift.share("top_probability") < 0.1
    assert drift.warnings() == []
    drift.add("top_probability", [0.95] * int(1000 * MOST) + [0.1])
    (warning,) = drift.warnings()
    assert "top probability" in warning
    assert "0.2 to 0.9" in warning


@pytest.mark.parametrize("ranges", [None, 5, {}, {"top_probability": None}, {"top_probability": ["a", 1]}])
def test_folders_without_usable_ranges_have_no_drift(tagger, ranges):
    drift = Drift(replace(tagger, held_out={**tagger.held_out, "ranges": ranges}))
    drift.add("top_probability", [0.5] * 1000)
    assert drift.warnings() == []
    assert Drift(replace(tagger, held_out=None)).ranges == {}


def test_server_warns_of_foreign_texts_and_not_of_known_ones(tagger):
    with TestClient(make_app(Service(tagger, "topics"))) as client:

        def tag(texts):
            for start in range(0, len(texts), 4):  # batches of which all texts are looked at
                client.post("/tag", json={"texts": texts[start : start + 4]})

        tag([row["text"] for row in topic_rows(300, seed=9)])
        assert client.get("/health").json()["warnings"] == []
        tag(["lorem ipsum dolor sit amet"] * 300)
        warnings = client.get("/health").json()["warnings"]
        assert any("unknown words" in warning for warning in warnings)
        metrics = read_metrics(client.get("/metrics").text)
        assert metrics["aplc_drift_unknown_words"] == pytest.approx(0.5, abs=0.1)
        assert metrics["aplc_top_probability_count"] == metrics["aplc_batch_texts_sum"] == 600
