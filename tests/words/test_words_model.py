"""Guards the words model: features are scikit-learn's TF-IDF, logits the sparse product, damaged weights refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load_file, save_file
from scipy import sparse
from scipy.special import expit
from sklearn.feature_extraction.text import TfidfTransformer

from aplc import Tagger
from aplc.config import Config
from aplc.errors import ModelError
from aplc.words import model as model_module
from aplc.words.index import Index, best_columns, rising
from aplc.words.model import LENGTHS, WordFeatures, WordsBatch, WordsModel, load
from aplc.words.names import NO_DOCUMENTS, Names
from aplc.words.text import BUCKETS

N_LABELS = 7


def by_bucket(counts):
    """A small table of counts, one column a bucket, as wide as `count_words` makes them."""
    return sparse.csr_array(sparse.csr_array(counts.astype(np.float32)), shape=(len(counts), BUCKETS))


def batch_of(model, counts):
    """What `prepare` makes of texts with these counts that mention no label."""
    return WordsBatch(model.features(counts), model.names.mentions([[] for _ in range(counts.shape[0])], N_LABELS))


@pytest.fixture
def counts():
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.4, (50, 30))
    counts[:, 29] = 0
    counts[0, 29] = 3  # in a single document: left out
    return counts


@pytest.fixture
def features(counts):
    return WordFeatures.choose((counts > 0).sum(0), len(counts))


@pytest.fixture
def dense(features):
    """Weights: every word has some for some labels, one word has none."""
    rng = np.random.default_rng(1)
    shape = len(features.bucket), N_LABELS
    dense = np.where(rng.random(shape) < 0.4, rng.normal(size=shape), 0).astype(np.float32)
    dense[3] = 0
    return dense


@pytest.fixture
def model(features, dense):
    straight = np.repeat(np.float32([[0], [1], [0]]), N_LABELS, 1)  # the score itself
    return WordsModel(
        features=features,
        index=Index.of(sparse.csr_array(dense)),
        bias_L=np.random.default_rng(2).normal(size=N_LABELS).astype(np.float32),
        curve_3L=straight,
        names=Names.of([]),
        worth_3L=np.zeros_like(straight),
        n_seen=N_LABELS,
        learned=np.zeros(0, dtype=np.float32),
        ridge=0.5,
        prune=0.0,
    )


def tfidf_of(counts):
    kept = np.where((counts > 0).sum(0) > 1, counts, 0)
    return TfidfTransformer(sublinear_tf=True).fit(counts).transform(kept).toarray()[:, :29]


def test_features_are_tfidf_of_scikit_learn(features, counts):
    assert features.bucket.tolist() == list(range(29))
    found = features(by_bucket(counts))
    assert np.allclose(found.toarray(), tfidf_of(counts), atol=1e-6)
    assert (features(by_bucket(counts), features.table()) != found).nnz == 0


def test_pairs_are_chosen_by_how_many_documents_have_them(monkeypatch):
    monkeypatch.setattr(model_module, "STARTS", (0, 4, 100))
    found = WordFeatures.choose(np.array([1, 2, 90, 0, 2, 3, 20, 21]), 200)  # words, then pairs
    assert found.bucket.tolist() == [1, 2, 5, 6]
    assert np.allclose(found.idf, np.log(np.array([201 / 3, 201 / 91, 201 / 4, 201 / 21])) + 1)


def test_words_pairs_and_runs_have_lengths_of_their_own(monkeypatch, counts):
    monkeypatch.setattr(model_module, "STARTS", (0, 20, 25))
    monkeypatch.setattr(model_module, "MOST", 1.0)
    found = WordFeatures.choose((counts > 0).sum(0), len(counts))
    kept = np.where((counts > 0).sum(0) > 1, counts, 0)
    groups = [slice(0, 20), slice(20, 25), slice(25, 30)]
    parts = [TfidfTransformer(sublinear_tf=True).fit(counts[:, g]).transform(kept[:, g]).toarray() for g in groups]
    expected = np.hstack([length * part for length, part in zip(LENGTHS, parts, strict=True)])[:, :29]
    assert found.has_runs
    assert np.allclose(found(by_bucket(counts)).toarray(), expected, atol=1e-6)


def test_a_document_without_pairs_has_its_words_of_length_1(monkeypatch, counts):
    monkeypatch.setattr(model_module, "STARTS", (0, 20, 25))
    found = WordFeatures.choose((counts > 0).sum(0), len(counts))
    alone = np.zeros((1, 30))
    alone[0, 3] = 2
    assert found(by_bucket(alone)).toarray().max() == pytest.approx(1)


def test_logits_are_the_product(model, dense, counts):
    expected = tfidf_of(counts) @ dense + model.bias_L
    assert np.allclose(model.read(batch_of(model, by_bucket(counts))), expected, atol=1e-3)  # 16 bits


def test_unknown_words_count_nothing_and_no_words_give_the_base_rates(model):
    known, unknown, nothing = np.zeros((3, 1000))
    known[[3, 4, 8]] = 1, 2, 1
    unknown[[3, 4, 8, 999]] = 1, 2, 1, 5
    found = model.read(batch_of(model, by_bucket(np.stack([known, unknown, nothing]))))
    assert found[0].tolist() == found[1].tolist()
    rates = np.clip(model.bias_L, expit(NO_DOCUMENTS), 1 - expit(NO_DOCUMENTS))
    assert expit(found[2]) == pytest.approx(rates, rel=1e-4)


def test_other_texts_of_the_batch_change_nothing(model, counts):
    together = model.read(batch_of(model, by_bucket(counts)))
    for i in range(5):
        assert model.read(batch_of(model, by_bucket(counts[i : i + 1])))[0].tolist() == together[i].tolist()


def test_topk_is_the_sorted_sigmoid_with_ties_to_the_lower_id(model):
    logits = np.float32([[0, 2, 2, -1, -9, -9, -9], [5, 5, 5, 5, -9, -9, -9]])
    ids, probs = model.topk(logits, 3)
    assert ids.tolist() == [[1, 2, 0], [0, 1, 2]]
    assert np.allclose(probs, 1 / (1 + np.exp(-np.take_along_axis(logits, ids, 1))))
    assert model.topk(logits, 9)[0].shape == (2, 7)
    allowed = np.array([True, False, True, True, False, False, False])
    assert model.topk(logits, 2, allowed)[0].tolist() == [[2, 0], [0, 2]]
    ids, probs = model.topk(logits, 5, allowed)
    assert ids.tolist() == [[2, 0, 3, -1, -1], [0, 2, 3, -1, -1]]
    assert not probs[:, 3:].any()


@given(arrays.arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=st.integers(-2, 2)),
       st.integers(1, 9))  # fmt: skip
def test_best_columns_match_a_sort_of_all(scores, k):
    """Whole numbers, so that many are equal."""
    k = min(k, scores.shape[1])
    expected = [sorted(range(len(row)), key=lambda i, row=row: (-row[i], i))[:k] for row in scores]
    assert best_columns(scores, k).tolist() == expected


def test_probability_of_one_label(model, counts):
    states = model.read(batch_of(model, by_bucket(counts)))
    assert np.allclose(model.probability_of(states, 2), 1 / (1 + np.exp(-states[:, 2])))


def test_curves_rise_everywhere():
    scores = np.repeat(np.linspace(-2, 2, 41, dtype=np.float32)[:, None], 3, 1)
    curve = np.float32([[0.5, 0.5, 0.5], [3, 3, 3], [0, 1, -1]])  # a line; bent from -1 on; bent up to 1
    found = rising(scores, curve)
    whole = curve[0] + curve[1] * scores + curve[2] * scores**2
    assert found[:, 0].tolist() == whole[:, 0].tolist()
    assert np.allclose(found[10:, 1], whole[10:, 1])
    assert np.allclose(found[:31, 2], whole[:31, 2])
    assert (np.diff(found, axis=0) > 0.09).all()


def read_again(model, folder):
    settings = model.settings() | {"n_labels": model.n_labels}
    return load(folder, settings, Config())


def test_saved_and_loaded_it_says_the_same(model, counts, tmp_path):
    model.save_weights(tmp_path)
    batch = batch_of(model, by_bucket(counts))
    loaded = read_again(model, tmp_path)
    assert loaded.read(batch_of(loaded, by_bucket(counts))).tolist() == model.read(batch).tolist()


def damaged(tensors, where):
    if where == "label":
        tensors["label"][3] = N_LABELS
    elif where == "negative label":
        tensors["label"][3] = -1
    elif where == "overflow":  # differences that are positive only because they overflow
        tensors["start"][1:4] = 2**62, -(2**63), -(2**62)
    elif where == "buckets fall":
        tensors["bucket"][4] = 0
    elif where == "bucket beyond the last":
        tensors["bucket"][-1] = BUCKETS
    elif where == "start":
        tensors["start"][1] = 10**9
    elif where == "end":
        tensors["start"][-1] = 10**9
    else:
        tensors[where].flat[0] = np.nan
    return tensors


@pytest.mark.parametrize(
    "where",
    ["label", "negative label", "start", "end", "overflow", "buckets fall", "bucket beyond the last",
     "idf", "scale", "bias", "curve"],
)  # fmt: skip
def test_damaged_weights_are_refused_in_one_line(model, tmp_path, where):
    model.save_weights(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file(damaged({name: tensor.copy() for name, tensor in load_file(path).items()}, where), path)
    with pytest.raises(ModelError) as caught:
        read_again(model, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("compiled_or_not")
def test_logits_are_bent_scores_with_our_code_and_without(features, dense, counts):
    """Weights in 16 bits are taken as they are here: what is compared is the way from them to logits."""
    rng = np.random.default_rng(5)
    index, bias = Index.of(sparse.csr_array(dense)), rng.normal(size=N_LABELS).astype(np.float32)
    curve = np.float32([rng.normal(size=N_LABELS), rng.random(N_LABELS) * 5, rng.normal(size=N_LABELS)])
    curve[2, 0] = 0
    weight = np.zeros_like(dense)
    weight[np.repeat(np.arange(len(dense)), np.diff(index.start)), index.label] = index.weight * index.scale
    assert np.abs(weight - dense).max() <= index.scale / 2 * 1.01
    batch = features(by_bucket(counts))
    expected = rising(batch.toarray() @ weight + bias, curve)
    assert np.allclose(index.logits(batch, bias, curve), expected, atol=1e-5)


@pytest.mark.usefixtures("compiled_or_not")
@pytest.mark.parametrize("label", [N_LABELS, -1])
def test_labels_beyond_the_last_are_found_where_they_are_used(model, counts, monkeypatch, tmp_path, label):
    monkeypatch.setattr(model_module, "CHECKED", 3)
    model.save_weights(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {name: tensor.copy() for name, tensor in load_file(path).items()}
    tensors["label"][3] = label
    save_file(tensors, path)
    broken = read_again(model, tmp_path)
    with pytest.raises(ModelError, match="damaged"):
        broken.read(batch_of(broken, by_bucket(counts)))


def test_weights_are_mapped_and_not_copied(model, tmp_path):
    model.save_weights(tmp_path)
    index = read_again(model, tmp_path).index
    assert isinstance(index.weight.base, np.memmap)
    assert not index.weight.flags.writeable


def test_a_text_without_known_words_has_the_base_rates():
    texts, labels = ["cat fur", "dog bark", "cat purr", "train rail"] * 10, [["a"], ["a"], ["a"], ["b"]] * 10
    tagger = Tagger("words", settings=["data.validation=0"]).fit(texts, labels)
    assert dict(tagger.predict("zzz", top_k=2)) == pytest.approx({"a": 0.75, "b": 0.25})
