"""The loss of one cluster and all its gradients in one sweep over its labels.

The idea: the gradients of Equation 5 have a closed form, so each chunk of labels is visited once. Its logits become the
loss and then, in place, dL/dlogits, from which the chunk's weight gradient and its share of the rows' gradient are
computed at once: three matrix products, each on a chunk that stays in cache, and no tensor of size rows x labels.

The price: weight gradients take memory from the forward pass on; a loss that is scaled before `backward` (gradient
accumulation, a GradScaler) costs one more pass over them; and there is no second derivative.

A row is one hidden state. Shapes: R rows that visit the cluster, D their width, L the cluster's leaves (labels), K
roots (further outputs of the head), C labels of a chunk, P positive (label, row) pairs.
"""

import weakref
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aplc import native

_softplus: Any = torch._C._nn.softplus  # F.softplus has no out=
LARGEST_ROOT = 70
"""With a larger root logit, odds lose digits or overflow in float32."""


def softplus(x: Tensor, out: Tensor | None = None) -> Tensor:
    """log(1 + e^x). The threshold of 40 (PyTorch's is 20) keeps the float64 error below 1e-17."""
    return _softplus(x, 1.0, 40.0, out=out)


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """Element-wise work and sums run in float64 if anything is float64, else in float32; never in half precision."""
    return torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32


def product_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """Matrix products run in autocast's dtype where autocast is on."""
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and compute_dtype(hidden, weight) != torch.float64:
        return torch.get_autocast_dtype(device)
    return torch.promote_types(hidden.dtype, weight.dtype)


class KeptGradients:
    """Memory of weight gradients, used again in the next step.

    `zero_grad()` frees gradients, and the page faults of new memory for 640 MB of them take a good part of a step. So
    the layer keeps the memory and lends it out through NumPy: the lent tensor and all that shares its memory (`.grad`,
    views, arrays) keep one array object alive, and while a weak reference finds that, the memory is not lent again. A
    gradient that anybody still holds is never overwritten. Copies and pickles of the layer start without any.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Tensor, weakref.ref[NDArray[np.uint8]]]] = {}

    def __reduce__(self) -> tuple[type["KeptGradients"], tuple[()]]:
        return KeptGradients, ()

    def take(self, name: int, like: Tensor) -> Tensor:
        """Uninitialised memory shaped as `like`, which nobody else holds."""
        kept, lent = self._kept.get(name, (None, None))
        is_free = lent is not None and lent() is None
        if kept is None or not is_free or kept.shape != like.shape or kept.dtype != like.dtype:
            kept = torch.empty_like(like, memory_format=torch.contiguous_format)
        if kept.device.type != "cpu":
            return kept  # CUDA's allocator keeps memory itself
        array = kept.view(torch.uint8).numpy()  # bytes, as NumPy has no bfloat16
        self._kept[name] = kept, weakref.ref(array)
        return torch.from_numpy(array).view(like.dtype)


class Settings(NamedTuple):
    """The inputs of a sweep that are not tensors."""

    n_leaves: int  # the first outputs are labels; in the head, the roots of the tails follow
    chunk_size: int
    product_dtype: torch.dtype
    with_gradients: bool
    with_weight: bool  # whether the weight needs a gradient, too
    kept: KeptGradients
    name: int  # of the weight, for `kept`


class Inputs(NamedTuple):
    """The tensors of a sweep. For the head, `roots` is None."""

    rows: Tensor  # (R, D)
    roots: Tensor | None  # (R,), the logits c of the cluster's own root
    weight: Tensor  # (L + K, D)
    bias: Tensor | None  # (L + K,)
    label: Tensor  # (P,), sorted
    row: Tensor  # (P,)
    row_weight: Tensor  # (R,)


class Gradients(NamedTuple):
    rows: Tensor
    roots: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


class ClusterLoss(torch.autograd.Function):
    """Weighted sum over rows of one cluster's binary cross-entropy, and the logits of the roots below it.

    For the head `roots` is None, p = sigmoid(z), and the logits c_RK of the K roots are the second output. For a tail
    p = sigmoid(c) sigmoid(z) with c = `roots`, and the second output is empty, (R, 0).
    """

    @staticmethod
    def forward(ctx: Any, settings: Settings, *tensors: Any) -> tuple[Tensor, Tensor]:
        inputs, n_leaves = Inputs(*tensors), settings.n_leaves
        ctx.settings = settings
        ctx.save_for_backward(*inputs)
        with torch.autocast(inputs.rows.device.type, enabled=False):
            loss, ctx.gradients = sweep(inputs, settings)
            if len(inputs.weight) == n_leaves:
                return loss, inputs.rows.new_empty(len(inputs.rows), 0)
            bias = None if inputs.bias is None else inputs.bias[n_leaves:]
            return loss, logits_of(inputs.rows, inputs.weight[n_leaves:], bias, settings.product_dtype).t()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, grad_below_RK: Tensor) -> tuple[Tensor | None, ...]:
        inputs, n_leaves = Inputs(*ctx.saved_tensors), ctx.settings.n_leaves
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:  # a second backward pass: the first one handed the gradients over
            _, gradients = sweep(inputs, ctx.settings)
        if grad_loss.device.type != "cpu" or grad_loss.item() != 1:  # on a GPU the comparison would wait for the device
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(grad_loss.to(gradient.dtype))
        if grad_below_RK.shape[1]:
            dtype = gradients.rows.dtype
            gradients.rows.addmm_(grad_below_RK, inputs.weight[n_leaves:].to(dtype))
            if gradients.weight is not None:
                gradients.weight[n_leaves:] = grad_below_RK.t() @ inputs.rows.to(dtype)
            if gradients.bias is not None:
                gradients.bias[n_leaves:] = grad_below_RK.sum(0)
        return None, gradients.rows.to(inputs.rows.dtype), *gradients[1:], None, None, None


def logits_of(rows_RD: Tensor, weight_CD: Tensor, bias_C: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Logits (C, R): the product in `dtype`, the result in `compute_dtype`."""
    logits_CR = (weight_CD.to(dtype) @ rows_RD.to(dtype).t()).to(compute_dtype(rows_RD, weight_CD))
    return logits_CR if bias_C is None else logits_CR + bias_C[:, None]


