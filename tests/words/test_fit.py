"""Guards the closed form of models of words, the curves that make labels fair, and the commands on such a model."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import sparse

from aplc import Tagger
from aplc.config import Config
from aplc.console import Screen
from aplc.data.corpus import Corpus
from aplc.errors import AplcError, ModelError, RunError
from aplc.evaluate.run import evaluate
from aplc.plan.words import plan_words
from aplc.predict.explain import explain
from aplc.store.folder import TrainedTagger
from aplc.train import curves as curves_module
from aplc.train import ridge
from aplc.train.prepare import Source
from aplc.train.relabel import retire_labels
from aplc.train.run import train
from aplc.words.curves import PLAIN, Curves
from aplc.words.model import rising
from aplc.words.ridge import TOLERANCE, Conjugate, block_size, solve
from conftest import Recorder
from reference import ridge_weights

CONFIG = Config.from_preset("cpu").with_settings(["data.vocab_size=200", "data.validation=0.2"])


def fit(corpus, out, **options):
    return train(Source.from_corpus(Corpus.open(corpus)), CONFIG, out, **options)


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("words") / "model"
    fit(corpus, out)
    return out


QUIET = Screen(quiet=True)


def draw(n, v, n_labels=10):
    rng = np.random.default_rng(n)
    x = sparse.random_array((n, v), density=0.3, rng=rng, format="csr", dtype=np.float32)
    return x, (rng.random((n, n_labels)) < 0.3).astype(np.float32)


@pytest.mark.parametrize(("n", "v"), [(20, 50), (50, 20), (30, 30)])
@pytest.mark.parametrize("limit", [1, 5, 19, 1_000])
@pytest.mark.parametrize("block", [3, 1_024])
def test_weights_are_the_closed_form(monkeypatch, n, v, limit, block):
    """With the inverse, or by conjugate gradients with few words and with many to precondition."""
    monkeypatch.setattr(ridge, "BLOCK", block)
    monkeypatch.setattr(ridge, "SIGNS", 5)
    monkeypatch.setattr(ridge, "TOLERANCE", 1e-6)
    x, y = draw(n, v)
    mean = y.mean(0, dtype=np.float64)
    expected = ridge_weights(x.toarray().astype(np.float64), y - mean, 0.7)
    found, found_mean, _ = solve(x, sparse.csr_array(y), np.arange(n), limit=limit, ridge=0.7, prune=0.0, screen=QUIET)
    assert np.allclose(found.toarray(), expected, atol=1e-5)
    assert np.allclose(found_mean, mean)
    pruned, _, _ = solve(x, sparse.csr_array(y), np.arange(n), limit=limit, ridge=0.7, prune=0.1, screen=QUIET)
    assert 0 < pruned.nnz < found.nnz
    assert np.allclose(pruned.toarray(), np.where(np.abs(expected) >= 0.1, expected, 0), atol=1e-5)


def test_gradients_end_where_they_are_close_enough():
    """What is left of each label is at most the tolerance; labels without documents, and with all, take no step."""
    x, y = draw(200, 100)
    y[:, 3], y[:, 5] = 0, 1
    centered = y - y.mean(0)
    answer = Conjugate(x, 10, 0.5)(torch.from_numpy(centered)).numpy()
    rest = centered - x @ (x.T @ answer) - 0.5 * answer
    assert (np.linalg.norm(rest, axis=0) <= (TOLERANCE + 1e-4) * np.linalg.norm(centered, axis=0)).all()
    assert np.linalg.norm(rest) > 1e-3 * np.linalg.norm(centered)
    assert not answer[:, [3, 5]].any()


def test_all_words_to_precondition_leave_one_step(monkeypatch):
    x, y = draw(50, 20)
    monkeypatch.setattr(ridge, "MOST_STEPS", 1)
    answer = Conjugate(x, 20, 0.7)(torch.from_numpy(y)).numpy()
    assert np.allclose(x @ (x.T @ answer) + 0.7 * answer, y, atol=1e-4)


def test_blocks_shrink_with_the_corpus(monkeypatch):
    x, y = draw(30, 50)
    monkeypatch.setattr(ridge, "LARGEST", 120)
    sizes = []
    monkeypatch.setattr(Curves, "add", lambda self, start, scores, hits: sizes.append(scores.shape[1]))
    solve(x, sparse.csr_array(y), np.arange(4), limit=1_000, ridge=0.7, prune=0.0, screen=QUIET)
    assert sizes == [2] * 5


@pytest.mark.parametrize(("n", "v"), [(20, 50), (50, 20)])
@pytest.mark.parametrize("limit", [5, 1_000])
def test_left_out_scores_are_those_of_a_model_without_the_document(monkeypatch, n, v, limit):
    """As close as random signs come."""
    monkeypatch.setattr(ridge, "TOLERANCE", 1e-6)
    monkeypatch.setattr(ridge, "SIGNS", 1 << 14)
    x, y = draw(n, v)
    chosen = np.array([1, 4, 5, 11])
    _, mean, curves = solve(x, sparse.csr_array(y), chosen, limit=limit, ridge=0.7, prune=0.0, screen=QUIET)
    dense, centered = x.toarray().astype(np.float64), y - y.mean(0)
    for m, i in enumerate(chosen):
        rest = np.arange(n) != i
        expected = dense[i] @ ridge_weights(dense[rest], centered[rest], 0.7) + mean
        kept = np.isfinite(curves.score_MK[m])
        assert sorted(curves.label_MK[m, kept]) == list(range(10))
        assert np.allclose(curves.score_MK[m, kept], expected[curves.label_MK[m, kept]], atol=0.05)
        assert (curves.hit_MK[m, kept] == y[i, curves.label_MK[m, kept]]).all()


def test_left_out_scores_where_gradients_end_early():
    """As shipped: some equations left unsolved, few random signs; far closer to the truth than scores differ."""
    rng, n, v = np.random.default_rng(1), 400, 800
    common_V = 1 / np.arange(1, v + 1)
    topic_NL = rng.random((n, 10)) < 0.15
    likely_LV = common_V * rng.choice([0.2, 1, 20], (10, v), p=[0.3, 0.6, 0.1])
    dense = (rng.random((n, v)) < np.minimum(20 * common_V + 4 * topic_NL @ likely_LV, 0.9)).astype(np.float32)
    dense /= np.linalg.norm(dense, axis=1, keepdims=True)
    y, chosen = topic_NL.astype(np.float32), np.arange(0, n, 20)
    curves = solve(sparse.csr_array(dense), sparse.csr_array(y), chosen, limit=60, ridge=0.5, prune=0.0, screen=QUIET)[
        2
    ]
    mean, expected = y.mean(0), np.zeros((len(chosen), 10))
    for m, i in enumerate(chosen):
        rest = np.arange(n) != i
        expected[m] = dense[i] @ ridge_weights(dense[rest], (y - mean)[rest], 0.5) + mean
    kept = np.isfinite(curves.score_MK)
    found = curves.score_MK[kept].reshape(expected.shape)
    expected = np.take_along_axis(expected, curves.label_MK[kept].reshape(expected.shape), 1)
    assert np.sqrt(np.mean((found - expected) ** 2)) < 0.4 * expected.std()


def test_gradients_that_do_not_end_are_refused_with_a_cure(monkeypatch):
    monkeypatch.setattr(ridge, "MOST_STEPS", 2)
    monkeypatch.setattr(ridge, "TOLERANCE", 1e-6)
    x, y = draw(50, 40)
    with pytest.raises(RunError, match=r"words\.ridge"):
        solve(x, sparse.csr_array(y), np.arange(3), limit=1, ridge=0.7, prune=0.0, screen=QUIET)


def test_more_than_the_memory_is_refused_with_a_cure(monkeypatch):
    monkeypatch.setattr(ridge, "memory_free", lambda: 1_000)
    x = sparse.csr_array(np.eye(30, dtype=np.float32))
    with pytest.raises(RunError, match=r"words\.limit=7"):
        solve(x, x, np.arange(3), limit=1_000, ridge=1.0, prune=0.0, screen=QUIET)


def test_curves_are_learned(monkeypatch):
    """Labels are right with the probability that their score stands for; frequent ones have other curves than rare."""
    monkeypatch.setattr(curves_module, "OWN_CURVE", 2_500)
    rng = np.random.default_rng(0)
    n = np.geomspace(200_000, 500, 40).astype(int)
    log_n = np.log(n)
    true_L3 = np.stack([-3 - 0.2 * log_n, 6 - 0.5 * log_n, 1 + 0.1 * log_n], 1)
    true_L3[7] = 0.3, 2.0, 1.0
    scores = rng.random((4_000, 40)).astype(np.float32)
    logits = true_L3[:, 0] + true_L3[:, 1] * scores + true_L3[:, 2] * scores**2
    hits = rng.random(logits.shape) < 1 / (1 + np.exp(-logits))
    curves = Curves(len(scores))
    for start in (0, 15, 30):
        curves.add(start, scores[:, start : start + 15], hits[:, start : start + 15])
    found = curves.finish(n)
    assert list(curves.own) == [7]
    expected = 1 / (1 + np.exp(-logits))
    learned = 1 / (1 + np.exp(-(found[:, 0] + found[:, 1] * scores + found[:, 2] * scores**2)))
    assert np.abs(learned - expected).max() < 0.04


def test_labels_that_scores_say_nothing_of_are_as_probable_as_they_are_frequent():
    """Their curves hardly rise, and `rising` makes them; that must not move them."""
    rng = np.random.default_rng(0)
    scores = rng.normal(0.05, 0.02, (4_000, 30)).astype(np.float32)
    hits = rng.random(scores.shape) < 0.06
    curves = Curves(len(scores))
    curves.add(0, scores, hits)
    curve = torch.from_numpy(curves.finish(hits.sum(0)))
    assert len(curves.own) == 30
    share = rising(torch.from_numpy(scores), curve.T).sigmoid().mean(0)
    assert share.min() > 0.045
    assert share.max() < 0.08


@pytest.mark.parametrize("seed", range(4))
def test_common_curve_of_labels_that_scores_say_nothing_of(seed):
    """Left-out scores of such labels are a little lower where they are right; none may become certain everywhere."""
    rng = np.random.default_rng(seed)
    n = np.maximum(170 / np.arange(1, 61), 2).astype(int)
    hits = rng.random((1_000, 60)) < n / 1_000
    scores = (rng.normal(n / 1_000, 0.1, hits.shape) - 0.02 * hits).astype(np.float32)
    curves = Curves(len(scores))
    curves.add(0, scores, hits)
    assert not curves.own
    share = rising(torch.from_numpy(scores), torch.from_numpy(curves.finish(n)).T).sigmoid().mean(0)
    assert np.abs(share.numpy() - n / 1_000).max() < 0.2


def test_labels_of_about_as_many_documents_have_one_curve():
    """In a balanced corpus, what is left without a document would give away whether the document has the label."""
    rng = np.random.default_rng(0)
    n = rng.integers(20, 22, 100)
    hits = rng.permutation(np.repeat(np.eye(100, dtype=bool), n, axis=0))
    scores = np.where(hits, rng.normal(0.35, 0.15, hits.shape), rng.normal(0.03, 0.06, hits.shape)).astype(np.float32)
    curves = Curves(len(scores))
    curves.add(0, scores, hits)
    curve = torch.from_numpy(curves.finish(n))
    assert bool((curve == curve[0]).all())
    share = rising(torch.from_numpy(scores), curve.T).sigmoid().sum(1).mean()
    assert share == pytest.approx(1, abs=0.1)


def test_curves_count_documents_without_the_one_that_is_left_out(monkeypatch):
    """A label's only document teaches nothing about labels with one document: the model without it has none."""
    monkeypatch.setattr(curves_module, "LEAST_HITS", 1)
    monkeypatch.setattr(curves_module, "ALIKE", 0)
    seen = []
    monkeypatch.setattr(curves_module, "_regress", lambda x, hit: seen.append((x, hit)) or np.zeros(8))
    curves = Curves(2)
    curves.add(0, np.float32([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]), np.array([[True, True, False], [False, True, False]]))
    curves.finish(np.array([1, 3, 4]))
    ((x, hit),) = seen
    expected = {(0.2, 2, True), (0.3, 4, False), (0.4, 1, False), (0.5, 2, True), (0.6, 4, False)}
    found = zip(x[:, 2].round(3).tolist(), np.exp(x[:, 0]).round().tolist(), hit.tolist(), strict=True)
    assert {(round(s, 3), n, h) for s, n, h in found} == expected


