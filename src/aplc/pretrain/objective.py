"""Permutation language modelling on the encoder: two streams and a tied output layer (Yang et al. 2019, Equation 5).

The content stream is the encoder that fine-tuning uses, with one more mask: a token sees itself and what the order puts
before it. The query stream predicts. It starts from `mask_emb` at each target's position, sees what the order puts
before the target but not the target itself, and shares weights, keys and values with the content stream. Its last
states times the word embedding are the logits.

`transformers.XLNetLMHeadModel` computes the query stream for all T positions and the content stream to the end. Here
the query stream has the N targets alone, the last layer has no content stream, since nothing reads it, and the logits
are made a chunk of rows at a time: loss and gradients in one pass. Weights have the names of `XLNetLMHeadModel`:
`transformer.*` and `lm_loss.bias`.

Shapes: B segments, T tokens, M tokens of memory, K = M + T, N targets, R = B * N, V pieces, D width.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from aplc.data.batches import NO_LABEL
from aplc.errors import ModelError
from aplc.files import atomic_path, write_json
from aplc.nn.relative import dropout
from aplc.nn.weights import WEIGHTS, encoder_folder, load_tensors, read_config, read_tensors
from aplc.nn.xlnet import Bias, XLNet, XLNetConfig, XLNetLayer, make_bias
from aplc.pretrain.permutation import PermutationBatch, perm_mask

CHUNK = 1 << 22
"""Logits computed at a time: 16 MB."""


class OutputBias(nn.Module):
    """`lm_loss` of XLNetLMHeadModel without its weight, which is the word embedding."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(vocab_size))