def sweep(inputs: Inputs, settings: Settings) -> tuple[Tensor, Gradients | None]:
    """Loss and gradients of one cluster."""
    wanted = settings.with_gradients
    grad_weight = settings.kept.take(settings.name, inputs.weight) if wanted and settings.with_weight else None
    grad_bias = torch.empty_like(inputs.bias) if wanted and inputs.bias is not None else None
    run = native_sweep if _suits_native(inputs, settings) else chunked_sweep
    loss, grad_rows_RD, grad_roots_R = run(inputs, settings, grad_weight, grad_bias)
    if grad_rows_RD is None:
        return loss, None
    return loss, Gradients(grad_rows_RD, grad_roots_R, grad_weight, grad_bias)


def _suits_native(inputs: Inputs, settings: Settings) -> bool:
    """The compiled sweep is for training on a CPU in float32. For wrong shapes, PyTorch raises better errors."""
    rows, roots, weight, bias, *_ = inputs
    return (
        settings.with_gradients
        and settings.with_weight
        and settings.product_dtype == torch.float32
        and all(
            x.device.type == "cpu" and x.dtype == torch.float32 for x in (rows, roots, weight, bias) if x is not None
        )
        and weight.is_contiguous()
        and weight.shape[1] == rows.shape[1]
        and len(weight) >= settings.n_leaves > 0
        and (bias is None or (bias.is_contiguous() and len(bias) == len(weight)))
        and len(rows) > 0
        and (roots is None or bool(roots.max() <= LARGEST_ROOT))
        and native.library() is not None
    )


