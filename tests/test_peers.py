"""Guards bench/peers.py: a table whatever goes wrong with a peer, figures that napkinXC confirms, nothing run twice."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from napkinxc import metrics as judge

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
import peers
from helpers import SMALL
from peer import environments, methods, networks
from peer.answers import Features, best, sparse_top
from peer.environments import PeerError, run_limited
from peer.features import Prepared

CHOSEN = ["baseline-prior", "baseline-knn", "napkinxc-plt", "ours"]


def bench(corpus, out, *more):
    peers.main([str(corpus), "--out", str(out), *more])
    return json.loads((out / "peers.json").read_text())


def only(names):
    return [argument for name in names for argument in ("--only", name)]


@pytest.fixture(scope="module")
def done(corpus, tmp_path_factory):
    """All that runs without an environment of its own; napkinXC is one of the tests' requirements anyway."""
    out = tmp_path_factory.mktemp("peers")
    settings = [argument for setting in [*SMALL, "train.epochs=2"] for argument in ("--set", setting)]
    settings += ["--preset", "tiny"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers, "python_of", lambda _: sys.executable)
        figures = bench(corpus, out, *only(CHOSEN), *settings)
    return out, figures, settings


def test_table_has_everyone(done):
    out, figures, _ = done
    names = {"baseline-prior", "baseline-knn", "napkinxc-plt", "aplc-tiny-set"}
    assert {result["name"] for result in figures["results"]} == names
    assert figures["failed"] == {}
    table = (out / "peers.md").read_text()
    assert all(f"\n| {name} |" in table for name in names)
    assert (out / "peers.svg").read_text().count("aplc-tiny-set") == 1
    scores = {result["name"]: result["metrics"]["P@1"] for result in figures["results"]}
    gap = figures["paired"]["P@1"]
    assert figures["paired"]["ours"] == "aplc-tiny-set"
    assert gap["difference"] == pytest.approx(scores["aplc-tiny-set"] - scores[figures["paired"]["other"]])
    assert gap["low"] <= gap["difference"] <= gap["high"]
    assert f"P@1 {100 * gap['difference']:+.1f} (" in table
    assert scores["baseline-knn"] > scores["baseline-prior"] + 0.3
    for result in figures["results"]:
        assert result["train_seconds"] > 0
        assert result["train_cpu_seconds"] > 0
        assert result["predict_seconds"] > 0
        assert result["peak_bytes"] > result["model_bytes"] > 0


@pytest.mark.parametrize("name", ["baseline-knn", "napkinxc-plt", "aplc-tiny-set"])
def test_figures_match_napkinxc(done, name):
    out, figures, _ = done
    prepared = Prepared.open(_features(out))
    indptr, ids = prepared.truth()
    truth = [ids[a:b].tolist() for a, b in pairwise(indptr)]
    top = [[i for i in row if i >= 0] for row in np.load(out / name / "topk.npz")["ids"].tolist()]
    counts = np.append(prepared.labels.counts, 0)  # the test part has a label that training lacks
    inverse = judge.Jain_et_al_inverse_propensity(sp.csr_matrix(_with_counts(counts, prepared.n_train)), A=0.55, B=1.5)
    (result,) = (result for result in figures["results"] if result["name"] == name)
    expected = {
        "P": judge.precision_at_k(truth, top, k=5),
        "nDCG": judge.ndcg_at_k(truth, top, k=5),
        "PSP": judge.psprecision_at_k(truth, top, inverse, k=5),
    }
    for metric, values in expected.items():
        for k in (1, 3, 5):
            assert result["metrics"][f"{metric}@{k}"] == pytest.approx(values[k - 1], abs=1e-9), (metric, k)


def _features(out):
    (folder,) = (out / "features").iterdir()
    return folder


def _with_counts(counts, n):
    rows = np.concatenate([np.arange(count) for count in counts])
    columns = np.repeat(np.arange(len(counts)), counts)
    return sp.coo_matrix((np.ones(len(rows)), (rows, columns)), shape=(n, len(counts)))


