"""A plan's exact figures against the model that training builds, its estimates against what they estimate, and that
what it suggests is accepted and helps."""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from aplc.config import Config
from aplc.data.batches import Batch
from aplc.data.corpus import Corpus
from aplc.data.formats import Document
from aplc.data.inspection import zipf_picture
from aplc.data.source import Source
from aplc.data.survey import survey, survey_source
from aplc.models.network import TaggingModel
from aplc.nn.encoder import build_encoder
from aplc.plan import both, network, words
from aplc.plan.budget import Sizes, suggest
from aplc.plan.network import cut_picture, plan
from aplc.plan.probe import Activations, _kept_bytes, measure_activations
from aplc.plan.units import duration, in_bytes
from aplc.plan.words import _entries
from aplc.store.folder import load_tagger
from helpers import aplc, as_options, ok, topic_rows, write_rows


@pytest.fixture(scope="module")
def config(small):
    return Config.from_preset("tiny").with_settings(small)


@pytest.fixture(scope="module")
def source(corpus):
    return Source.from_corpus(Corpus.open(corpus))


@pytest.fixture(scope="module")
def planned(source, config):
    return plan(source, config)


def test_parameters_are_those_of_the_trained_model(planned, trained):
    model = load_tagger(trained).model
    assert planned.sizes.parameters == sum(p.numel() for p in model.parameters())
    assert planned.sizes.clusters == sum(p.numel() for p in model.clusters.parameters())
    weights = [p for name, p in model.clusters.named_parameters() if name.endswith("weight") and ".norm." not in name]
    assert planned.to_dict()["parameters"]["clusters_equation_6"] == sum(w.numel() for w in weights)
    assert list(planned.partition.cutoffs) == list(model.clusters.cutoffs)


def test_counts_and_reach_match_the_documents(planned, source):
    documents = list(source.train())
    counts = Counter(label for document in documents for label in document.labels)
    names = sorted(counts, key=lambda name: (-counts[name], name))
    assert planned.counts.tolist() == [counts[name] for name in names]
    (cutoff,) = planned.partition.cutoffs
    touching = sum(any(names.index(label) >= cutoff for label in document.labels) for document in documents)
    assert planned.touching == [touching]
    assert planned.reached == pytest.approx([1 - (1 - touching / len(documents)) ** 16])
    assert planned.label_mass == sum(counts.values())


def test_cost_is_equation_12(planned):
    cost, (head, tail) = planned.to_dict()["cost_per_batch"], planned.partition.sizes
    assert cost["equation_12"] == pytest.approx(16 * 32 * (head + planned.reached[0] * tail / 2))
    assert cost["flat_layer"] / cost["equation_12"] == pytest.approx(cost["ratio_equation_14"])


def test_labels_below_min_count_are_left_out(source):
    found = survey(source.train(), sample_size=10, min_count=20)
    assert len(found.labels) == 5
    assert len(found.label_ids) == found.label_offsets[-1] == found.labels.counts.sum()
    assert found.label_ids.max() < len(found.labels)


def test_sample_is_drawn_from_all_over_a_large_corpus():
    documents = [Document(text="a", labels=["x"], line=i) for i in range(1000)]
    found = survey(documents, sample_size=40)
    lines = sorted(document.line for document in found.sample)
    assert len(lines) == len(set(lines)) == 40
    assert lines[10] > 100
    assert lines[-10] < 900
    assert found.n_documents == 1000


def test_memory_is_the_sum_of_its_parts(planned):
    memory, n = planned.sizes.memory(), planned.sizes.parameters
    assert (memory.weights, memory.gradients, memory.optimizer) == (4 * n, 4 * n, 8 * n)
    assert memory.peak == sum(planned.to_dict()["memory_bytes"][p] for p in ("process", "activations")) + 16 * n
    frugal = replace(planned.sizes, clusters_sgd=True).memory()
    assert memory.optimizer - frugal.optimizer == 8 * planned.sizes.clusters


def test_memory_seen_in_the_probe_counts_if_it_is_more(planned):
    peak = planned.sizes.memory().peak
    assert planned.sizes.observed(peak - 1) == planned.sizes
    assert planned.sizes.observed(peak + 5000).memory().peak == peak + 5000


