"""One peer, trained and asked for its best labels, in whatever environment its library needs.

    python bench/peer/methods.py omikuji-bonsai FEATURES OUT        # bench/peers.py calls it

Reads what `features.py` wrote to FEATURES, writes OUT/topk.npz and OUT/measured.json; the model is weighed and thrown
away. A peer is a generator in four steps: import, train, save (and load, where that helps), predict; training and
predicting are what the table shows. Matrices are loaded before; a library that only reads files has their reading in
its training time.
Only numpy, scipy and the peer's own library may be imported here: this file runs in the peer's virtual environment,
where `aplc` is not.

Settings are what each library's own documentation gives as default or, where it has none for this task, as its example;
for omikuji's tree like AttentionXML's, Annif's documentation (its README has balanced clusters).
"""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from peer import networks
from peer.answers import DEPTH, Features, Steps, best, blocks, padded, spans, sparse_top

MANY = 400_000
"""Documents from which on omikuji trains its trees one after the other: at once they need more memory."""


def prior(data: Features, model: Path) -> Steps:
    """The same labels for every document: the most frequent ones."""
    yield None
    counts = np.asarray(data.y.sum(0)).ravel()
    yield None
    np.save(model / "counts.npy", counts[:DEPTH])
    yield None
    n = data.x_test.shape[0]
    top = np.argsort(-counts, kind="stable")[:DEPTH]
    yield np.tile(top, (n, 1)), np.tile(counts[top] / data.y.shape[0], (n, 1))


def knn(data: Features, model: Path, neighbours: int = 20) -> Steps:
    """Labels of the nearest training documents, each weighted by its cosine."""
    yield None
    transposed = sp.csr_matrix(data.x.T)
    yield None
    sp.save_npz(model / "x.npz", data.x)
    sp.save_npz(model / "y.npz", data.y)
    yield None
    yield blocks(data.x_test, lambda rows: sparse_top(rows @ transposed, neighbours) @ data.y)


def pecos(data: Features, model: Path, *, tree: bool) -> Steps:
    """XR-Linear; flat, every label has a classifier trained on all documents."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel

    yield None
    x, y = data.x.astype(np.float32), data.y.astype(np.float32)
    chain = Indexer.gen(LabelEmbeddingFactory.create(y, x, method="pifa")) if tree else None
    trained = XLinearModel.train(x, y, C=chain)
    yield None
    trained.save(str(model))
    trained = XLinearModel.load(str(model), is_predict_only=True)  # its documentation's way to predict fast
    yield None
    yield best(sp.csr_matrix(trained.predict(data.x_test.astype(np.float32), only_topk=DEPTH)))


def omikuji(data: Features, model: Path, **settings: Any) -> Steps:
    """Three trees."""
    from omikuji import Model

    yield None
    hyper = Model.default_hyper_param()
    for name, value in settings.items():
        setattr(hyper, name, value)
    trained = Model.train_on_data(str(data.folder / "train.txt"), hyper)
    yield None
    trained.save(str(model))
    yield None
    rows = []
    for start, end in zip(data.x_test.indptr[:-1], data.x_test.indptr[1:], strict=True):
        pairs = zip(data.x_test.indices[start:end].tolist(), data.x_test.data[start:end].tolist(), strict=True)
        rows.append(trained.predict(list(pairs), top_k=DEPTH))
    yield padded(rows)


def napkinxc(data: Features, model: Path, kind: str) -> Steps:
    """Probabilistic label tree (PLT), or one logistic regression a label (BR). They save while they train."""
    from napkinxc import models

    yield None
    trained = models.PLT(str(model), seed=0) if kind == "PLT" else models.BR(str(model))
    trained.fit(data.x, [data.y.indices[a:b].tolist() for a, b in spans(data.y)])
    yield None
    trained.load()
    yield None
    yield padded(trained.predict_proba(data.x_test, top_k=DEPTH))


def one_vs_rest(data: Features, model: Path, prune: float = 0.01) -> Steps:
    """LIBLINEAR, squared hinge in the primal, C = 1, weights below 0.01 dropped: DiSMEC. Labels go over threads."""
    from ctypes import c_double

    from liblinear.liblinearutil import parameter, problem, train

    yield None
    n, n_labels = data.y.shape
    columns = sp.csc_matrix(data.y)
    settings = parameter("-s 2 -B 1 -q")
    shared = problem(np.zeros(n), data.x.astype(np.float64), 1)

    def classifier(label: int) -> sp.csr_matrix:
        mine = shared.copy()
        mine.y = (c_double * n)()
        signs = np.ctypeslib.as_array(mine.y, (n,))
        signs[:] = -1
        signs[columns.indices[columns.indptr[label] : columns.indptr[label + 1]]] = 1
        trained = train(mine, settings)
        weights = np.ctypeslib.as_array(trained.w, (mine.n,)) * (1 if trained.get_labels()[0] == 1 else -1)
        return sp.csr_matrix(np.where(np.abs(weights) < prune, 0, weights).astype(np.float32))

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # LIBLINEAR lets go of Python's lock
        weights = sp.csr_matrix(sp.vstack(list(pool.map(classifier, range(n_labels)))).T)
    yield None
    sp.save_npz(model / "weights.npz", weights, compressed=False)
    yield None
    ones = sp.csr_matrix(np.ones((data.x_test.shape[0], 1), dtype=np.float32))
    yield blocks(sp.csr_matrix(sp.hstack([data.x_test, ones])), lambda rows: rows @ weights)


def libmultilabel(data: Features, model: Path, kind: str) -> Steps:
    """LibMultiLabel's linear methods on LIBLINEAR: one-vs-rest, and its label tree."""
    import pickle

    from libmultilabel import linear

    yield None
    train = linear.train_tree if kind == "tree" else linear.train_1vsrest
    trained = train(data.y, data.x.astype(np.float64), verbose=False)
    yield None
    with (model / "model.pickle").open("wb") as out:  # as its own save_pipeline does
        pickle.dump(trained, out, protocol=5)
    yield None
    x = data.x_test.astype(np.float64)
    yield blocks(x, lambda rows: np.asarray(linear.predict_values(trained, rows)))


