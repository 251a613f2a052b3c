"""Guards models on the hub without a network: what is fetched, what is uploaded, and what a failure says."""

import shutil
from pathlib import Path

import huggingface_hub
import pytest

from aplc import Tagger
from aplc.errors import ModelError
from helpers import aplc, ok


class Hub:
    """Stands in for the hub: repositories are folders."""

    def __init__(self, root):
        self.root = Path(root)

    def create_repo(self, name, *, private, exist_ok):
        assert private
        (self.root / name).mkdir(parents=True, exist_ok=exist_ok)
        return f"https://hub/{name}"

    def upload_folder(self, *, repo_id, folder_path, allow_patterns, commit_message):
        for name in allow_patterns:
            if (Path(folder_path) / name).is_file():
                shutil.copy(Path(folder_path) / name, self.root / repo_id)

    def snapshot_download(self, name, *, allow_patterns, ignore_patterns):
        if not (self.root / name).is_dir():
            raise ConnectionError("no such\nrepository")
        return str(self.root / name)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    hub = Hub(tmp_path)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    return hub


def test_pushed_and_fetched_again(hub, trained):
    tagger = Tagger.from_pretrained(trained)
    assert tagger.push_to_hub("me/topics") == "https://hub/me/topics"
    assert tagger.predict("cat dog") == Tagger.from_pretrained("me/topics").predict("cat dog")
    assert not (hub.root / "me" / "topics" / "run.json").exists()


def test_failures_say_what_to_do(hub, trained):
    with pytest.raises(
        ModelError, match=r"me/nothing: is not a folder here and could not be downloaded .* give its path"
    ):
        Tagger.from_pretrained("me/nothing")
    with pytest.raises(ModelError, match="not a model folder"):
        Tagger.from_pretrained("./me/nothing")
    with pytest.raises(ModelError, match="write it as user/model"):
        Tagger.from_pretrained(trained).push_to_hub("topics")
    hub.create_repo = None
    with pytest.raises(ModelError, match="hf auth login"):
        Tagger.from_pretrained(trained).push_to_hub("me/topics")


def test_card_says_what_the_model_is(trained, corpus, tmp_path):
    card = (trained / "README.md").read_text("utf-8")
    for words in ("## Data", "200 training documents", "held out of training", "recall@5", "calibrated on 10 held-out"):
        assert words in card
    for words in ("## Intended use", "## Limits", "| train.epochs | 60 |", "Label-set version 1: 6 labels"):
        assert words in card
    model = tmp_path / "model"
    shutil.copytree(trained, model)
    ok(aplc("evaluate", model, corpus, "--json", model / "evaluation.json"))
    measured = "On 60 documents of the test part (label-set version 1)"
    assert measured in (model / "README.md").read_text("utf-8")
    tagger, copy = Tagger.from_pretrained(model), tmp_path / "copy"
    tagger.save_pretrained(copy)
    assert measured in (copy / "README.md").read_text("utf-8")
    assert Tagger.from_pretrained(copy).trained.evaluation == tagger.trained.evaluation
    tagger.partial_fit(["cat"], [["animals"]]).save_pretrained(copy)
    assert "Not measured" in (copy / "README.md").read_text("utf-8")
    assert Tagger.from_pretrained(copy).trained.evaluation is None