def test_largest_batch_just_fits(planned):
    sizes = replace(planned.sizes, process=400_000_000)  # this process holds whatever other tests left behind
    largest = sizes.largest_batch(1e9)
    assert replace(sizes, documents=largest).memory().peak <= 0.9e9
    assert replace(sizes, documents=largest + 1).memory().peak > 0.9e9
    assert sizes.largest_batch(1e6) == 0


def test_activations_grow_by_what_autograd_keeps():
    encoder = build_encoder(
        replace(Config().model, encoder="new", layers=2, width=32, heads=2, inner_width=64), vocab_size=50
    )
    ids = torch.randint(9, 50, (12, 60), generator=torch.Generator().manual_seed(0))
    types = torch.zeros_like(ids)
    types[:, -1] = 2
    batch = Batch(ids, torch.ones_like(ids), types, torch.zeros(12, 1, dtype=torch.int64))
    found = measure_activations(encoder, batch, after=0, checkpointed=False)
    assert found.of(12) == pytest.approx(1.25 * _kept_bytes(encoder, batch), rel=0.02)
    assert measure_activations(encoder, batch, after=7, checkpointed=False).each == pytest.approx(found.each + 7)
    fewer = measure_activations(encoder, batch, after=0, checkpointed=True)
    assert fewer.of(12) < 0.7 * found.of(12)
    assert encoder.body.checkpoint_activations


def test_time_is_that_of_all_steps_validation_and_saving(planned):
    seconds = planned.epoch_seconds()
    assert planned.n_train + planned.n_valid == 200
    assert planned.steps == 12
    assert planned.timing.steps == 20
    assert seconds["training"] == pytest.approx(12 * planned.timing.step_seconds)
    assert all(value > 0 for value in seconds.values())


def test_probe_of_slow_steps_is_cut_short(source, config, monkeypatch):
    monkeypatch.setattr("aplc.plan.probe.ENOUGH_SECONDS", 0.0)
    assert plan(source, config).timing.steps == 5


def test_dev_part_is_validated_on_and_all_of_train_trained_on(tmp_path, config):
    write_rows(tmp_path / "train.jsonl", topic_rows(50, seed=1))
    write_rows(tmp_path / "dev.jsonl", topic_rows(7, seed=2))
    found = plan(Source.from_corpus(Corpus.open(tmp_path)), config, probe=False)
    assert (found.n_train, found.n_valid, found.timing) == (50, 7, None)


def test_suggestions_are_accepted_and_do_what_they_say(source, config):
    big = config.with_settings(["model.width=64", "train.batch_size=200", "model.inner_width=512"])
    labels = survey(source.train(), sample_size=1).labels
    activations = Activations(tokens=512, fixed=0, each=4e6, layers=1)
    sizes = Sizes(
        process=100_000_000,
        encoder=1_000_000,
        clusters=2_000_000,
        clusters_sgd=False,
        documents=200,
        activations=activations,
    )
    found = suggest(big, sizes, 5e8, labels, 200)
    assert [s.fits for s in found] == sorted((s.fits for s in found), reverse=True)
    assert found[0].change == "--set train.accumulate=3"
    assert found[0].fits
    assert found[0].peak == replace(sizes, documents=67).memory().peak
    for suggestion in found:
        words = suggestion.change.split()
        config.with_settings([value.rstrip(",") for option, value in pairwise(words) if option == "--set"])
        assert suggestion.peak < sizes.memory().peak
    assert suggest(big, sizes, 1e12, labels, 200) == []


def test_model_that_does_not_fit_is_not_probed(source, config, monkeypatch):
    monkeypatch.setattr("aplc.plan.network.memory_at_hand", lambda: (1_000_000, "a test's memory"))
    found = plan(source, config)
    text = found.render()
    assert found.timing is None
    assert "does not fit in 1.0 MB (a test's memory)" in text
    assert "time: not measured" in text
    assert "--set train.clusters_optimizer=sgd" in text
    json.dumps(found.to_dict())


