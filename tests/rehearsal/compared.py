"""The same done on the CPU and on the stand-in, and its results compared."""

import json

import pytest

from helpers import aplc, ok, weights

DEVICES = ("cpu", "standin")
ROUNDING = 1e-5


def on_both(do):
    """What `do(device)` gives on the CPU, and on the stand-in."""
    return [do(device) for device in DEVICES]


def run_on_both(folder, *arguments, out="--out", suffix=""):
    """A command on both devices; the paths that it wrote to."""

    def run(device):
        path = folder / f"{device}{suffix}"
        done = aplc(*arguments, out, path, "--device", device)
        ok(done)
        assert_said(done.stderr, device)
        return path

    return on_both(run)


def assert_said(messages, device):
    """One line names the device and the reason."""
    named = {"cpu": "cpu", "standin": "standin:0, a stand-in"}[device]
    assert [line for line in messages.splitlines() if line.startswith("device: ")] == [
        f"device: {named} (as --device says)"
    ]


def assert_close_weights(one, other, tolerance=ROUNDING):
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    for name in a:
        assert (a[name] - b[name]).abs().max() <= tolerance, name


def assert_close(one, other, tolerance=ROUNDING):
    """Numbers anywhere in two values of the same shape are equal to rounding, all else is the same."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_close(one[name], other[name], tolerance)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_close(a, b, tolerance)
    else:
        assert one == (pytest.approx(other, abs=tolerance, nan_ok=True) if isinstance(one, float) else other)


def read_log(out, without=("seconds",)):
    """A run's metrics, without what takes time."""
    rows = map(json.loads, (out / "metrics.jsonl").read_text("utf-8").splitlines())
    return [{name: value for name, value in row.items() if name not in without} for row in rows]


def network_of(model):
    """The network of a model, which may have words beside it."""
    return getattr(model, "network", model)
