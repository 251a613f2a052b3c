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
        """(B, D) -> (B, d_t), the input of `output`.

        In full precision also under autocast: of a rounded product, ReLU cuts off other dimensions, and the gradients
        of `project` were off by a tenth. The product is small beside that of the labels.
        """
        device = hidden_BD.device.type
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return self.narrow(hidden_BD.to(self.project.weight.dtype))
        rows = self.project(hidden_BD)
        return rows if self.norm is None else F.relu(self.norm(rows))
