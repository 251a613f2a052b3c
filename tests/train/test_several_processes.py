"""Guards several processes: they train the model that one would, however it is spread, and predict the same."""

import json
import random
import sys

import pytest

from aplc import Tagger
from aplc.data.formats import read_documents
from aplc.errors import CorpusError
from helpers import launch, train_command, weights, write_rows


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "model"
    launch(train_command(corpus, out, "train.epochs=5"))
    return out


SPREAD = {
    "data parallel": (2, []),
    "accumulated": (2, ["train.accumulate=2"]),
    # three, so that a table of two rows is not on every rank
    "sharded": (3, ["train.shard_labels=true", "train.shard_encoder=true"]),
}


@pytest.mark.parametrize(("processes", "spread"), SPREAD.values(), ids=SPREAD)
def test_several_processes_train_the_model_of_one(corpus, alone, tmp_path, processes, spread):
    """60 steps with dropout off; the last batch of an epoch has fewer documents, so that shares are unequal."""
    launch(train_command(corpus, tmp_path / "two", "train.epochs=5", *spread, processes=processes))
    expected, found = weights(alone), weights(tmp_path / "two")
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert (found[name] - tensor).abs().max() < 1e-5, name
    scores = [
        [json.loads(line)["validation"] for line in (out / "metrics.jsonl").open() if "validation" in line]
        for out in (alone, tmp_path / "two")
    ]
    assert len(scores[0]) == 5
    for one, two in zip(*scores, strict=True):
        for name in ("P@1", "P@5", "nDCG@5", "PSP@5"):
            assert one[name] == two[name]


def test_two_processes_train_both_parts_of_a_model(corpus, alone, tmp_path):
    """Words are those of one process; the blend is learned by each of them alike."""
    launch(train_command(corpus, tmp_path / "two", "train.epochs=5", "model.kind=both", processes=2))
    expected, found = weights(alone), weights(tmp_path / "two")
    for name, tensor in expected.items():
        assert (found[name] - tensor).abs().max() < 1e-5, name
    launch(train_command(corpus, tmp_path / "words", "model.kind=words"))
    assert (tmp_path / "two" / "words.safetensors").read_bytes() == (tmp_path / "words/model.safetensors").read_bytes()
    assert Tagger.from_pretrained(tmp_path / "two").predict("violin sonata", top_k=1)[0][0] == "music, classical"


def test_processes_share_out_the_labels_of_a_words_model(tmp_path):
    """More labels than a block has, frequent ones and rare ones; the blocks are gone when the model is there. Three
    processes have unequally many penalties to try."""
    rng = random.Random(0)
    topics = [[f"w{rng.randrange(400)}" for _ in range(6)] for _ in range(1_300)]
    rows = []
    for i in range(700):
        own = sorted({0 if i % 3 else 1, *rng.sample(range(1_300), 3)})
        rows.append({"text": " ".join(rng.choice(topics[t]) for t in own * 5), "labels": [f"l{t}" for t in own]})
    write_rows(tmp_path / "train.jsonl", rows)
    for processes in (1, 2, 3):
        out = tmp_path / str(processes)
        launch(train_command(tmp_path, out, "model.kind=words", "words.limit=20", processes=processes))
        assert not (out / "blocks").exists()
    one, two, three = ((tmp_path / name / "model.safetensors").read_bytes() for name in "123")
    assert one == two == three


def test_two_processes_predict_what_one_does(alone, corpus, tmp_path):
    predict = ["-m", "aplc", "predict", str(alone), str(corpus / "test.jsonl"), "--out"]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launch([sys.executable, *predict, str(tmp_path / "one.jsonl")])
    done = launch([sys.executable, *torchrun, *predict, str(tmp_path / "two.jsonl")])
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    assert done.stdout.count("tagged 60 documents") == 1


def test_standard_input_is_not_shared(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(CorpusError, match="standard input can't be shared"):
        list(read_documents("-"))
