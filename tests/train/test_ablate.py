"""Guards the ablations: the paper's settings, one run a cell, finished cells kept, half-trained ones resumed."""

import csv
import json
import shutil

import pytest

from aplc.config import Config
from aplc.data.corpus import Corpus
from aplc.errors import CorpusError, ModelError, RunError
from aplc.evaluate.comparison import compare_runs
from aplc.train import ablate as module
from aplc.train import loop
from aplc.train.ablate import Row, ablate, cells
from helpers import SMALL, Recorder

CONFIG = Config.from_preset("tiny").with_settings([*SMALL, "train.epochs=1", "train.checkpoint_steps=5"])


def run(study, corpus, out, *, seeds=1, config=CONFIG):
    screen = Recorder()
    return ablate(study, Corpus.open(corpus), config, out, seeds=seeds, screen=screen), screen.lines


def test_settings_are_those_of_the_paper(tmp_path):
    plan = cells("clusters", tmp_path, 2)
    assert [cell.setting for cell in plan] == [*"123456"] * 2
    assert [cell.seed for cell in plan] == [0] * 6 + [1] * 6
    assert all(sum(cell.proportions) == pytest.approx(1) for cell in plan)
    assert plan[2].proportions == (1 / 3, 1 / 3, 1 / 3)
    shares = [cell.proportions for cell in cells("partition", tmp_path, 1)]
    assert shares == [(0.7, 0.2, 0.1), (0.33, 0.33, 0.34), (0.1, 0.2, 0.7)]
    assert len({cell.folder for study in ("clusters", "partition") for cell in cells(study, tmp_path, 3)}) == 27


@pytest.fixture(scope="module")
def study(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("study")
    return out, *run("partition", corpus, out, seeds=2)


def test_study_leaves_table_and_figure(study):
    out, rows, lines = study
    assert [row.setting for row in rows] == ["0.7, 0.2, 0.1", "0.33, 0.33, 0.34", "0.1, 0.2, 0.7"]
    assert len(lines) == 6
    assert lines[0].startswith("1/6  partition 0.7, 0.2, 0.1, seed 0: P@1 ")
    table = list(csv.DictReader((out / "partition.csv").open()))
    assert len(table) == 6
    assert float(table[0]["P@1"]) == pytest.approx(rows[0].scores["P@1"][0], abs=1e-3)
    assert json.loads((out / "partition.json").read_text())["rows"][2]["setting"] == "0.1, 0.2, 0.7"
    assert "| 0.33, 0.33, 0.34 | 2 |" in (out / "partition.md").read_text()
    assert "(0.7, 0.2, 0.1)" in (out / "partition.svg").read_text()
    assert (out / "partition.png").read_bytes().startswith(b"\x89PNG")


def test_seeds_differ_and_are_the_cells_own(study):
    out, rows, _ = study
    seeds = [json.loads((out / "partition-0.1-0.2-0.7" / f"seed-{i}" / "config.json").read_text()) for i in (0, 1)]
    assert [config["config"]["train"]["seed"] for config in seeds] == [0, 1]
    assert any(row.spread("micro-F1") > 0 for row in rows)


def test_cells_can_be_compared_and_keep_no_checkpoints(study):
    out, _, _ = study
    cell = out / "partition-0.7-0.2-0.1" / "seed-0"
    assert compare_runs([cell, cell.parent / "seed-1"]).n_documents == 60
    assert not (cell / "checkpoints").exists()


def test_finished_cells_are_not_run_again(study, corpus, monkeypatch):
    out, rows, _ = study
    monkeypatch.setattr(module, "train", lambda *_, **__: pytest.fail("trained again"))
    again, lines = run("partition", corpus, out, seeds=2)
    assert again == rows
    assert all(line.endswith("(done before)") for line in lines)


def test_other_settings_or_documents_are_refused(study, corpus, tmp_path):
    out, _, _ = study
    with pytest.raises(RunError, match="other settings"):
        run("partition", corpus, out, config=CONFIG.with_settings(["train.epochs=2"]))
    other = tmp_path / "other"
    shutil.copytree(corpus, other)
    with (other / "train.jsonl").open("a") as stream:
        stream.write('{"text": "one more", "labels": ["food"]}\n')
    with pytest.raises(RunError, match="another corpus"):
        run("partition", other, out)


def test_half_trained_cell_goes_on(corpus, tmp_path, monkeypatch):
    step, steps = loop.train_step, []

    def dying(running, *rest):
        steps.append(running.progress.step)
        if len(steps) == 9:
            raise MemoryError
        return step(running, *rest)

    monkeypatch.setattr(loop, "train_step", dying)
    monkeypatch.setattr(module, "PARTITIONS", module.PARTITIONS[:1])
    with pytest.raises(MemoryError):
        run("partition", corpus, tmp_path)
    run("partition", corpus, tmp_path)
    assert steps[9] == 5  # from the checkpoint of step 5, not from the beginning
    assert (tmp_path / "partition.md").is_file()


def test_corpus_without_test_part_is_refused_before_training(corpus, tmp_path):
    (tmp_path / "train.jsonl").write_text((corpus / "train.jsonl").read_text())
    with pytest.raises(CorpusError, match=r"test\.jsonl"):
        run("clusters", tmp_path, tmp_path / "out")
    with pytest.raises(CorpusError, match="single file"):
        run("clusters", tmp_path / "train.jsonl", tmp_path / "out")


def test_mean_and_spread():
    row = Row("2", {"P@1": [80.0, 82.0]})
    assert row.mean("P@1") == 81
    assert row.spread("P@1") == pytest.approx(2**0.5)
    assert Row("2", {"P@1": [80.0]}).spread("P@1") == 0


def test_a_model_without_clusters_is_refused(corpus, tmp_path):
    with pytest.raises(ModelError, match="no clusters"):
        run("clusters", corpus, tmp_path, config=Config.from_preset("words"))
