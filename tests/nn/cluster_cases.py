"""Small layers, hidden states and label lists for the tests of label clusters, and how gradients are compared."""

import torch
from hypothesis import assume
from hypothesis import strategies as st

from aplc.nn.clusters import LabelClusters

OBJECTIVES = ("released", "paper")
TAILS = ("norm-relu", "linear")


@st.composite
def cases(draw):
    """A layer of any small shape, hidden states and label lists: empty, repeated, all of them, in any order."""
    n_labels = draw(st.integers(1, 40))
    n_cuts = draw(st.integers(0, min(3, n_labels - 1)))
    cuts = sorted(draw(st.sets(st.integers(1, max(n_labels - 1, 1)), min_size=n_cuts, max_size=n_cuts)))
    added = draw(st.sampled_from([(), (), (2,), (1, 4)]))
    n_labels += sum(added)
    torch.manual_seed(draw(st.integers(0, 2**31)))
    tail = draw(st.sampled_from(TAILS))
    layer = LabelClusters(
        in_features=draw(st.integers(1, 12)),
        cutoffs=cuts,
        n_labels=n_labels,
        added=added,
        div_value=draw(st.sampled_from([1.0, 1.5, 2.0, 4.0])),
        objective=draw(st.sampled_from(OBJECTIVES)),
        tail=tail,
        bias=draw(st.booleans()),
        min_tail_width=draw(st.integers(2 if tail == "norm-relu" else 1, 4)),
        chunk_size=draw(st.sampled_from([1, 3, 8, 4096])),
        dtype=torch.float64,
    )
    n_rows = draw(st.sampled_from([1, 2, 3, 5, 16]))
    scale = draw(st.sampled_from([0.1, 1.0, 4.0]))
    hidden = scale * torch.randn(n_rows, layer.in_features, dtype=torch.float64)
    rows = [draw(st.lists(st.integers(0, n_labels - 1), max_size=6)) for _ in range(n_rows)]
    if draw(st.booleans()):
        rows[0] = list(range(n_labels))
    labels = pad(rows)
    assume(labels.shape[1] != n_labels or n_labels < 3 or labels.max() > 1 or labels.min() < 0)  # read as multi-hot
    return layer, hidden, labels


def pad(rows):
    width = max(1, *map(len, rows)) if len(rows) > 1 else max(1, len(rows[0]))
    return torch.tensor([row + [-100] * (width - len(row)) for row in rows])


def make(seed=0, **options):
    torch.manual_seed(seed)
    layer = LabelClusters(16, [20, 40], 80, **options)
    return layer, torch.randn(6, 16), torch.randint(0, 80, (6, 4))


def gradients(loss, layer, hidden):
    inputs = [hidden, *layer.parameters()]
    found = torch.autograd.grad(loss, inputs, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


def assert_same_by_name(layer, found, expected, tolerance):
    """The error of each gradient is relative to its own norm, with two exceptions. Behind a LayerNorm over few values
    gradients are tiny, and PyTorch's own backward pass computes them badly: there it is relative to ten times the norm
    of all gradients. A bias' gradient may be a sum that cancels: there it is relative to that norm."""
    whole = torch.cat([g.flatten() for g in expected]).norm()
    names = ["hidden", *(name for name, _ in layer.named_parameters())]
    for name, a, b in zip(names, found, expected, strict=True):
        scale = max(b.norm().item(), 1e-12)
        if layer.tail == "norm-relu" and (name == "hidden" or "project" in name):
            scale = 10 * whole
        elif name.endswith(".bias") and "norm" not in name:
            scale = whole
        assert (a.double() - b).norm() <= tolerance * scale, name