class PermutationLM(nn.Module):
    """An XLNet with the loss of permutation language modelling.

    Args:
        transformer: the encoder that is trained.
    """

    def __init__(self, transformer: XLNet) -> None:
        super().__init__()
        self.transformer = transformer
        self.lm_loss = OutputBias(transformer.config.vocab_size)

    def forward(self, batch: PermutationBatch, mems: Sequence[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
        """The mean cross entropy of the batch's targets, and the memory for the segments that follow."""
        query_BND, mems_out = self.two_streams(
            batch.input_ids, batch.token_type_ids, perm_mask(batch.order), batch.places, mems
        )
        weight_VD = self.transformer.word_embedding.weight
        loss = tied_cross_entropy(query_BND.flatten(0, 1), weight_VD, self.lm_loss.bias, batch.labels.flatten())
        return loss, mems_out

    def two_streams(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor | None,
        perm_mask_BTT: Tensor,
        places_BN: Tensor,
        mems: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """The query stream's last states (B, N, D), and for each layer the memory (B, M', D) after these segments.

        Args:
            input_ids: (B, T), without padding.
            token_type_ids: (B, T), only equality matters; memory counts as 0. None: no segment term at all.
            perm_mask_BTT: True or 1 where token j is hidden from token i. Every target must see some token.
            places_BN: the targets' positions.
            mems: what the call for the segments before gave.
        """
        body = self.transformer
        p, tokens = body.config.dropout, input_ids.shape[1]
        n_keys = tokens + (0 if mems is None else mems[0].shape[1])
        hidden_BTD = dropout(body.word_embedding(input_ids), p, body.training)
        query_BND = dropout(body.mask_emb.expand(*places_BN.shape, -1), p, body.training)
        positions_WD = dropout(body.positions(tokens, n_keys).to(hidden_BTD), p, body.training)
        content, asked = stream_biases(perm_mask_BTT, token_type_ids, n_keys, hidden_BTD.dtype)
        asked = asked.at(places_BN)
        mems_out = []
        for i, layer in enumerate(body.layer):
            memory_BMD = None if mems is None else mems[i]
            mems_out.append(body.remember(hidden_BTD, memory_BMD))
            last = i == len(body.layer) - 1
            assert isinstance(layer, XLNetLayer)
            args = (layer, hidden_BTD, query_BND, memory_BMD, positions_WD, content, asked, places_BN, last)
            if body.checkpoint_activations and torch.is_grad_enabled():
                hidden_BTD, query_BND = checkpoint(_both_streams, *args, use_reentrant=False)
            else:
                hidden_BTD, query_BND = _both_streams(*args)
        return dropout(query_BND, p, body.training), mems_out

    def logits(self, query_BND: Tensor) -> Tensor:
        """(B, N, V), for tests and small vocabularies."""
        return F.linear(query_BND, self.transformer.word_embedding.weight, self.lm_loss.bias)

    @classmethod
    def from_pretrained(cls, name: str | Path, *, checkpoint_activations: bool = False, **changes: Any) -> Self:
        """Load a folder or hub name, with or without a language modelling head; `changes` override config.json."""
        folder = encoder_folder(name)
        config = XLNetConfig.from_dict(read_config(folder) | changes)
        model = cls(XLNet(config, checkpoint_activations=checkpoint_activations))
        tensors = read_tensors(folder)
        left = load_tensors(model.transformer, tensors, source=folder, prefix="transformer.")
        if "lm_loss.bias" in left:
            if tensors["lm_loss.bias"].shape != model.lm_loss.bias.shape:
                raise ModelError(
                    f"{folder}: lm_loss.bias has shape {tuple(tensors['lm_loss.bias'].shape)} but config.json asks "
                    f"for ({config.vocab_size},); weights and config.json are of different models"
                )
            model.lm_loss.load_state_dict({"bias": tensors["lm_loss.bias"]})
        return model

    def save_pretrained(self, folder: str | Path, *, dtype: torch.dtype = torch.float32) -> None:
        """Write config.json and model.safetensors; `transformers.XLNetLMHeadModel.from_pretrained` reads them."""
        folder = Path(folder)
        config = self.transformer.config.to_dict() | {"architectures": ["XLNetLMHeadModel"]}
        write_json(folder / "config.json", config)
        state = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in self.state_dict().items()}
        with atomic_path(folder / WEIGHTS) as temporary:
            save_file(state, temporary, metadata={"format": "pt"})


def _both_streams(
    layer: XLNetLayer,
    hidden_BTD: Tensor,
    query_BND: Tensor,
    memory_BMD: Tensor | None,
    positions_WD: Tensor,
    content: Bias,
    asked: Bias,
    places_BN: Tensor,
    last: bool,
) -> tuple[Tensor, Tensor]:
    """One layer of both streams; after the last one nobody reads the content stream, which is returned as it came."""
    context_BKD = hidden_BTD if memory_BMD is None else torch.cat([memory_BMD, hidden_BTD], 1)
    keys = layer.rel_attn.keys(context_BKD, positions_WD)
    query_BND = layer.ff(layer.rel_attn(query_BND, keys, asked, places_BN))
    if not last:
        hidden_BTD = layer.ff(layer.rel_attn(hidden_BTD, keys, content))
    return hidden_BTD, query_BND


def stream_biases(
    perm_mask_BTT: Tensor, token_type_ids: Tensor | None, n_keys: int, dtype: torch.dtype
) -> tuple[Bias, Bias]:
    """(content stream's, query stream's) masks and segments, (B, T, K). Memory is visible to all."""
    tokens = perm_mask_BTT.shape[1]
    differ_BTK = make_bias(None, token_type_ids, tokens, n_keys, dtype=dtype).differ
    hidden_BTK = F.pad(perm_mask_BTT.bool(), (n_keys - tokens, 0))
    itself_TK = torch.ones(tokens, n_keys, dtype=torch.bool, device=hidden_BTK.device)
    itself_TK = itself_TK.triu(n_keys - tokens).tril(n_keys - tokens)
    low = max(-1e30, torch.finfo(dtype).min)

    def scores(masked_BTK: Tensor) -> Tensor:
        return torch.zeros(masked_BTK.shape, dtype=dtype, device=masked_BTK.device).masked_fill_(masked_BTK, low)

    return Bias(scores(hidden_BTK & ~itself_TK), differ_BTK), Bias(scores(hidden_BTK), differ_BTK)


def tied_cross_entropy(hidden_RD: Tensor, weight_VD: Tensor, bias_V: Tensor, labels_R: Tensor) -> Tensor:
    """Mean cross entropy of `hidden @ weight.T + bias` without ever holding all logits; NO_LABEL rows count nothing."""
    kept_R = (labels_R != NO_LABEL).nonzero().squeeze(1)
    return _TiedCrossEntropy.apply(hidden_RD[kept_R], weight_VD, bias_V, labels_R[kept_R])


class _TiedCrossEntropy(torch.autograd.Function):
    """dL/dlogits = (softmax - onehot) / R, used at once for the three gradients and then overwritten."""

    @staticmethod
    def forward(ctx: Any, hidden_RD: Tensor, weight_VD: Tensor, bias_V: Tensor, labels_R: Tensor) -> Tensor:
        dtype = hidden_RD.dtype
        with torch.autocast(hidden_RD.device.type, enabled=False):
            hidden_RD = hidden_RD.to(weight_VD.dtype)
            total, count = hidden_RD.new_zeros(()), max(1, len(labels_R))
            training = any(ctx.needs_input_grad)
            if training:
                grads = (torch.empty_like(hidden_RD), torch.zeros_like(weight_VD), torch.zeros_like(bias_V))
            step = max(1, CHUNK // len(weight_VD))
            for start in range(0, len(labels_R), step):
                rows_CD, labels_C = hidden_RD[start : start + step], labels_R[start : start + step, None]
                logits_CV = torch.addmm(bias_V, rows_CD, weight_VD.t())
                norm_C1 = logits_CV.logsumexp(1, keepdim=True)
                total += (norm_C1 - logits_CV.gather(1, labels_C)).sum()
                if training:
                    delta_CV = logits_CV.sub_(norm_C1).exp_()
                    delta_CV.scatter_add_(1, labels_C, delta_CV.new_full(labels_C.shape, -1.0))
                    torch.mm(delta_CV, weight_VD, out=grads[0][start : start + step])
                    grads[1].addmm_(delta_CV.t(), rows_CD)
                    grads[2].add_(delta_CV.sum(0))
        if training:
            ctx.save_for_backward(*grads)
            ctx.count, ctx.dtype = count, dtype
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dhidden_RD, dweight_VD, dbias_V = (saved * (grads[0] / ctx.count) for saved in ctx.saved_tensors)
        return dhidden_RD.to(ctx.dtype), dweight_VD, dbias_V, None