def native_sweep(
    inputs: Inputs, settings: Settings, grad_weight: Tensor | None, grad_bias: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """`chunked_sweep` in one call of compiled code (sweep.c)."""
    rows_RD, loss = inputs.rows.contiguous(), inputs.rows.new_empty(())
    roots_R = None if inputs.roots is None else inputs.roots.contiguous()
    grad_rows_RD = torch.empty_like(rows_RD)
    grad_roots_R = None if roots_R is None else torch.empty_like(roots_R)
    native.sweep(
        (settings.n_leaves, *rows_RD.shape, len(inputs.label)),
        *(inputs.weight, inputs.bias, rows_RD, inputs.row_weight, roots_R, inputs.label, inputs.row),
        *(loss, grad_weight, grad_bias, grad_rows_RD, grad_roots_R),
    )
    return loss, grad_rows_RD, grad_roots_R


def chunked_sweep(
    inputs: Inputs, settings: Settings, grad_weight: Tensor | None, grad_bias: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The loss, and the gradients of rows and roots if wanted. Fills in the gradients of weight and bias."""
    n_rows, n_leaves, chunk_size = len(inputs.rows), settings.n_leaves, settings.chunk_size
    dtype, device = compute_dtype(inputs.rows, inputs.weight), inputs.rows.device
    products = _Products(inputs, settings, dtype, grad_weight)
    terms = _HeadTerms() if inputs.roots is None else _TailTerms(inputs.roots.to(dtype))
    work = torch.empty(3, min(chunk_size, n_leaves), n_rows, dtype=dtype, device=device)
    loss_R = torch.zeros(n_rows, dtype=torch.float64, device=device)

    starts = list(range(0, n_leaves, chunk_size))
    edges = torch.tensor([*starts, n_leaves], device=device)
    first_P = torch.searchsorted(inputs.label, edges).tolist()  # chunk i has positives first_P[i] to first_P[i + 1]
    flat_P = (inputs.label % chunk_size) * n_rows + inputs.row  # a positive's index in its chunk, flattened
    for start, (first, last) in zip(starts, pairwise(first_P), strict=True):
        stop = min(start + chunk_size, n_leaves)
        logits_CR, spare_CR, spare2_CR = (buffer[: stop - start] for buffer in work)
        products.logits(start, stop, out=logits_CR)
        if inputs.bias is not None:
            logits_CR += inputs.bias[start:stop, None]
        positive = (flat_P[first:last], inputs.row[first:last]) if last > first else None
        # This overwrites the logits, with dL/dlogits if gradients are wanted.
        loss_R += terms(logits_CR, spare_CR, spare2_CR, positive, settings.with_gradients)
        if settings.with_gradients:
            products.gradients(start, stop, logits_CR)
            if grad_bias is not None:
                grad_bias[start:stop] = logits_CR @ products.row_weight_R
    loss = (loss_R @ inputs.row_weight.double()).to(dtype)
    if not settings.with_gradients:
        return loss, None, None
    return loss, products.rows_gradient(), terms.roots_gradient(inputs.row, products.row_weight_R)


class _HeadTerms:
    """p = sigmoid(z): -log(1-p) = softplus(z), d/dz = p; for a positive -log p = softplus(-z), d/dz = p - 1."""

    def __call__(
        self, z_CR: Tensor, a_CR: Tensor, b_CR: Tensor, positive: tuple[Tensor, Tensor] | None, with_gradients: bool
    ) -> Tensor:
        """The chunk's loss per row. Leaves dL/dz in `z_CR`; `a_CR` and `b_CR` are scratch."""
        softplus(z_CR, out=a_CR)
        if positive is not None:
            z_P = z_CR.take(positive[0])
            a_CR.put_(positive[0], softplus(-z_P))
        if with_gradients:
            z_CR.sigmoid_()
            if positive is not None:
                z_CR.put_(positive[0], -torch.sigmoid(-z_P))
        return a_CR.sum(0)

    def roots_gradient(self, row_P: Tensor, row_weight_R: Tensor) -> None:
        """The head has no root."""


class _TailTerms:
    """p = sigmoid(c) sigmoid(z), with no subtraction of nearly equal numbers anywhere.

    The odds of p are o = sigmoid(c) / (e^-z + sigmoid(-c)), from which
        -log(1-p) = log(1 + o),  d/dz = o sigmoid(-z),  d/dc = o sigmoid(-c),
        -log p = softplus(-z) + softplus(-c),  d/dz = sigmoid(z) - 1,  d/dc = sigmoid(c) - 1.
    The odds overflow only if c and z are both very large; for such roots `_log_odds` computes the same more slowly.
    """

    def __init__(self, roots_R: Tensor) -> None:
        self.roots_R, self.minus_log_root_R = roots_R, softplus(-roots_R)
        self.root_R, self.no_root_R = torch.sigmoid(roots_R), torch.sigmoid(-roots_R)
        self.pull_R = torch.zeros_like(roots_R, dtype=torch.float64)  # sum over negatives of d/dc
        self.is_extreme = bool((roots_R > LARGEST_ROOT).any())

    def __call__(
        self, z_CR: Tensor, a_CR: Tensor, b_CR: Tensor, positive: tuple[Tensor, Tensor] | None, with_gradients: bool
    ) -> Tensor:
        if positive is not None:
            z_P = z_CR.take(positive[0])
        z_CR.neg_()
        if self.is_extreme:
            pull_CR = self._log_odds(z_CR, a_CR, b_CR)
        else:
            torch.exp(z_CR, out=a_CR)
            torch.div(self.root_R, a_CR.add_(self.no_root_R), out=a_CR)  # odds
            torch.log1p(a_CR, out=b_CR)
            z_CR.sigmoid_().mul_(a_CR)
            pull_CR = a_CR.mul_(self.no_root_R)
        if positive is not None:
            b_CR.put_(positive[0], softplus(-z_P) + self.minus_log_root_R[positive[1]])
            z_CR.put_(positive[0], -torch.sigmoid(-z_P))
            pull_CR.put_(positive[0], torch.zeros_like(z_P))
        if with_gradients:
            self.pull_R += pull_CR.sum(0)
        return b_CR.sum(0)

    def roots_gradient(self, row_P: Tensor, row_weight_R: Tensor) -> Tensor:
        n_positive_R = torch.bincount(row_P, minlength=len(self.roots_R))
        return (self.pull_R.to(self.roots_R.dtype) - self.no_root_R * n_positive_R) * row_weight_R

    def _log_odds(self, minus_z_CR: Tensor, a_CR: Tensor, b_CR: Tensor) -> Tensor:
        """The same from log o = c - softplus(s - z), s = softplus(c): loss in b, d/dz in minus_z; returns d/dc."""
        soft_R = softplus(self.roots_R)
        torch.add(minus_z_CR, soft_R, out=a_CR)  # s - z
        odds_CR = self.roots_R - softplus(a_CR)
        softplus(odds_CR, out=b_CR)
        torch.mul(torch.sigmoid(odds_CR), torch.sigmoid(a_CR), out=minus_z_CR)
        return torch.mul(torch.sigmoid(a_CR.neg_()), self.root_R, out=a_CR)


class _Products:
    """The three products of a chunk. Row weights are multiplied into the (R, D) factors, not into the larger (C, R)."""

    def __init__(self, inputs: Inputs, settings: Settings, compute: torch.dtype, grad_weight_LD: Tensor | None) -> None:
        self.row_weight_R, self.weight_LD, self.dtype = (
            inputs.row_weight.to(compute),
            inputs.weight,
            settings.product_dtype,
        )
        self.in_place = self.dtype == compute == self.weight_LD.dtype
        self.rows_RD = inputs.rows.to(self.dtype)
        self.grad_weight_LD = grad_weight_LD
        if not settings.with_gradients:
            return
        self.sum_RD = torch.zeros(inputs.rows.shape, dtype=compute, device=inputs.rows.device)
        # Row weights of about 1e-8 would underflow in float16, so half-precision products use their ratios.
        self.scale = 1.0 if self.in_place or not len(self.rows_RD) else self.row_weight_R.max()
        self.weighted_RD = (inputs.rows.to(compute) * (self.row_weight_R / self.scale)[:, None]).to(self.dtype)

    def logits(self, start: int, stop: int, out: Tensor) -> None:
        weight_CD = self.weight_LD[start:stop]
        if self.in_place:
            torch.mm(weight_CD, self.rows_RD.t(), out=out)
        else:
            out.copy_(weight_CD.to(self.dtype) @ self.rows_RD.t())

    def gradients(self, start: int, stop: int, grad_CR: Tensor) -> None:
        weight_CD = self.weight_LD[start:stop]
        if self.in_place:
            self.sum_RD.addmm_(grad_CR.t(), weight_CD)
            if self.grad_weight_LD is not None:
                torch.mm(grad_CR, self.weighted_RD, out=self.grad_weight_LD[start:stop])
            return
        grad_CR = grad_CR.to(self.dtype)
        self.sum_RD += grad_CR.t() @ weight_CD.to(self.dtype)
        if self.grad_weight_LD is not None:
            product_CD = (grad_CR @ self.weighted_RD).to(self.row_weight_R.dtype)
            self.grad_weight_LD[start:stop] = product_CD * self.scale

    def rows_gradient(self) -> Tensor:
        return self.sum_RD.mul_(self.row_weight_R[:, None])
