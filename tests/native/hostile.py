"""Random and hostile inputs for the compiled code: computed or refused, never a crash.

    python tests/native/hostile.py --cases 10000 --library build/sanitize/_native.so

`make sanitize` runs it on a library with AddressSanitizer and UndefinedBehaviorSanitizer in it. It does without torch,
which takes long to start under a sanitizer: what C takes from a tensor is an address.
"""

import argparse
import mmap
import os
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy import sparse
from scipy.special import expit, log_expit
from sklearn.utils import murmurhash3_32

from aplc import native
from aplc.native import loader

LARGE = 1 << 30


class Array:
    """A NumPy array as `native` sees a tensor."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype.name
        self.is_cpu = True

    def __len__(self):
        return len(self.array)

    def dim(self):
        return self.array.ndim

    def numel(self):
        return self.array.size

    def is_contiguous(self):
        return self.array.flags.c_contiguous

    def data_ptr(self):
        return self.array.ctypes.data if self.array.size else 0


class Cases:
    """Each method is one random case of one kernel. `hostile`: something in it may be spoiled."""

    def __init__(self, seed, hostile):
        self.rng, self.hostile = np.random.default_rng(seed), hostile
        self.spoiled = False

    def size(self, most=40, least=0):
        """Often the least, one, or the length of a vector and its neighbours."""
        usual = [least, 1, 7, 8, 9, 15, 16, 17, 31, 33, most]
        drawn = self.rng.choice(usual) if self.rng.random() < 0.6 else self.rng.integers(least, most + 1)
        return int(min(max(drawn, least), most))

    def floats(self, *shape, least=-1.0):
        return self.rng.uniform(least, 1, shape).astype(np.float32)

    def matrix(self, n_rows, n_columns, *, least=-1.0):
        """A sparse matrix, perhaps spoiled: its columns, where its rows begin, its values."""
        n = int(self.rng.integers(0, 3 * n_rows + 1)) if n_columns else 0
        rows, columns = self.rng.integers(0, max(n_rows, 1), n), self.rng.integers(0, max(n_columns, 1), n)
        x = sparse.csr_array((self.floats(n, least=least), (rows, columns)), shape=(n_rows, n_columns))
        x.sum_duplicates()
        return self.spoil(x)

    def spoil(self, x):
        if not self.hostile or self.rng.random() < 0.4:
            return x
        self.spoiled = True
        bad = int(self.rng.choice([-1, -(2**31), 2**31 - 1, x.shape[1], x.shape[1] + 1]))
        what = self.rng.choice(["column", "start", "value", "order"])
        if what == "column" and x.nnz:
            x.indices[self.rng.integers(x.nnz)] = bad
        elif what == "start":
            x.indptr[self.rng.integers(len(x.indptr))] = bad
        elif what == "order" and len(x.indptr) > 2:
            x.indptr[1:-1] = self.rng.permutation(x.indptr[1:-1])
        elif x.nnz:
            x.data[self.rng.integers(x.nnz)] = self.rng.choice([np.nan, np.inf, -np.inf, 0, 1e-38, -1, 3e38])
        return x

    def compare(self, found, expected, tolerance=1e-4):
        if not self.spoiled:
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)

    def product(self):
        x = self.matrix(self.size(), self.size())
        dense = self.floats(x.shape[1], self.size(300))
        out = np.full((x.shape[0], dense.shape[1]), np.nan, np.float32)
        native.product(x, Array(dense), Array(out))
        self.compare(out, self.dense(x) @ dense)

    def dense(self, x):
        return np.zeros(x.shape) if self.spoiled else x.toarray().astype(np.float64)

    def cross(self):
        x = self.matrix(self.size(), self.size())
        y = self.matrix(x.shape[1], self.size())
        found = native.cross(x, y)
        self.compare(found, self.dense(x) @ self.dense(y))

    def transpose(self):
        x, first = self.matrix(self.size(), self.size()), int(self.rng.integers(5))
        count = np.zeros(x.shape[1], np.int64) if self.spoiled else np.bincount(x.indices, minlength=x.shape[1])
        ends = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
        after, row, value = ends[:-1].copy(), np.empty(x.nnz, np.int32), np.empty(x.nnz, np.float32)
        if self.hostile and len(after):
            self.spoiled = True
            after[self.rng.integers(len(after))] = self.rng.choice([-1, x.nnz, 2**62, -(2**62)])
        native.transpose(x, first, after, row, value)
        if not self.spoiled:
            transposed = sparse.csr_array((value, row - first, ends), shape=x.shape[::-1])
            assert (transposed != x.T.tocsr()).nnz == 0
            assert (after == ends[1:]).all()

    def choose(self):
        x = self.matrix(self.size(), self.size(), least=0)
        by_word = x.T.tocsr() if not self.spoiled else self.matrix(*x.shape[::-1], least=0)
        own = self.matrix(self.size(10), x.shape[0])
        most, reach = self.size(5), int(self.rng.choice([0, 10, 2**62]))
        may = self.rng.random(x.shape[0]) < 0.8
        start, document = native.choose(x, by_word, own, may, most, reach)
        if self.spoiled or reach < 2**62:
            return
        ones = sparse.csr_array((np.ones_like(own.data), own.indices, own.indptr), shape=own.shape)
        shared = self.dense(ones) @ self.dense(x) @ self.dense(by_word)
        for label in range(own.shape[0]):
            chosen, mine = document[start[label] : start[label + 1]], own[[label]].indices
            assert chosen[: len(mine)].tolist() == mine.tolist()
            others = np.setdiff1d(np.flatnonzero((shared[label] > 1e-12) & may), mine)
            assert len(chosen) - len(mine) == min(most, len(others))
            assert np.isin(chosen[len(mine) :], others).all()

    def neighbourhoods(self):
        x = self.matrix(self.size(), self.size())
        n = self.size(10)
        document = self.rng.integers(0, max(x.shape[0], 1), self.size() if x.shape[0] else 0).astype(np.int32)
        start = np.sort(self.rng.integers(0, len(document) + 1, n + 1)).astype(np.int64)
        if self.hostile and self.rng.random() < 0.4:
            self.spoiled = True
            start[self.rng.integers(n + 1)] = self.rng.choice([-1, -(2**62), 2**62, len(document) + 1])
            if len(document):
                document[self.rng.integers(len(document))] = self.rng.choice([-1, x.shape[0], 2**31 - 1])
        return x, start, document, np.repeat(np.arange(n), np.diff(start)) if not self.spoiled else None

    def spread(self):
        x, start, document, label = self.neighbourhoods()
        given = self.floats(len(start) - 1, x.shape[1])
        found = native.spread(x, start, document, given)
        if not self.spoiled:
            used = slice(start[0], start[-1])
            self.compare(found[used], (self.dense(x)[document[used]] * given[label]).sum(1))

    def settle(self):
        x, start, document, _ = self.neighbourhoods()
        a, most = self.floats(len(document)), self.size(60)
        diagonal = (np.asarray(x.power(2).sum(axis=1)).ravel() if not self.spoiled else self.floats(x.shape[0])) + 0.5
        enough = np.full(len(start) - 1, 1e-10, np.float32)
        if self.hostile and len(diagonal):
            diagonal[self.rng.integers(len(diagonal))] = self.rng.choice([0, -1, np.nan, np.inf])
        found, solved = native.settle(x, start, document, diagonal.astype(np.float32), enough, a, most)
        for i in np.flatnonzero(solved) if not self.hostile else ():
            mine = slice(start[i], start[i + 1])
            rows = self.dense(x)[document[mine]]
            meets = rows @ rows.T
            others = meets - np.diag(np.diagonal(meets))
            c = -np.linalg.solve(meets + 0.5 * np.eye(len(rows)), others @ a[mine])
            assert np.allclose(found[mine], a[mine] + c, atol=1e-3)

    def collect(self):
        own = self.matrix(self.size(10), self.size())
        x = self.matrix(own.shape[1], self.size())
        share, less = self.floats(own.shape[0]), self.floats(x.shape[1])
        least = float(self.rng.choice([0, 0.1, np.nan if self.hostile else 0.5]))
        found = native.collect(own, x, share, less, least)
        if not self.spoiled and least == 0:
            expected = np.where(self.dense(own) @ self.dense(x) != 0, self.dense(own) @ self.dense(x), np.nan)
            seen = ~np.isnan(expected)
            self.compare(found.toarray()[seen], (expected - np.outer(share, less))[seen])

    def logits(self):
        documents, n_labels = self.matrix(self.size(), self.size()), self.size()
        index = self.matrix(documents.shape[1], n_labels)
        start, label = index.indptr.astype(np.int64), index.indices.astype(np.int32)
        weight = self.rng.integers(-32768, 32767, len(label)).astype(np.int16)
        bias, curve = self.floats(n_labels), np.zeros((5, n_labels), np.float32)
        curve[1], curve[3], curve[4] = 1, -np.inf, np.inf
        found = native.logits(documents, start, label, weight, np.float32(1e-4), bias, curve)
        assert found is not None or self.spoiled
        if not self.spoiled:
            index = sparse.csr_array((weight * 1e-4, label, start), shape=index.shape)
            self.compare(found, self.dense(documents) @ index.toarray() + bias)

    def count(self):
        letters = ["a", "b", "é", "ß", "東", "\U00010400", "z9"]
        texts = [
            ["".join(self.rng.choice(letters, self.size(9, 1))) for _ in range(self.size(9))]
            for _ in range(self.size(5))
        ]
        sizes, runs = tuple(map(int, self.rng.choice([1, 7, 64, 1 << 22], 3))), bool(self.rng.random() < 0.5)
        if self.hostile and texts and texts[-1]:
            texts[-1][-1] = str(self.rng.choice(["", " ", "a b", "\0", " " * 30, "<>", "x" * 100]))
            self.spoiled = " " in texts[-1][-1]
        start, bucket, often = native.count(texts, sizes, runs=runs)
        assert not self.spoiled, "a word with a space was counted"
        for i, words in enumerate(texts):
            marked = [f"<{word}>" for word in words if runs and len(word) >= 4]
            groups = words, map(" ".join, pairwise(words)), (m[i : i + 4] for m in marked for i in range(len(m) - 3))
            firsts = 0, sizes[0], sum(sizes[:2])
            expected = Counter(
                first + abs(murmurhash3_32(name)) % size
                for first, size, group in zip(firsts, sizes, groups, strict=True)
                for name in group
            )
            mine = slice(start[i], start[i + 1])
            assert list(zip(bucket[mine].tolist(), often[mine].tolist(), strict=True)) == sorted(expected.items())

    def best(self):
        x = np.round(self.floats(self.size(), self.size(40, 1)), 1)
        if self.hostile and x.size:
            x.flat[self.rng.integers(x.size, size=3)] = [np.nan, np.inf, -np.inf]
        k = self.size(x.shape[1], 1)
        found = native.best(x, k)
        assert ((found >= 0) & (found < x.shape[1])).all()
        if not self.hostile:
            assert (found == np.argsort(-x, axis=1, kind="stable")[:, :k]).all()

    def sweep(self):
        n_labels, n_rows, width, n_roots = self.size(200), self.size(), self.size(), self.size(3)
        tail, biased = self.rng.random(2) < 0.5
        pairs = self.rng.permutation(n_labels * n_rows)[: self.size()]
        label, row = np.divmod(np.sort(pairs), max(n_rows, 1))
        if self.hostile and len(pairs):
            self.spoiled = True
            spoil, bad = self.rng.choice(["label", "row", "twice"]), self.rng.choice([-1, 2**62, -(2**62), n_labels])
            if spoil == "twice":
                label, row = (np.repeat(x, 10_000) for x in (label, row))
            else:
                (label if spoil == "label" else row)[self.rng.integers(len(pairs))] = bad
        weight, rows = self.floats(n_labels + n_roots, width), self.floats(n_rows, width)
        bias = self.floats(len(weight)) if biased else None
        root, row_weight = 3 * self.floats(n_rows) if tail else None, self.rng.random(n_rows)
        loss, grad_rows = np.empty((), np.float32), np.empty_like(rows)
        outputs = (np.empty_like(weight), None if bias is None else np.empty_like(bias), grad_rows)
        given = (weight, bias, rows, row_weight, root, label.astype(np.int64), row.astype(np.int64), loss, *outputs)
        grad_root = None if root is None else np.empty_like(root)
        native.sweep(
            (n_labels, n_rows, width, len(label)), *(None if x is None else Array(x) for x in (*given, grad_root))
        )
        if not self.spoiled:
            z = (rows.astype(np.float64) @ weight[:n_labels].T) + (0 if bias is None else bias[:n_labels])
            p = expit(z) * (1 if root is None else expit(root.astype(np.float64))[:, None])
            terms = -np.log1p(-p)
            terms[row, label] = -log_expit(z)[row, label] - (0 if root is None else log_expit(root)[row])
            self.compare(loss, (terms.sum(1) * row_weight).sum())


KERNELS = ("product", "cross", "transpose", "choose", "spread", "collect", "settle", "logits", "best", "count", "sweep")


def run(n_cases, first=0):
    """Cases in turn, half of them hostile; the number that were refused."""
    refused = 0
    for seed in range(first, first + n_cases):
        hostile = seed // len(KERNELS) % 2 == 1
        cases = Cases(seed, hostile)
        try:
            getattr(cases, KERNELS[seed % len(KERNELS)])()
        except ValueError:
            assert cases.spoiled, f"case {seed} is refused"
            refused += 1
        except AssertionError as error:
            raise AssertionError(f"case {seed}") from error
    return refused


def reserved(*shape):
    """Zeros that take no memory until they are written to."""
    size = int(np.prod(shape)) * 4
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    return np.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=np.float32).reshape(shape)


def run_large():
    """Places beyond 2^31, which an int would not hold."""
    dense = reserved(2**26 + 1, 33)
    dense[-1, -1] = 7
    x = sparse.csr_array(([1.0], ([1], [2**26])), shape=(2, 2**26 + 1), dtype=np.float32)
    out = np.empty((2, 33), np.float32)
    native.product(x, Array(dense), Array(out))
    assert out[1, -1] == 7
    assert out.sum() == 7
    given = reserved(3, LARGE + 5)
    given[2, -1] = 5
    x = sparse.csr_array(([2.0], ([0], [LARGE + 4])), shape=(1, LARGE + 5), dtype=np.float32)
    start, document = np.array([0, 1, 2, 3]), np.zeros(3, np.int32)
    assert native.spread(x, start, document, given).tolist() == [0, 0, 10]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--library", type=Path, default=loader.PATH)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "3"
    native.LEAST_WORK = 1
    best = loader.load(arguments.library).variants
    for vector in best:
        library = loader.load(arguments.library, vector)
        native.library = lambda library=library: library
        refused = run(arguments.cases // len(best) + 1)
        run_large()
        print(f"{vector}: {arguments.cases // len(best) + 1:,} cases, {refused:,} refused")


if __name__ == "__main__":
    main()
