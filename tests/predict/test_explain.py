"""Guards explanations: the right words stand out, positions are those of the text, and the cost is bounded."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from aplc.data.formats import Document
from aplc.predict.decide import Rule
from aplc.predict.explain import explain, parts_of
from aplc.predict.search import decide_documents
from aplc.store.folder import load_tagger
from aplc.train.relabel import merge_labels
from aplc.words.index import Index
from aplc.words.model import WordFeatures, WordsModel
from aplc.words.names import Names
from aplc.words.text import count_words


@pytest.fixture(scope="module")
def tagger(trained):
    return load_tagger(trained)


@pytest.fixture(scope="module")
def words_tagger(tagger):
    """In this words model "rain" speaks for the label météo, "violin" and the pair "rain violin" against it."""
    effects = {"rain": 2.0, "violin": -1.0, "rain violin": -4.0}
    weight = {
        max(count_words([text], runs=False).indices): effect for text, effect in effects.items()
    }  # pairs are behind words
    bucket = np.array(sorted(weight))
    weight_VL = np.zeros((len(bucket), len(tagger.labels)), dtype=np.float32)
    weight_VL[:, tagger.labels.index["météo"]] = [weight[i] for i in bucket]
    features = WordFeatures(bucket, np.ones(len(bucket), dtype=np.float32))
    curve = np.repeat(np.float32([[0], [1], [0]]), len(tagger.labels), 1)
    model = WordsModel(
        features=features,
        index=Index.of(sparse.csr_array(weight_VL)),
        bias_L=np.zeros(len(tagger.labels), dtype=np.float32),
        curve_3L=curve,
        names=Names.of([]),
        worth_3L=np.zeros_like(curve),
        n_seen=len(tagger.labels),
        learned=np.zeros(0, dtype=np.float32),
        ridge=0.5,
        prune=0.0,
    )
    return replace(tagger, model=model, calibration=None)


def test_words_of_the_topic_speak_for_it(tagger):
    text = "violin sonata, rain and snow"
    explanation = explain(tagger, text, "météo")
    effects = {text[part.start : part.stop]: part.effect for part in explanation.parts}
    assert list(effects) == ["violin", "sonata", ",", "rain", "and", "snow"]
    assert min(effects["rain"], effects["snow"]) > max(effects["violin"], effects["sonata"])
    music = {text[p.start : p.stop]: p.effect for p in explain(tagger, text, "music, classical").parts}
    assert max(music, key=music.get) in ("violin", "sonata")


def test_text_beyond_the_limit_is_not_read(tagger):
    model, room = tagger.model, tagger.model.collator.room
    text = "rain " * (2 * room)
    read = model.characters_read(text)
    assert 0 < read < len(text)
    encode = model.tokenizer.encode
    assert len(encode([text[:read]])[0]) <= room
    assert encode([text])[0][:room] == encode([text[:read]])[0][:room]
    assert explain(tagger, text, "météo", max_parts=4).parts[-1].stop <= read
    assert model.characters_read("rain") == 4


def test_a_words_model_reads_all_of_a_text(words_tagger):
    text = "snow " * 5_000 + "rain"
    assert words_tagger.model.characters_read(text) == len(text)
    found = explain(words_tagger, text, "météo")
    assert found.read == len(text)
    assert [part.effect > 0 for part in found.parts] == [False] * 127 + [True]


def test_words_and_pairs_of_a_words_model_are_explained(words_tagger):
    """Leaving out one word of a pair leaves out the pair."""
    text = "Rain, violin!"
    effects = {text[part.start : part.stop]: part.effect for part in explain(words_tagger, text, "météo").parts}
    # With both: rain and violin share length 1, the pair has 0.5. Without one, the other has length 1.
    both = (2 - 1) / np.sqrt(2) - 4 * 0.5
    assert effects["Rain"] == pytest.approx(both - -1, abs=1e-4)
    assert effects["violin"] == pytest.approx(both - 2, abs=1e-4)
    assert effects[","] == effects["!"] == 0


def test_words_still_count_where_a_label_is_all_but_certain(words_tagger):
    """In float32 log-odds of 20 and of 25 are both the probability 1."""
    model = words_tagger.model
    sure = replace(words_tagger, model=replace(model, bias_L=model.bias_L + 24))
    (rain, snow), (unsure, _) = (explain(tagger, "rain snow", "météo").parts for tagger in (sure, words_tagger))
    assert rain.effect == pytest.approx(unsure.effect, rel=1e-3)
    assert rain.effect > 1
    assert snow.effect == pytest.approx(0, abs=1e-3)


def test_long_text_is_not_read_whole_even_if_the_model_does(tagger, monkeypatch):
    monkeypatch.setattr("aplc.predict.explain.LONGEST", 9)
    assert explain(tagger, "rain and snow", "météo") == explain(tagger, "rain and ", "météo")


def test_merged_label_is_explained_as_the_one_it_owes_its_probability_to(tagger):
    merged = merge_labels(tagger, ["music, classical"], "météo")
    for text, member in (("violin sonata", "music, classical"), ("rain, snow", "météo")):
        assert explain(merged, text, "météo") == explain(tagger, text, member)


def test_thai_text_is_explained_character_by_character(tagger):
    text = "ฝนตก rain"
    parts = explain(tagger, text, "météo").parts
    assert [text[part.start : part.stop] for part in parts] == ["ฝ", "น", "ต", "ก", "rain"]


def test_many_words_are_left_out_in_groups():
    words = [f"w{i}" for i in range(1000)]
    text = " ".join(words)
    parts = parts_of(text, 128)
    assert len(parts) == 128
    assert [word for start, stop in parts for word in text[start:stop].split()] == words
    assert {len(text[start:stop].split()) for start, stop in parts} == {7, 8}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("it's a well-known 5-HT3 (test).", ["it's", "a", "well-known", "5-HT3", "(", "test", ")."]),
        ("東京の hotel", ["東", "京", "の", "hotel"]),
        ("ฝนตก hotel", ["ฝ", "น", "ต", "ก", "hotel"]),  # Thai
        ("ມື້ນີ້", list("ມື້ນີ້")),  # Lao
        ("မိုး", list("မိုး")),  # Burmese
        ("ភ្លៀង", list("ភ្លៀង")),  # Khmer
        ("… !?", ["…", "!?"]),
        ("", []),
        ("e\u0301té 😀", ["e\u0301té", "😀"]),
    ],
)
def test_words(text, words):
    assert [text[start:stop] for start, stop in parts_of(text, 99)] == words


def test_probability_is_the_one_that_tagging_gives(trained, corpus):
    """Calibrated where the model is."""
    tagger = load_tagger(trained)
    assert tagger.calibration is not None
    text = "violin sonata, rain and snow"
    ((_, tags),) = decide_documents(tagger, [Document(text)], Rule(top_k=3))
    for label, probability in tags[0]:
        assert explain(tagger, text, label).probability == pytest.approx(probability, abs=1e-6)
