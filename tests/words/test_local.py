"""Guards rare labels' ridge regression: the equations of their neighbourhoods, with our C code and without it."""

import numpy as np
import pytest
from scipy import sparse

from aplc import native
from aplc.console import Screen
from aplc.words import local, ridge, systems
from aplc.words.blocks import Blocks
from aplc.words.local import Local, choose_slowly, settle_slowly
from aplc.words.ridge import cuts, solve
from aplc.words.systems import Conjugate, collect, cross
from reference import local_answer, neighbourhood

QUIET = Screen(quiet=True)
N, V, F, RIDGE = 120, 300, 20, 0.6
EVERYONE = np.ones(N, dtype=bool)
NEEDS_COMPILED = pytest.mark.skipif(native.library() is None, reason="compiled code is not used: see aplc info")


@pytest.fixture(scope="module")
def corpus():
    """Words of all frequencies; labels of one to nine documents."""
    rng = np.random.default_rng(3)
    dense = rng.random((N, V)) * (rng.random((N, V)) < 0.5 / np.arange(1, V + 1) ** 0.5)
    y = rng.random((9, N)) < np.arange(1, 10)[:, None] / N
    y[np.arange(9), rng.integers(0, N, 9)] = True
    return sparse.csr_array(dense.astype(np.float32)), sparse.csr_array(y.astype(np.float32))


@pytest.fixture
def few(monkeypatch):
    """Neighbourhoods that are a part of the corpus, and equations solved to the end."""
    monkeypatch.setattr(local, "NEIGHBOURS", 15)
    for module in ridge, systems:
        monkeypatch.setattr(module, "TOLERANCE", 1e-6)
    monkeypatch.setattr(ridge, "EXACT", 1e-6)


def parts_of(x):
    system = Conjugate(x, F, RIDGE)
    frequent = np.isin(np.arange(V), system.order_V[:F])
    return system, x.toarray()[:, frequent].astype(np.float64), x.toarray()[:, ~frequent].astype(np.float64)


@pytest.mark.parametrize("reach", [0, 7, 40, 1 << 15])
@pytest.mark.usefixtures("few", "compiled_or_not")
def test_neighbours_share_most_of_the_rarest_words(corpus, reach, monkeypatch):
    monkeypatch.setattr(local, "REACH", reach)
    x, y = corpus
    system = Conjugate(x, F, RIDGE)
    rare = system.x_NR.x.toarray()
    near = Local(system).neighbourhoods(y, EVERYONE)
    for label, (start, stop) in enumerate(zip(near.start, near.start[1:], strict=False)):
        own = y.indices[y.indptr[label] : y.indptr[label + 1]]
        assert sorted(near.document[start:stop]) == sorted(neighbourhood(rare, own, 15, reach))


@NEEDS_COMPILED
def test_of_equal_neighbours_the_first_are_chosen():
    x = sparse.csr_array(np.ones((10, 1), dtype=np.float32))
    own = sparse.csr_array(np.eye(10, dtype=np.float32)[[4, 9]])
    for choose in native.choose, choose_slowly:
        start, document = choose(x, x.T.tocsr(), own, EVERYONE[:10], 3, 100)
        assert start.tolist() == [0, 4, 8]
        assert document.tolist() == [4, 0, 1, 2, 9, 0, 1, 2]


@pytest.mark.usefixtures("few", "compiled_or_not")
def test_answers_solve_the_equations_of_the_neighbourhood(corpus):
    x, y = corpus
    system, frequent, rare = parts_of(x)
    answer = Local(system).answer(y, EVERYONE, 1e-6, 100)
    order = np.argsort(system.order_V[:F])
    for label in range(y.shape[0]):
        own = y.indices[y.indptr[label] : y.indptr[label + 1]]
        near = neighbourhood(rare, own, 15)
        expected, weight = local_answer(frequent, rare, own, near, RIDGE)
        assert np.allclose(answer.a_CN[[label]].toarray()[0][near], expected[near], atol=1e-5)
        assert np.allclose(answer.weight_CF[label][order], weight, atol=1e-5)


@pytest.mark.usefixtures("few", "compiled_or_not")
def test_own_parts_are_nearly_those_of_all_words_together(corpus):
    x, y = corpus
    system, frequent, rare = parts_of(x)
    solver = Local(system)
    found = solver.answer(y, EVERYONE, 1e-6, 100)
    off, by_frequent_off = [], []
    for label in range(y.shape[0]):
        own = y.indices[y.indptr[label] : y.indptr[label + 1]]
        near = neighbourhood(rare, own, 15)
        matrix = frequent @ frequent.T + np.diag((rare**2).sum(1) + RIDGE)
        by_frequent = np.linalg.inv(matrix)[np.ix_(own, own)].sum()
        meets = rare[near] @ rare[near].T
        matrix[np.ix_(near, near)] += meets - np.diag(np.diagonal(meets))
        exact = np.linalg.inv(matrix)[np.ix_(own, own)].sum()
        off.append(solver.own_part(y, found)[label] - exact)
        by_frequent_off.append(by_frequent - exact)
    assert np.square(off).mean() < 0.2 * np.square(by_frequent_off).mean()


@NEEDS_COMPILED
@pytest.mark.usefixtures("few")
def test_iterations_are_those_of_the_slow_twin(corpus):
    """However early they end."""
    x, y = corpus
    system = parts_of(x)[0]
    solver = Local(system)
    near = solver.neighbourhoods(y, EVERYONE)
    a = np.random.default_rng(0).normal(size=len(near.document)).astype(np.float32)
    enough = np.linspace(0.01, 4, y.shape[0], dtype=np.float32)
    for most in 0, 2, 50:
        slow, slow_solved = settle_slowly(solver.x_NR, *near, solver.q_N, enough, a, most)
        fast, fast_solved = native.settle(solver.x_NR, *near, solver.q_N, enough, a, most)
        assert np.allclose(slow, fast, atol=1e-5)
        assert slow_solved.tolist() == fast_solved.tolist()
        assert slow_solved.all() == (most == 50)