def test_the_best_candidates_are_kept(monkeypatch):
    monkeypatch.setattr(curves_module, "CANDIDATES", 3)
    curves = Curves(1)
    for start, scores in [(0, [0.1, 0.9]), (2, [0.5]), (3, [0.2, 0.7, 0.0])]:
        curves.add(start, np.float32([scores]), np.zeros((1, len(scores)), dtype=bool))
    assert sorted(curves.label_MK[0]) == [1, 2, 4]


def test_labels_with_many_hits_keep_their_curves_where_others_have_too_few():
    """And a label that every document has is certain."""
    scores = np.random.default_rng(0).random((300, 2)).astype(np.float32)
    hits = np.stack([scores[:, 0] > 0.2, np.ones(300, dtype=bool)], 1)
    curves = Curves(300)
    curves.add(0, scores, hits)
    found = curves.finish(np.ones(2, dtype=int))
    assert found[0].tolist() != list(PLAIN)
    assert found[1].tolist() == list(PLAIN)
    assert sorted(curves.own) == [0, 1]


def test_a_penalty_too_small_is_refused():
    x = sparse.csr_array(np.ones((40, 50), dtype=np.float32))
    with pytest.raises(RunError, match=r"words\.ridge"):
        solve(x, x, np.arange(3), limit=1_000, ridge=1e-12, prune=0.0, screen=QUIET)


