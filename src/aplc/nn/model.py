"""APLC-XLNet: encoder, hidden layer, label clusters.

    input_ids (B, T) -> encoder -> pooled_BE -> linear, tanh, dropout -> hidden_BD -> clusters -> loss, or top-k

B documents, T tokens, E encoder width, D hidden width d_h.
"""

from torch import Tensor, nn

from aplc.config import Config
from aplc.data.batches import Batch
from aplc.nn.clusters import LabelClusters
from aplc.nn.encoder import Encoder


class TaggingModel(nn.Module):
    """The paper's Figure 1. `forward` gives the loss of a batch, `topk` its best labels with their probabilities."""

    def __init__(
        self,
        encoder: Encoder,
        config: Config,
        *,
        n_labels: int,
        cutoffs: tuple[int, ...],
        added: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        model, clusters = config.model, config.clusters
        self.encoder = encoder
        self.hidden = nn.Linear(encoder.width, model.hidden_width)
        self.activation = nn.Tanh()
        self.dropout = nn.Dropout(model.hidden_dropout)
        self.clusters = LabelClusters(
            in_features=model.hidden_width,
            cutoffs=list(cutoffs),
            n_labels=n_labels,
            div_value=clusters.div_value,
            objective=clusters.objective,
            tail=clusters.tail,
            bias=clusters.bias,
            min_tail_width=clusters.min_tail_width,
            tail_dropout=clusters.tail_dropout,
            added=added,
        )

    def represent(self, batch: Batch) -> Tensor:
        """hidden_BD, what the clusters see."""
        pooled_BE = self.encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        return self.dropout(self.activation(self.hidden(pooled_BE)))

    def forward(self, batch: Batch, filler: Batch | None = None) -> Tensor:
        """The loss. Of several processes, one with no documents left passes a `filler` that counts nothing.

        Its forward pass keeps the sharded encoder's ranks in step.
        """
        if filler is not None and len(batch) == 0:
            return self.clusters(self.represent(filler)[:0], batch.labels)
        return self.clusters(self.represent(batch), batch.labels)

    def topk(self, batch: Batch, k: int, *, allowed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(probs_BK, ids_BK), best first; fewer than k columns where there are fewer labels."""
        return self.clusters.topk(self.represent(batch), k=k, allowed=allowed)

    def probability_of(self, batch: Batch, label: int) -> Tensor:
        """One label's probability for each document, (B,)."""
        return self.clusters.probability_of(self.represent(batch), label)