def fasttext(data: Features, model: Path) -> Steps:
    """One sigmoid a label; settings of the multi-label example in fastText's documentation."""
    import fasttext as library

    yield None
    trained = library.train_supervised(
        str(data.folder / "fasttext.txt"),
        lr=0.5, epoch=25, wordNgrams=2, bucket=200_000, dim=50, loss="ova", thread=os.cpu_count(), verbose=0,
    )  # fmt: skip
    yield None
    trained.save_model(str(model / "model.bin"))
    yield None
    rows = []
    with (data.folder / "fasttext_test.txt").open(encoding="utf-8") as texts:
        for text in texts:  # `predict` of 0.9.3 fails under numpy 2; the method inside it does not
            found = trained.f.predict(text, DEPTH, 0.0, "strict")
            rows.append([(int(name.removeprefix("__label__")), score) for score, name in found])
    yield padded(rows)


PEERS: dict[str, Callable[[Features, Path], Steps]] = {
    "baseline-prior": prior,
    "baseline-knn": knn,
    "pecos-xlinear": lambda data, model: pecos(data, model, tree=True),
    "pecos-xlinear-flat": lambda data, model: pecos(data, model, tree=False),
    "omikuji-parabel": lambda data, model: omikuji(data, model, train_trees_1_by_1=data.x.shape[0] > MANY),
    "omikuji-bonsai": lambda data, model: omikuji(data, model, cluster_balanced=False, cluster_k=100, max_depth=3),
    "omikuji-attnxml-tree": lambda data, model: omikuji(
        data, model, cluster_balanced=False, cluster_k=2, collapse_every_n_layers=5
    ),
    "napkinxc-plt": lambda data, model: napkinxc(data, model, "PLT"),
    "napkinxc-br": lambda data, model: napkinxc(data, model, "BR"),
    "fasttext-ova": fasttext,
    "libmultilabel-tree": lambda data, model: libmultilabel(data, model, "tree"),
    "libmultilabel-1vsrest": lambda data, model: libmultilabel(data, model, "1vsrest"),
    "liblinear-dismec": one_vs_rest,
    "libmultilabel-xml-cnn": networks.xml_cnn,
    "pecos-xr-transformer": networks.xr_transformer,
}


class Clock:
    """Seconds on the wall, and of the processor: the latter hardly depend on what else the machine does."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._wall, self._processor = time.perf_counter(), _processor_seconds()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self._wall, _processor_seconds() - self._processor


def _processor_seconds() -> float:
    """Of this process and those it has started and ended, such as loaders of data."""
    return time.process_time() + sum(os.times()[2:4])


def measured(train: tuple[float, float], predict: tuple[float, float], size: int) -> str:
    """What the table needs, as JSON. Memory is the peak of this process alone, unlike getrusage's, which starts with
    what the process held that started it."""
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    figures = {"train_seconds": train[0], "train_cpu_seconds": train[1]}
    figures |= {"predict_seconds": predict[0], "predict_cpu_seconds": predict[1]}
    return json.dumps(figures | {"model_bytes": size, "peak_bytes": 1024 * int(peak)})


def main(name: str, features: Path, out: Path) -> None:
    data = Features.load(features)
    shutil.rmtree(out / "model", ignore_errors=True)
    (out / "model").mkdir(parents=True)
    steps = PEERS[name](data, out / "model")
    seconds = []
    clock = Clock()
    for _ in range(4):
        clock.restart()
        found = next(steps)
        seconds.append(clock.read())
    assert found is not None
    ids, scores = found
    np.savez(out / "topk.npz", ids=ids.astype(np.int32), scores=scores.astype(np.float32))
    size = sum(file.stat().st_size for file in (out / "model").rglob("*") if file.is_file())
    (out / "measured.json").write_text(measured(seconds[1], seconds[3], size))
    shutil.rmtree(out / "model")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