def test_too_few_hits_leave_the_order_of_scores():
    curves = Curves(2)
    curves.add(0, np.float32([[0.1, 0.9], [0.3, 0.2]]), np.array([[False, True], [True, False]]))
    assert curves.finish(np.ones(2, dtype=int)).tolist() == [list(PLAIN)] * 2


def test_learns_and_is_the_same_after_loading(trained, corpus):
    found = evaluate(TrainedTagger.load(trained), Corpus.open(corpus).documents("test"))
    assert found.metrics.result()["P@1"] > 0.9
    tagger = Tagger.from_pretrained(trained)
    assert tagger.predict("bread and cheese and soup", top_k=1)[0][0] == "food"
    alone, together = tagger.predict("a dog barks"), tagger.predict(["a dog barks", "rain", ""])
    assert alone == together[0]


def test_a_missing_compiler_is_said(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(ridge.native, "library", lambda: None)
    screen = Recorder()
    fit(corpus, tmp_path / "m", screen=screen)
    assert "no C compiler: SciPy multiplies" in screen.text


def test_more_documents_than_are_solved_for_at_once(corpus, tmp_path):
    screen = Recorder()
    config = CONFIG.with_settings(["words.limit=20"])
    train(Source.from_corpus(Corpus.open(corpus)), config, tmp_path / "m", screen=screen)
    assert "conjugate gradients, 20 words and pairs" in screen.text
    found = evaluate(TrainedTagger.load(tmp_path / "m"), Corpus.open(corpus).documents("test"))
    assert found.metrics.result()["P@1"] > 0.9


def test_which_word_follows_which_is_learned(tmp_path):
    texts = {"hound": "dog bites man", "news": "man bites dog", "else": "rain and wind"}
    lines = [json.dumps({"text": f"w{i} {texts[name]} w{i + 1}", "labels": [name]})
             for i, name in enumerate(["hound", "news", *["else"] * 20] * 15)]  # fmt: skip
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    train(Source.from_corpus(Corpus.open(tmp_path / "c.jsonl")), CONFIG, tmp_path / "m")
    tagger = Tagger.from_pretrained(tmp_path / "m")
    for name, text in texts.items():
        assert tagger.predict(text, top_k=1)[0][0] == name


def test_same_corpus_same_weights(trained, corpus, tmp_path):
    fit(corpus, tmp_path / "again")
    for name, tensor in load_file(trained / "model.safetensors").items():
        assert tensor.equal(load_file(tmp_path / "again" / "model.safetensors")[name]), name


def test_resume_of_a_finished_run_says_so_and_of_a_begun_one_fits(trained, corpus, tmp_path):
    screen = Recorder()
    fit(corpus, trained, resume=True, screen=screen)
    assert "finished" in screen.text
    with pytest.raises(RunError, match="--resume"):
        fit(corpus, trained)
    fit(corpus, tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    fit(corpus, tmp_path / "m", resume=True)
    assert Tagger.from_pretrained(tmp_path / "m").predict("violin opera", top_k=1)[0][0] == "music, classical"


def test_what_needs_a_network_is_refused(trained):
    tagger = Tagger.from_pretrained(trained)
    for label in ("animals", "a new one"):
        with pytest.raises(AplcError, match="train it again"):
            tagger.partial_fit(["a dog"], [[label]])


def test_labels_are_retired_and_words_explained(trained):
    folder = TrainedTagger.load(trained)
    effects = {p.start: p.effect for p in explain(folder, "soup, wheel and rain", "food").parts}
    assert effects[0] > 0 > effects[6]
    tagger = Tagger()
    tagger._folder = retire_labels(folder, ["food"])
    assert "food" not in [name for name, _ in tagger.predict("bread soup", top_k=6)]


def test_damage_is_refused(trained, tmp_path):
    for file in trained.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    state = load_file(tmp_path / "model.safetensors")
    state["label"][0] = 77
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="labels that are none"):
        TrainedTagger.load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["encoder"]["version"] -= 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"another version.* train it again"):
        TrainedTagger.load(tmp_path)
    config["encoder"]["version"] += 1
    config["encoder"]["n_words"] = 10**12
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="asks for"):
        TrainedTagger.load(tmp_path)


