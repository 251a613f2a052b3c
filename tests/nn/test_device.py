"""Guards the choice of device: what is given comes first, a reason is said, and what is not there is one line."""

import os
import subprocess
import sys

import pytest
import torch

from aplc import Tagger
from aplc.errors import AplcError
from aplc.nn import device as devices
from aplc.nn.device import choose_device, using_device
from helpers import SETTINGS, aplc, fails, ok


@pytest.fixture
def gpus(monkeypatch):
    """Pretends to a number of GPUs of a kind. None of them can be used."""

    def pretend(n, kind="cuda"):
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device(kind))
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: n)

    return pretend


def test_without_a_gpu_it_is_the_cpu():
    assert str(choose_device()) == "cpu (no GPU found)"


def test_a_gpu_is_taken_where_there_is_one(gpus, monkeypatch):
    gpus(2)
    names = {torch.device("cuda", i): f"GPU {i}" for i in range(2)}
    monkeypatch.setattr(torch.cuda, "get_device_name", names.get)
    assert str(choose_device()) == "cuda:0, GPU 0 (2 cuda devices found)"
    assert choose_device(local_rank=1).device == torch.device("cuda", 1)
    with pytest.raises(AplcError, match=r"^process 3 of this machine has no device, 2 cuda devices found: .*=cpu$"):
        choose_device(local_rank=2)


def test_what_is_given_comes_before_the_environment(gpus, monkeypatch):
    gpus(2)
    monkeypatch.setenv("APLC_DEVICE", "cuda:1")
    assert choose_device().device == torch.device("cuda", 1)
    with using_device("cpu"):
        assert str(choose_device()) == "cpu (as --device says)"
        with using_device(None):
            assert choose_device().device.type == "cpu"
    assert choose_device().reason == "as APLC_DEVICE says"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpu", "'gpu' is not a device; there is only cpu"),
        ("cuda", "'cuda' was not found; there is only cpu"),
        ("meta", "'meta' was not found"),
        ("", "'' is not a device"),
        ("mps", "mps has no float64"),
    ],
)
def test_what_is_not_there_is_one_line(name, words, corpus, tmp_path):
    fails(aplc("train", corpus, "--out", tmp_path / "out", *SETTINGS, "--device", name), "--device: ", words)
    fails(aplc("train", corpus, "--out", tmp_path / "out", "--preset", "words", "--device", name), words)
    assert not (tmp_path / "out").exists()


def test_the_environment_is_checked_too(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("APLC_DEVICE", "cuda:7")
    fails(aplc("train", corpus, "--out", tmp_path, *SETTINGS), "APLC_DEVICE: 'cuda:7' was not found")
    with pytest.raises(AplcError, match=r"^APLC_DEVICE: 'cuda:7' was not found"):
        Tagger("tiny").fit(["a"], [["b"]])


def test_a_gpu_that_is_not_there_among_others(gpus):
    gpus(2)
    here = "there are cpu and cuda:0, cuda:1"
    for name in ("cuda:2", "xpu"):
        with pytest.raises(AplcError, match=f"^--device: '{name}' was not found; {here}$"), using_device(name):
            pass
    assert choose_device().reason == "2 cuda devices found"


def test_several_processes_take_a_device_each(gpus, monkeypatch):
    gpus(2)
    monkeypatch.setattr(devices, "n_processes", lambda: 2)
    with using_device("cuda"):
        assert [choose_device(rank).device.index for rank in (0, 1)] == [0, 1]
    with pytest.raises(AplcError, match=r"own; give 'cuda' without a number$"), using_device("cuda:1"):
        pass


def test_apples_gpu_is_not_taken(gpus):
    gpus(1, "mps")
    assert str(choose_device()) == "cpu (mps has no float64, in which losses are summed)"


def test_taggers_take_a_device():
    assert Tagger(device="cpu").get_params()["device"] == "cpu"
    for wrong, words in (("nowhere", "'nowhere' is not a device"), (0, "give its name")):
        with pytest.raises(AplcError, match=words):
            Tagger("tiny", device=wrong).fit(["a"], [["b"]])


COMMANDS = ("plan", "pretrain", "train", "evaluate", "ablate", "predict", "review", "serve", ("labels", "add"))


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_run_networks_take_it(command):
    assert "--device" in ok(aplc(*([command] if isinstance(command, str) else command), "--help"))


def test_few_compiled_kernels_are_kept_unless_the_user_says_how_many():
    names = "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"
    others = {name: value for name, value in os.environ.items() if name not in names}
    show = f"import os, aplc.nn.device; print(*(os.environ[name] for name in {names}))"
    found = subprocess.run([sys.executable, "-c", show], env=others | {names[1]: "99"}, capture_output=True, check=True)
    assert found.stdout.split() == [devices.KERNELS.encode(), b"99"]
