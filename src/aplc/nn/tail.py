"""One tail of the label clusters, without its root, which is an output of the head.

Shapes: B rows, D width of the hidden state, d_t width of the tail.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Tail(nn.Module):
    """A projection to fewer dimensions, d_t = D // q^t, and a linear output to the tail's labels."""

    norm: nn.LayerNorm | None

    def __init__(
        self,
        in_features: int,
        width: int,
        n_labels: int,
        *,
        bias: bool,
        normed: bool,
        dropout: float,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.project = nn.Linear(in_features, width, bias=False, device=device, dtype=dtype)
        self.norm = nn.LayerNorm(width, device=device, dtype=dtype) if normed else None
        self.output = nn.Linear(width, n_labels, bias=bias, device=device, dtype=dtype)

    def narrow(self, hidden_BD: Tensor) -> Tensor:
        """(B, D) -> (B, d_t), the input of `output`."""
        rows = self.project(hidden_BD)
        return rows if self.norm is None else F.relu(self.norm(rows))
