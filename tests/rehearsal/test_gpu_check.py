"""Guards `make gpu-check`: the first person with a GPU should get a report, whatever it says."""

import importlib.util
from pathlib import Path

import pytest

from helpers import topic_rows, write_rows

SCRIPT = Path(__file__).parents[2] / "bench" / "gpu_check.py"


@pytest.fixture(scope="module")
def gpu_check():
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_check_runs_on_another_device(gpu_check, tmp_path):
    write_rows(tmp_path / "train.jsonl", topic_rows(60, seed=1))
    write_rows(tmp_path / "test.jsonl", topic_rows(12, seed=2))
    report = gpu_check.run(tmp_path, "standin", gpu_check.QUICK)
    assert report["ok"], gpu_check.render(report)
    assert list(report["checks"]) == list(gpu_check.CHECKS)
    assert "device: standin:0, a stand-in (as --device says)" in gpu_check.render(report)


def test_a_check_that_fails_does_not_stop_the_others(gpu_check, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check.Check, "encoder", lambda self: {"off by": gpu_check._limit(float("nan"), 1.0)})
    report = gpu_check.run(tmp_path, "standin", gpu_check.QUICK, ("encoder", "clusters"))
    assert not report["ok"]
    assert [result["ok"] for result in report["checks"].values()] == [False, True]
    assert "nan is above the limit of 1" in gpu_check.render(report)