def test_finished_peers_are_not_run_again(done, corpus, monkeypatch, capsys):
    out, figures, settings = done
    monkeypatch.setattr(peers, "run_limited", lambda *_: pytest.fail("was run again"))
    again = bench(corpus, out, *only(CHOSEN), *settings)
    assert again["results"] == figures["results"]
    assert capsys.readouterr().err.count("done before") == len(CHOSEN)
    assert bench(corpus, out, *only(["baseline-prior"]), *settings)["results"] == figures["results"]


def test_networks_run_only_when_named(done, corpus):
    out, _, _ = done

    def wanted(*more):
        options = peers.arguments([str(corpus), "--out", str(out), *more])
        return {one.name for one in peers.candidates(options, Prepared.open(_features(out))) if one.wanted}

    assert wanted() == {*peers.LIBRARIES, "aplc-words"} - peers.NETWORKS
    assert wanted("--only", "pecos-xr-transformer") == {"pecos-xr-transformer"}


def test_networks_read_the_same_documents(done, corpus):
    data = Features.load(_features(done[0]))
    documents = list(networks._documents(data.folder / "fasttext.txt"))
    labels = [np.sort(row.indices).tolist() for row in data.y]
    assert [sorted(map(int, document["label"])) for document in documents] == labels
    lines = (json.loads(line)["text"] for line in (corpus / "train.jsonl").read_text().splitlines())
    assert [document["text"] for document in documents] == [re.findall(r"\w\w+", text.lower()) for text in lines]
    assert len(list(networks._documents(data.folder / "fasttext_test.txt"))) == data.x_test.shape[0]


