"""Guards micro-batching: every caller gets its own answer, batches fill up, and limits and closing work."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from aplc.serve.batcher import Batcher, ClosedError, QueueFullError

MODEL = "current"


class Model:
    """Answers a text with itself, k times; a test can make it wait."""

    def __init__(self):
        self.sizes, self.models, self.gate, self.entered = [], [], threading.Event(), threading.Event()
        self.gate.set()

    def __call__(self, model, texts, k):
        self.entered.set()
        assert self.gate.wait(10)
        if "poison" in texts:
            raise RuntimeError("poison")
        self.sizes.append(len(texts))
        self.models.append(model)
        return [[(text, 1 / (i + 1)) for i in range(k)] for text in texts]

    def hold(self, batcher):
        """Keep the model busy with a first text, so that what comes next has to queue."""
        self.gate.clear()
        first = batcher.submit(MODEL, ["first"], 1)
        assert self.entered.wait(10)
        return first


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def batcher(model):
    made = Batcher(model, batch_size=8, capacity=20)
    yield made
    model.gate.set()
    made.close()


def test_every_caller_gets_its_own_answer(batcher):
    def ask(i):
        texts = [f"{i}-{j}" for j in range(i % 3 + 1)]
        k = i % 4 + 1
        while True:
            try:
                return texts, k, batcher.submit(MODEL, texts, k).result(10)
            except QueueFullError:
                continue

    with ThreadPoolExecutor(16) as pool:
        for texts, k, tags in pool.map(ask, range(500)):
            assert [[label for label, _ in best] for best in tags] == [[text] * k for text in texts]


def test_waiting_texts_share_a_batch_up_to_its_size(model, batcher):
    futures = [model.hold(batcher), *(batcher.submit(MODEL, [str(i)], 1) for i in range(12))]
    model.gate.set()
    assert [future.result(10)[0][0][0] for future in futures] == ["first", *map(str, range(12))]
    assert model.sizes == [1, 8, 4]
    assert batcher.waiting == 0


def test_full_queue_refuses_until_it_has_room(model, batcher):
    model.hold(batcher)
    batcher.submit(MODEL, ["a"] * 20, 1)
    with pytest.raises(QueueFullError):
        batcher.submit(MODEL, ["b"], 1)
    model.gate.set()
    while batcher.waiting:
        pass
    assert batcher.submit(MODEL, ["b"], 1).result(10) == [[("b", 1.0)]]


def test_call_larger_than_the_queue_is_accepted_when_it_is_empty(batcher):
    assert len(batcher.submit(MODEL, ["a"] * 50, 1).result(10)) == 50


def test_close_answers_everything_accepted(model, batcher):
    futures = [model.hold(batcher), *(batcher.submit(MODEL, [str(i)], 1) for i in range(10))]
    closing = threading.Thread(target=batcher.close)
    closing.start()
    while not batcher._closed:
        pass
    with pytest.raises(ClosedError):
        batcher.submit(MODEL, ["late"], 1)
    model.gate.set()
    closing.join(10)
    assert all(future.done() and future.result() for future in futures)


def test_text_that_breaks_the_model_fails_alone(model, batcher):
    first = model.hold(batcher)
    good, bad = batcher.submit(MODEL, ["good"], 1), batcher.submit(MODEL, ["poison"], 1)
    model.gate.set()
    assert first.result(10)
    assert good.result(10) == [[("good", 1.0)]]
    with pytest.raises(RuntimeError, match="poison"):
        bad.result(10)


class Panic(BaseException):
    """As PyO3 raises where Rust code panics."""


@pytest.mark.parametrize("alone", [False, True])
def test_panic_in_rust_fails_its_text_and_the_thread_goes_on(alone):
    def tag(model, texts, k):
        if "poison" in texts:
            raise Panic("poison")
        return [[(text, 1.0)] for text in texts]

    batcher = Batcher(tag)
    poison = MODEL, ["poison"], 1
    bad = batcher.submit_alone(lambda: tag(*poison), 1) if alone else batcher.submit(*poison)
    assert isinstance(bad.exception(10), RuntimeError)
    assert "Panic: poison" in str(bad.exception())
    assert batcher.submit(MODEL, ["good"], 1).result(10) == [[("good", 1.0)]]
    assert batcher.busy < 5
    batcher.close()


def test_other_work_runs_between_batches(model, batcher):
    first = model.hold(batcher)
    work = batcher.submit_alone(model.sizes.copy, 5)
    after = batcher.submit(MODEL, ["after"], 1)
    assert batcher.waiting == 6
    model.gate.set()
    assert work.result(10) == [1]
    assert first.result(10)
    assert after.result(10)


def test_cancelled_text_is_not_tagged(model, batcher):
    model.hold(batcher)
    dropped, kept = batcher.submit(MODEL, ["dropped"], 1), batcher.submit(MODEL, ["kept"], 1)
    assert dropped.cancel()
    model.gate.set()
    assert kept.result(10)
    assert sum(model.sizes) == 2


def test_batch_has_texts_of_one_model(model, batcher):
    """Texts that wait when the model is replaced are tagged by the one they were submitted with."""
    futures = [model.hold(batcher)]
    futures += [batcher.submit(name, ["a", "b"], 1) for name in ("old", "old", "new", "old")]
    model.gate.set()
    assert all(future.result(10) for future in futures)
    assert model.models == ["current", "old", "new", "old"]
    assert model.sizes == [1, 4, 2, 2]
