"""Guards mapped weights: processes share them if asked, and nothing is ever written back to the file."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from aplc.errors import ModelError
from aplc.nn.checked import load_weights, mapped_weights


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.arange(12.0).reshape(3, 4), "bias": torch.ones(3)}, path)
    return path


def test_weights_are_mapped_and_changes_stay_in_the_process(file):
    before = file.read_bytes()
    layer, copied = nn.Linear(4, 3), nn.Linear(4, 3)
    load_weights(copied, file)
    maps = Path("/proc/self/maps")
    assert not maps.exists() or str(file) not in maps.read_text()
    with mapped_weights():
        load_weights(layer, file)
    assert not maps.exists() or str(file) in maps.read_text()
    assert layer(torch.ones(4)).tolist() == [7.0, 23.0, 39.0]
    layer(torch.ones(4)).sum().backward()
    with torch.no_grad():
        layer.weight -= layer.weight.grad  # training goes on from a loaded model
    assert layer.weight[0].tolist() == [-1.0, 0.0, 1.0, 2.0]
    assert file.read_bytes() == before


def test_weights_of_another_type_are_converted(file):
    save_file({"weight": torch.ones(3, 4, dtype=torch.float16), "bias": torch.ones(3)}, file)
    layer = nn.Linear(4, 3)
    with mapped_weights():
        load_weights(layer, file)
    assert layer.weight.dtype == torch.float32
    assert layer(torch.ones(4)).tolist() == [5.0] * 3


def test_weights_that_do_not_fit_are_refused(file):
    with pytest.raises(ModelError, match="damaged"):
        load_weights(nn.Linear(5, 3), file)
    with pytest.raises(ModelError, match="damaged"):
        load_weights(nn.Linear(4, 3, bias=False), file)