def test_peer_that_fails_is_reported_and_tried_again(corpus, tmp_path, monkeypatch):
    shutil.copytree(environments.VERSIONS, tmp_path / "versions")
    (tmp_path / "versions" / "omikuji.txt").write_text("no-such-package-anywhere==1\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("APLC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(environments, "VERSIONS", tmp_path / "versions")
    chosen = only(["omikuji-parabel", "baseline-prior"])
    figures = bench(corpus, tmp_path / "out", *chosen)
    assert [result["name"] for result in figures["results"]] == ["baseline-prior"]
    assert "can't be installed" in figures["failed"]["omikuji-parabel"]
    assert "no-such-package-anywhere" in figures["failed"]["omikuji-parabel"]
    assert "Not in the table: omikuji-parabel" in (tmp_path / "out" / "peers.md").read_text()
    assert not list((tmp_path / "cache").rglob("bin/python"))
    monkeypatch.setattr(peers, "python_of", lambda _: "/bin/false")
    assert "failed with 1" in bench(corpus, tmp_path / "out", *chosen)["failed"]["omikuji-parabel"]


def test_environment_is_made_and_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("APLC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(environments, "VERSIONS", tmp_path)
    (tmp_path / "nothing.txt").touch()
    python = environments.python_of("nothing")
    prefix = subprocess.run([python, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True)
    assert Path(prefix.stdout.strip()) == python.parent.parent
    assert environments.python_of("nothing") == python
    python.unlink()
    with pytest.raises(PeerError, match=f"damaged; delete {python.parent.parent}"):
        environments.python_of("nothing")


def test_cache_without_room_is_reported(corpus, tmp_path, monkeypatch):
    (tmp_path / "cache").touch()
    monkeypatch.setenv("APLC_CACHE", str(tmp_path / "cache"))
    figures = bench(corpus, tmp_path / "out", *only(["omikuji-parabel", "baseline-prior"]))
    assert [result["name"] for result in figures["results"]] == ["baseline-prior"]
    assert str(tmp_path / "cache") in figures["failed"]["omikuji-parabel"]


def test_terminated_bench_ends_its_peer(corpus, tmp_path):
    """A peer that went on would spoil the times of the next call."""
    script = Path(peers.__file__)
    long = [*SMALL, "train.epochs=1000", "train.patience=0"]
    settings = ["--preset", "tiny", *(argument for setting in long for argument in ("--set", setting))]
    call = [sys.executable, script, corpus, "--out", tmp_path, "--only", "ours", *settings]
    log = tmp_path / "aplc-tiny-set" / "log.txt"
    process = subprocess.Popen(list(map(str, call)), stderr=subprocess.PIPE, text=True)
    try:
        ends = time.monotonic() + 120
        while (
            process.poll() is None and time.monotonic() < ends and not (log.exists() and "epoch 1/" in log.read_text())
        ):
            time.sleep(0.1)
        process.terminate()
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM, said
    size = log.stat().st_size
    time.sleep(1)
    assert log.stat().st_size == size


def test_time_limit_ends_a_peer_and_what_it_started(tmp_path):
    began = time.monotonic()
    with pytest.raises(PeerError, match=r"stopped after the limit of 0.3 s"):
        run_limited(["sh", "-c", f"(sleep 2; touch {tmp_path / 'late'}) & wait"], 0.3, tmp_path / "log")
    assert time.monotonic() - began < 2
    time.sleep(2.2)
    assert not (tmp_path / "late").exists()


def test_result_of_other_code_or_settings_is_not_taken(done, corpus, tmp_path, monkeypatch):
    out, figures, settings = done

    def keys(*more):
        options = peers.arguments([str(corpus), "--out", str(out), *more])
        return {one.name: one.key for one in peers.candidates(options, Prepared.open(_features(out)))}

    before = keys(*settings)
    assert {result["name"]: result["key"] for result in figures["results"]}.items() <= before.items()
    assert "aplc-tiny" in keys("--preset", "tiny"), "the preset itself has another row than the preset with settings"
    (tmp_path / "methods.py").write_text("one")
    one = peers.code(tmp_path / "methods.py")
    (tmp_path / "methods.py").write_text("two")
    assert peers.code(tmp_path / "methods.py") != one
    monkeypatch.setattr(peers, "code", lambda *_: "other")
    assert not set(keys(*settings).values()) & set(before.values())


@pytest.mark.parametrize("kind", ["missing", "file", "one document", "out is a file"])
def test_bad_corpus_is_one_line(corpus, tmp_path, capsys, kind):
    given, out = tmp_path / "given", tmp_path / "out"
    row = '{"text": "a cat", "labels": ["animals"]}\n'
    if kind == "file":
        given.with_suffix(".jsonl").write_text(row)
        given = given.with_suffix(".jsonl")
    elif kind == "one document":
        given.mkdir()
        for part in ("train", "test"):
            (given / f"{part}.jsonl").write_text(row)
    elif kind == "out is a file":
        given = corpus
        out.touch()
    with pytest.raises(SystemExit) as exit_:
        bench(given, out)
    assert exit_.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_versions_are_exact():
    used = {path for library in peers.LIBRARIES.values() if library for path in environments.requirements(library)}
    assert set(environments.VERSIONS.glob("*.txt")) == used
    for path in used:
        for line in path.read_text().splitlines():
            name, _, version = line.partition("==")
            assert name
            assert version
            assert not set(version) & set("<>*, ")
    assert set(peers.LIBRARIES) == set(methods.PEERS)


def test_best_matches_a_full_sort():
    rng = np.random.default_rng(0)
    dense = rng.random((30, 50), dtype=np.float32)
    ids, scores = best(dense, 7)
    assert (ids == np.argsort(-dense, axis=1)[:, :7]).all()
    assert (scores == np.take_along_axis(dense, ids, 1)).all()
    sparse = sp.csr_matrix(np.where(dense > 0.9, dense, 0))
    ids, _ = best(sparse, 7)
    for row, found in zip(sparse.toarray(), ids, strict=True):
        expected = [i for i in np.argsort(-row) if row[i] > 0][:7]
        assert found.tolist() == expected + [-1] * (7 - len(expected))
    kept = sparse_top(sparse, 3).toarray()
    assert ((kept == sparse.toarray()) | (kept == 0)).all()
    assert ((kept > 0).sum(1) == np.minimum((sparse.toarray() > 0).sum(1), 3)).all()