def test_settings_without_effect_are_said(corpus, tmp_path):
    screen = Recorder()
    config = CONFIG.with_settings(["train.epochs=3", "train.seed=5", "data.min_count=2", "data.long_text=windows"])
    train(Source.from_corpus(Corpus.open(corpus)), config, tmp_path / "m", screen=screen)
    assert "without effect on a model of words: data.long_text, train.epochs" in screen.lines


def test_a_corpus_without_common_words_is_refused(tmp_path):
    (tmp_path / "c.jsonl").write_text("".join(f'{{"text": "w{i}x", "labels": ["a"]}}\n' for i in range(9)))
    with pytest.raises(AplcError, match="two training documents"):
        train(Source.from_corpus(Corpus.open(tmp_path / "c.jsonl")), CONFIG, tmp_path / "m")


@pytest.mark.parametrize(
    ("widest", "block"), [(1_000, 512), (919_385, 128), (1 << 21, 64), (1 << 23, 16), (1 << 28, 1)]
)
def test_blocks_are_whole_panels_and_never_empty(widest, block):
    assert block_size((100, widest)) == block


def test_plan_says_what_does_not_fit(corpus):
    source = Source.from_corpus(Corpus.open(corpus))
    planned = plan_words(source, CONFIG)
    assert (planned.n_documents, planned.n_labels, planned.size) == (200, 6, 200)
    assert planned.fits
    assert 0 < planned.seconds < 60
    few = plan_words(source, CONFIG.with_settings(["words.limit=50"]), memory=1_000)
    assert few.size == 50
    assert "lower words.limit" in few.render()
    assert few.to_dict()["memory_bytes"] == {"peak": few.peak, "available": 1_000, "fits": False}