def test_batch_too_large_for_this_machine_is_probed_in_parts(source, config, planned, monkeypatch):
    """As if a machine had room for 7 of a batch's 16 documents: time is measured there, and what would fit is named."""
    activations, at_once, forward = planned.sizes.activations, [], TaggingModel.forward
    room = 16 * planned.sizes.parameters + (activations.of(7) + activations.of(8)) // 2
    monkeypatch.setattr("aplc.plan.network.memory_at_hand", lambda: (int(room / 0.9), "a test's memory"))
    for module in ("network", "probe"):
        monkeypatch.setattr(f"aplc.plan.{module}.resident_bytes", lambda: 0)
    monkeypatch.setattr(TaggingModel, "forward", lambda *args: at_once.append(len(args[1])) or forward(*args))
    found = plan(source, config)
    assert max(at_once) == 6  # 16 documents in three parts
    assert found.timing is not None
    assert "--set train.accumulate=3" in found.render()


def test_picture_has_a_line_at_each_cutoff():
    counts = np.sort(np.random.default_rng(0).zipf(1.5, 640).clip(max=10_000))[::-1]
    plain, cut = zipf_picture(counts), cut_picture(counts, (160, 320))
    assert cut_picture(counts, ()) == plain
    edge = plain[-2].index("└") + 1
    columns = [i - edge for i, mark in enumerate(cut[-3]) if mark == "┴"]
    assert columns == [16, 32]
    assert cut[0][edge + 16] == cut[0][edge + 32] == "┊"
    assert cut[-1].split() == ["head", "tail", "1", "from", "161", "tail", "2", "from", "321"]
    assert [row.replace("┊", " ").rstrip() for row in cut[:-3]] == [row.rstrip() for row in plain[:-2]]


def test_sizes_and_durations_read_well():
    assert [in_bytes(n) for n in (1_500, 2.34e6, 5.67e10)] == ["1.5 kB", "2.3 MB", "56.7 GB"]
    assert [duration(s) for s in (0.44, 59, 61, 7_300)] == ["0.4 s", "59 s", "1 min 1 s", "2 h 1 min"]


def test_command_prints_a_plan_and_writes_its_figures(corpus, small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = ok(aplc("plan", corpus, "--preset", "tiny", *as_options(small), "--json", "plan.json", "--memory", 4))
    for line in (
        "6 labels in 200 training documents",
        "tail 1 from 4",
        "(Eq. 6)",
        "largest batch that fits",
        "an epoch:",
    ):
        assert line in printed
    figures = json.loads((tmp_path / "plan.json").read_text())
    assert figures["memory_bytes"]["available"] == 4e9
    assert figures["epoch_seconds"]["total"] > 0
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_command_plans_a_words_model(corpus, tmp_path):
    printed = ok(aplc("plan", corpus, "--preset", "words", "--json", tmp_path / "plan.json"))
    assert "equations  200: one a document" in printed
    figures = json.loads((tmp_path / "plan.json").read_text())
    assert figures["labels"] == 6
    assert figures["memory_bytes"]["fits"]


def test_both_parts_are_planned_from_one_survey(source, config, monkeypatch):
    surveys = []

    def counted(*given):
        surveys.append(survey_source(*given))
        return surveys[-1]

    for part in (network, words):
        monkeypatch.setattr(part, "survey_source", counted)
    found = both.plan(source, config)
    assert len(surveys) == 1
    assert found.words.n_documents == found.network.n_documents == 200
    assert found.words.n_labels == len(found.network.counts)


def test_words_are_counted_as_the_model_reads_them():
    """A character each in scripts without spaces between words, and without the punctuation around them."""
    assert _entries(["猫和狗和猫"]) == 3
    assert _entries(["Cat, (cat) dog."]) == 2


def test_pairs_count_as_far_as_they_occur_again():
    assert _entries(["a b c", "a b d"]) == 3 + 0.65 * 2
    assert _entries(["a b c", "d e f"]) == 3
    assert _entries(["a b c d e", "a b x y z", "k l m n o"]) == 5 + 4 * 2 * 2 / 12
