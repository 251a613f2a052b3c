"""Guards explanations: the right words stand out, positions are those of the text, and the cost is bounded."""

import pytest
import torch

from aplc.store.folder import TrainedTagger
from aplc.train.relabel import merge_labels
from aplc.predict.explain import characters_read, explain, parts_of


@pytest.fixture(scope="module")
def folder(trained):
    return TrainedTagger.load(trained)


def test_words_of_the_topic_speak_for_it(folder):
    text = "violin sonata, rain and snow"
    explanation = explain(folder, text, "météo")
    effects = {text[part.start : part.stop]: part.effect for part in explanation.parts}
    assert list(effects) == ["violin", "sonata", ",", "rain", "and", "snow"]
    assert min(effects["rain"], effects["snow"]) > max(effects["violin"], effects["sonata"])
    music = {text[p.start : p.stop]: p.effect for p in explain(folder, text, "music, classical").parts}
    assert max(music, key=music.get) in ("violin", "sonata")


def test_probability_is_that_of_the_text(folder):
    ids = folder.labels.index
    batch = folder.collator(folder.tokenizer.encode(["violin and rain"]), [[]])
    with torch.inference_mode():
        every = folder.model.clusters.probabilities(folder.model.represent(batch))[0]
    for label in ids:
        assert explain(folder, "violin and rain", label).probability == pytest.approx(
            float(every[ids[label]]), abs=1e-6
        )


def test_text_beyond_the_limit_is_not_read(folder):
    room = folder.collator.max_length - folder.collator.template.size
    text = "rain " * (2 * room)
    read = characters_read(folder, text)
    assert 0 < read < len(text)
    assert len(folder.tokenizer.encode([text[:read]])[0]) <= room
    assert folder.tokenizer.encode([text])[0][:room] == folder.tokenizer.encode([text[:read]])[0][:room]
    assert explain(folder, text, "météo", max_parts=4).parts[-1].stop <= read
    assert characters_read(folder, "rain") == 4


def test_long_text_is_not_read_whole_even_if_the_model_does(folder, monkeypatch):
    monkeypatch.setattr("aplc.predict.explain.LONGEST", 9)
    assert explain(folder, "rain and snow", "météo") == explain(folder, "rain and ", "météo")


def test_merged_label_is_explained_as_the_one_it_owes_its_probability_to(folder):
    merged = merge_labels(folder, ["music, classical"], "météo")
    for text, member in (("violin sonata", "music, classical"), ("rain, snow", "météo")):
        assert explain(merged, text, "météo") == explain(folder, text, member)


def test_thai_text_is_explained_character_by_character(folder):
    text = "ฝนตก rain"
    parts = explain(folder, text, "météo").parts
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
        ("e\u0301té 😀", ["e", "\u0301", "té", "😀"]),
    ],
)
def test_words(text, words):
    assert [text[start:stop] for start, stop in parts_of(text, 99)] == words