@pytest.mark.usefixtures("compiled_or_not")
def test_too_few_iterations_are_no_answer(corpus):
    x, y = corpus
    system = parts_of(x)[0]
    assert Local(system).answer(y, EVERYONE, 1e-6, 1) is None


@pytest.mark.usefixtures("compiled_or_not")
def test_products_are_those_of_dense_matrices():
    rng = np.random.default_rng(0)
    x, y = (sparse.random_array((30, 30), density=0.2, rng=rng, format="csr", dtype=np.float32) for _ in range(2))
    assert np.allclose(cross(x, y), x.toarray() @ y.toarray(), atol=1e-6)
    mean, ones = rng.random((2, 30), dtype=np.float32)
    expected = x.toarray() @ y.toarray() - np.outer(mean, ones)
    touched = (x.toarray() > 0) @ (y.toarray() > 0)
    assert np.allclose(collect(x, y, mean, ones, 0.0).toarray(), np.where(touched, expected, 0), atol=1e-6)
    large = touched & (np.abs(expected) >= 0.3)
    found = collect(x, y, mean, ones, 0.3)
    assert 0 < found.nnz == large.sum()
    assert np.allclose(found.toarray(), np.where(large, expected, 0), atol=1e-6)


@pytest.mark.usefixtures("few", "compiled_or_not")
def test_weights_and_scores_are_those_of_the_equations(corpus):
    """Left-out documents are nobody's neighbours; their scores come from labels fitted without them."""
    x, y = corpus
    left_out = np.arange(0, N, 6)
    weight, mean, curves = solve(x, y.T.tocsr(), left_out, limit=F, ridge=RIDGE, prune=0.0, screen=QUIET)
    system, frequent, rare = parts_of(x)
    is_frequent = np.isin(np.arange(V), system.order_V[:F])
    q = (rare**2).sum(1) + RIDGE
    ones = np.linalg.solve(x.toarray() @ x.toarray().T + RIDGE * np.eye(N), np.ones(N))
    h = np.diagonal(frequent @ np.linalg.inv(np.eye(F) + frequent.T @ (frequent / q[:, None])) @ frequent.T) / q
    kept = np.setdiff1d(np.arange(N), left_out)
    scored = 0
    for label in range(9):
        own = y.indices[y.indptr[label] : y.indptr[label + 1]]
        rest = np.setdiff1d(own, left_out)
        for documents in own, rest:
            if not len(documents):
                continue
            shared = np.where(np.isin(np.arange(N), [*kept, *documents])[:, None], rare, 0)
            near = neighbourhood(shared, documents, 15)
            a, weight_F = local_answer(frequent, rare, documents, near, RIDGE)
            from_frequent = weight_F - mean[label] * (frequent.T @ ones)
            touched = (rare[near] > 0).any(0)
            from_rare = np.where(touched, rare[near].T @ a[near] - mean[label] * (rare.T @ ones), 0)
            if documents is own:
                found = weight.toarray()[:, label]
                assert np.allclose(found[is_frequent], from_frequent, atol=1e-5)
                assert np.allclose(found[~is_frequent], from_rare, atol=1e-5)
        for m, i in enumerate(left_out):
            at = np.flatnonzero((curves.label_MK[m] == label) & np.isfinite(curves.score_MK[m]))
            assert len(at) == 1
            assert curves.n_MK[m, at[0]] == len(rest)
            assert curves.hit_MK[m, at[0]] == (i in own)
            if len(rest):
                expected = frequent[i] @ from_frequent / (1 - h[i]) + rare[i] @ from_rare + mean[label]
                assert curves.score_MK[m, at[0]] == pytest.approx(expected, abs=1e-5)
                scored += 1
    assert scored > 100


def test_blocks_hold_labels_of_one_kind():
    count = np.array([900, 80, 51, 50, 3, 1, 1, 0])
    assert cuts(count, 2, rare=50) == ([(0, 2), (2, 3), (3, 8)], [False, False, True])
    assert cuts(count, 5, rare=-1) == ([(0, 5), (5, 8)], [False, False])


@pytest.mark.usefixtures("few")
def test_a_fit_goes_on_from_any_block_with_the_same_result(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(ridge, "LABELS_AT_ONCE", 2)
    x, y = corpus

    def fit(blocks):
        weight, _, curves = solve(
            x, y.T.tocsr(), np.arange(20), limit=F, ridge=RIDGE, prune=0.01, screen=QUIET, blocks=blocks
        )
        return [weight.data, weight.indices, weight.indptr, curves.score_MK, curves.label_MK, curves.hit_MK]

    whole, save = fit(None), Blocks.save
    for number in range(5):
        begun, folder = [], tmp_path / str(number)

        def stop(self, at, block, number=number):
            if at == number:
                raise KeyboardInterrupt
            save(self, at, block)

        monkeypatch.setattr(Blocks, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            fit(Blocks(folder, begin=lambda begun=begun: begun.append(1)))
        assert begun == [1]
        monkeypatch.setattr(Blocks, "save", save)
        assert [array.tobytes() for array in fit(Blocks(folder))] == [array.tobytes() for array in whole]
    monkeypatch.setattr(ridge, "_solvers", None)  # all blocks are there: nothing is solved
    assert fit(Blocks(tmp_path / "4"))[0].tobytes() == whole[0].tobytes()
