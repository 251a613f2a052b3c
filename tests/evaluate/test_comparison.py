"""Guards `aplc compare`: it reports the paired bootstrap, and refuses runs that can't be compared."""

import json
from pathlib import Path

import pytest

from aplc.errors import AplcError
from aplc.evaluate.bootstrap import compare
from aplc.evaluate.comparison import compare_runs
from aplc.evaluate.saved import save_evaluation
from evaluations import make_evaluation

NAMES = [f"label {i}" for i in range(40)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    paths = []
    for i, skill in enumerate((0.6, 0.6, 0.9)):
        paths.append(folder / f"run{i}.json")
        save_evaluation(paths[-1], make_evaluation(NAMES, seed=i, skill=skill), model="m", corpus="c", part="test")
    return paths


def test_comparison_is_the_paired_bootstrap(runs):
    comparison = compare_runs(runs)
    scores = [make_evaluation(NAMES, seed=i, skill=s).metrics.document_scores() for i, s in ((0, 0.6), (2, 0.9))]
    assert comparison.differences[1] == compare(scores[1], scores[0])
    assert comparison.differences[1]["P@3"].difference > 0.1
    assert comparison.differences[1]["P@3"].p_value < 0.01


def test_table_names_runs_and_marks_small_p_values(runs):
    printed = compare_runs(runs).render()
    assert all(words in printed for words in ("run0", "run1", "run2", "run2 minus run0", "95 % interval", "P@1"))
    better = printed.split("run2 minus run0")[1]
    assert "*" in next(line for line in better.splitlines() if line.startswith("P@1"))
    json.dumps(compare_runs(runs).to_dict())


def test_long_or_repeated_names_become_numbers(runs, tmp_path):
    for name in ("a", "b"):
        save_evaluation(tmp_path / name / "model" / "evaluation.json", make_evaluation(NAMES))
    comparison = compare_runs([tmp_path / "a" / "model", tmp_path / "b" / "model"])
    assert "run 1" in comparison.render()
    assert comparison.names[1] == str(tmp_path / "b" / "model")


def test_a_name_that_says_it_all_is_not_repeated(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        save_evaluation(tmp_path / name / "evaluation.json", make_evaluation(NAMES))
    printed = compare_runs([Path("a"), Path("b")]).render()
    assert "a  a" not in printed
    assert "\n\npercent" in printed


def test_file_names_may_contain_dots(tmp_path):
    for i in range(2):
        save_evaluation(tmp_path / f"run.v{i}", make_evaluation(NAMES, seed=i))
    assert len(compare_runs([tmp_path / "run.v0", tmp_path / "run.v1"]).names) == 2


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_draws_svg_and_png(runs, tmp_path, kind):
    compare_runs(runs).draw(tmp_path / f"p.{kind}")
    content = (tmp_path / f"p.{kind}").read_bytes()
    assert content.startswith(b"\x89PNG" if kind == "png" else b"<svg")
    with pytest.raises(AplcError, match=r"\.svg or \.png"):
        compare_runs(runs).draw(tmp_path / "p.gif")


def test_different_documents_or_options_are_refused(runs, tmp_path):
    save_evaluation(tmp_path / "other.json", make_evaluation(NAMES, texts=["other"]), corpus="d", part="dev")
    with pytest.raises(AplcError, match=r"different documents, c \(test\) and d \(dev\).*aplc evaluate"):
        compare_runs([runs[0], tmp_path / "other.json"])
    save_evaluation(tmp_path / "wiki.json", make_evaluation(NAMES, propensity="wikipedia"))
    with pytest.raises(AplcError, match="--propensity"):
        compare_runs([runs[0], tmp_path / "wiki.json"])
    with pytest.raises(AplcError, match="two runs"):
        compare_runs(runs[:1])
