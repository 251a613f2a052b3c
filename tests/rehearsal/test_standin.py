"""Guards the stand-in itself: a rehearsal is worth what its device refuses, and here that is what CUDA refuses."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rehearsal import standin

MIXED = "Expected all tensors to be on the same device"


@pytest.fixture
def there():
    return torch.arange(12.0, device="standin").view(3, 4)


@pytest.fixture
def here():
    return torch.ones(3, 4)


@pytest.mark.parametrize(
    "mix",
    [
        lambda there, here: there + here,
        lambda there, here: here.add_(there),
        lambda there, here: there @ here.t(),
        lambda there, here: torch.cat([there, here]),
        lambda there, here: torch.where(here > 0, there, there),
        nn.functional.linear,
        lambda there, here: there.gather(1, torch.zeros(3, 1, dtype=torch.int64)),
        lambda there, here: there.index_select(0, torch.tensor([0])),
        lambda there, here: nn.functional.embedding(torch.tensor([0]), there),
        lambda there, here: torch.mm(there, there.t(), out=torch.empty(3, 3)),
        lambda there, here: torch.tensor(1.0).add_(there[0, 0]),  # a number is only read
        lambda there, here: torch.searchsorted(there[0], torch.tensor([1.0])),
        lambda there, here: there.masked_fill(here > 0, 0.0),
    ],
)
def test_devices_are_not_mixed(mix, there, here):
    with pytest.raises(RuntimeError, match=MIXED):
        mix(there, here)


def test_what_cuda_lets_pass(there, here):
    """Numbers beside tensors, indices on the CPU, and copies."""
    assert (there * torch.tensor(2.0)).device.type == "standin"
    assert there[torch.tensor([0, 2])].tolist() == [[0, 1, 2, 3], [8, 9, 10, 11]]
    there[torch.tensor([True, False, False])] = 7.0
    here[0] = there[0]
    assert here[0].tolist() == [7, 7, 7, 7]
    assert here.device.type == "cpu"
    there.copy_(torch.zeros(3, 4))
    assert float(there.sum()) == 0 == there[0, 0].item()


def test_an_index_on_the_device_is_not_for_the_cpu(there, here):
    with pytest.raises(RuntimeError, match="indices should be either on cpu"):
        here[torch.tensor([0], device="standin")]
    with pytest.raises(RuntimeError, match="indices should be either on cpu"):
        here[there > 3] = 0.0


@pytest.mark.parametrize("read", [lambda x: x.numpy(), np.asarray, lambda x: np.array([1.0]) + x, memoryview])
def test_numpy_needs_the_cpu(read, there):
    with pytest.raises((RuntimeError, TypeError)):
        read(there)
    assert there.cpu().numpy().shape == (3, 4)


def test_random_numbers_are_its_own(there):
    with pytest.raises(RuntimeError, match="Expected a 'standin' device type for generator but found 'cpu'"):
        torch.rand(3, device="standin", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'standin' device type for generator"):
        there.uniform_(generator=torch.Generator())
    torch.manual_seed(1)
    first, own = torch.rand(3, device="standin").tolist(), torch.standin.get_rng_state()
    of_cpu = torch.get_rng_state()
    nn.functional.dropout(there, 0.5)
    assert torch.equal(of_cpu, torch.get_rng_state())
    assert not torch.equal(own, torch.standin.get_rng_state())
    torch.manual_seed(1)
    assert torch.rand(3, device="standin").tolist() == first


def test_memory_is_pinned_on_the_cpu_alone(there, here):
    assert torch.equal(here.pin_memory().to("standin").cpu(), here)
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        there.pin_memory()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(3, device="standin", pin_memory=True)


def test_modules_learn_as_on_the_cpu():
    """Shared weights stay shared, copies are copies, recomputed activations have the same dropout."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 4))
    model[3].weight = model[0].weight
    other, x = copy.deepcopy(model).to("standin"), torch.randn(5, 4)
    assert other[3].weight is other[0].weight
    assert copy.deepcopy(other)[0].weight.device.type == "standin"
    for net, inputs in ((model, x), (other, x.to("standin"))):
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, fused=True)
        for _ in range(3):
            optimizer.zero_grad()
            checkpoint(net, inputs, use_reentrant=False).square().mean().backward()
            optimizer.step()
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter, dict(other.named_parameters())[name].cpu(), atol=1e-6), name


def test_autocast_is_as_on_cuda():
    x = torch.randn(3, 4, device="standin", requires_grad=True)
    with torch.autocast("standin", torch.bfloat16):
        product = x @ x.t()
        assert product.dtype == torch.bfloat16
        assert nn.functional.layer_norm(product, (3,)).dtype == torch.float32
        assert (x + x).dtype == torch.float32
    product.sum().backward()
    assert x.grad.dtype == torch.float32


def test_it_is_gone_outside_of_rehearsals():
    assert torch.accelerator.is_available()
    standin._present = False
    try:
        assert not torch.accelerator.is_available()
        with pytest.raises(RuntimeError, match="no standin device is present"):
            torch.zeros(3, device="standin")
    finally:
        standin._present = True
