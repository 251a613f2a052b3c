"""Guards the handshake with the compiled library: what does not fit is not used, and why is said."""

import ctypes
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from aplc import native
from aplc.errors import AplcError
from aplc.native import loader
from aplc.native.loader import UnusableError
from helpers import SETTINGS, aplc

from_sources = pytest.mark.skipif(not loader.PATH.with_name("sweep.c").is_file(), reason="a wheel has no sources")
compiled = pytest.mark.skipif(native.library() is None, reason="compiled code is not used: see aplc info")


@pytest.mark.parametrize(
    ("content", "why"), [(None, "not built"), (b"", "can't be loaded"), (b"\x7fELF, but not really", "can't be loaded")]
)
def test_a_file_that_is_no_library_is_not_used(content, why, tmp_path):
    if content is not None:
        (tmp_path / "_native.so").write_bytes(content)
    with pytest.raises(UnusableError, match=why):
        loader.load(tmp_path / "_native.so")


@compiled
def test_a_library_of_other_structs_is_not_used(monkeypatch):
    class Longer(loader.Count):
        _fields_ = [("more", ctypes.c_int64)]  # noqa: RUF012

    opened = ctypes.CDLL(str(loader.PATH))
    with pytest.raises(UnusableError, match="Longer has 96 bytes, ours 104"):
        loader.shake_hands(opened, [*loader.STRUCTS[:-1], Longer])
    built_for = loader.ABI
    monkeypatch.setattr(loader, "ABI", 0)
    with pytest.raises(UnusableError, match=f"version {built_for} of its interface, not 0"):
        loader.shake_hands(opened)


@compiled
@from_sources
def test_a_library_of_older_sources_is_not_used(tmp_path, monkeypatch):
    for name in loader.SOURCES:
        shutil.copy(loader.PATH.with_name(name), tmp_path)
    monkeypatch.setattr(loader, "PATH", tmp_path / "_native.so")
    shutil.copy(native.library().path, tmp_path)
    loader.load(loader.PATH)
    with (tmp_path / "sweep.c").open("a") as source:
        source.write("/* changed */\n")
    with pytest.raises(UnusableError, match="make native"):
        loader.load(loader.PATH)


@pytest.fixture
def asks(monkeypatch):
    """Sets APLC_NATIVE as for a new process."""

    def ask(what):
        monkeypatch.setenv("APLC_NATIVE", what)
        loader.found.cache_clear()

    monkeypatch.setattr(native, "_told", False)
    yield ask
    loader.found.cache_clear()


def test_switched_off_it_says_so(asks):
    asks("0")
    facts = json.loads(aplc("info", "--json").stdout)["native"]
    assert facts == {"used": False, "vector": None, "path": None, "why": "APLC_NATIVE=0 switches it off"}
    assert "compiled code  not used: APLC_NATIVE=0 switches it off" in aplc("info").stdout


def run(*arguments):
    """What a command says beside its results."""
    done = aplc(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_training_and_predicting_say_that_it_is_off_once(asks, corpus, tmp_path, monkeypatch):
    asks("0")
    trained = run("train", corpus, "--preset", "words", "--out", tmp_path / "m")
    assert trained.count("compiled code is not used: APLC_NATIVE=0 switches it off; SciPy multiplies") == 1
    predict = ["predict", tmp_path / "m", corpus / "test.jsonl", "--out", tmp_path / "tags.jsonl"]
    assert "compiled code" not in run(*predict)  # the same process
    monkeypatch.setattr(native, "_told", False)
    assert "compiled code is not used: APLC_NATIVE=0 switches it off; SciPy and NumPy" in run(*predict)
    network = run("train", corpus, "--out", tmp_path / "n", *SETTINGS)
    assert "compiled code" not in network
    monkeypatch.setattr(native, "_told", False)
    network = run("train", corpus, "--out", tmp_path / "n2", *SETTINGS)
    assert "switches it off; the label clusters take about twice the time" in network
    monkeypatch.setattr(native, "_told", False)
    assert "compiled code" not in run("predict", tmp_path / "n", *predict[2:])  # no use for it


@compiled
def test_a_variant_can_be_asked_for(asks):
    for vector in native.library().variants:
        asks(vector)
        facts = json.loads(aplc("info", "--json").stdout)["native"]
        assert (facts["used"], facts["vector"], facts["why"]) == (True, vector, None)
    with pytest.raises(AplcError, match=r"APLC_NATIVE=avx9: this processor can run"):
        loader.load(loader.PATH, "avx9")


@compiled
def test_without_torch_it_has_threads_of_its_own():
    code = """
import sys, numpy as np
from aplc import native
from aplc.native import loader
x = np.random.default_rng(0).random((300, 50), dtype=np.float32)
assert loader.threads() == 3 and (native.best(x, 5) == np.argsort(-x, axis=1)[:, :5]).all()
assert "torch" not in sys.modules
"""
    _run_alone(code, threads=3)


@compiled
def test_with_torch_it_runs_on_torchs_threads():
    code = """
import torch, numpy as np, os
from aplc import native
torch.set_num_threads(2)
torch.ones(1000, 1000) @ torch.ones(1000, 1000)
torch.ones(1_000_000).exp()
before = len(os.listdir("/proc/self/task"))
for _ in range(20):
    native.best(np.ones((300, 50), dtype=np.float32), 5)
assert native.loader._torch_team(), "PyTorch's OpenMP was not found"
assert len(os.listdir("/proc/self/task")) <= before, "new threads"
"""
    _run_alone(code, threads=2)


@compiled
def test_wrong_arrays_are_refused():
    x = np.ones((3, 4), np.float32)
    for k in 0, 5, -1:
        with pytest.raises(ValueError, match="best of a matrix"):
            native.best(x, k)
    with pytest.raises(ValueError, match="float64"):
        native.best(x.astype(np.float64), 2)


def _run_alone(code, threads):
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
