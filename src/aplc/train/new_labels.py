"""Labels that a network was not trained with, learned from examples with the encoder frozen.

The encoder runs once over the examples. With its states fixed, each new label is a logistic regression of its own,
which has one optimum and needs no schedule. New labels become a cluster of their own beside head and tails
(`LabelClusters.added`), so that no old weight and no old matrix product is touched. The price: new labels see the text
through a representation that was learned without them.

Shapes: N examples, D hidden width, L new labels, C new labels of a block.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from aplc.config import Config
from aplc.data.batches import by_length
from aplc.data.examples import Examples
from aplc.errors import CorpusError
from aplc.models.network import TaggingModel
from aplc.nn.encoder import Encoder

PENALTY = 1.0
"""Weight of the squared norm, in documents: as scikit-learn's LogisticRegression(C=1)."""
LEARNED_AT_ONCE = 512
"""New labels learned at a time."""
ITERATIONS = 100
LEAST_OTHERS = 1_000
"""Where there are fewer, names of the model's other labels stand in for documents about something else."""
FEW, REFITS = 10, 100
"""Labels of at most `FEW` examples are learned once more without each of them, in at most `REFITS` regressions."""

Advance = Callable[[int], None]


def add_labels(
    model: TaggingModel, config: Config, examples: Examples, advance: Advance
) -> tuple[TaggingModel, dict[int, float]]:
    """The network with more labels.

    Also, for labels of few examples, the mean probability that an example would get had it not been among them.
    """
    texts, truth, weights = _with_names(examples)
    n_new = len(examples.names)
    hidden_ND, weight_N = _represent(model, texts, advance), torch.tensor(weights)
    weight_LD, bias_L = regress(hidden_ND, truth, weight_N, n_new)
    return _extended(config, model, weight_LD, bias_L), leave_one_out(hidden_ND, truth, weight_N, n_new)


def _with_names(examples: Examples) -> tuple[list[str], list[list[int]], list[float]]:
    """Texts, labels and weights: a name is one more example of its label."""
    texts, truth = [*examples.texts, *examples.names], [*examples.truth, *([j] for j in range(len(examples.names)))]
    labels, n_others = examples.labels, sum(not row for row in truth)
    others = []
    if n_others < LEAST_OTHERS:
        used = [name for name, active in zip(labels.names, labels.active, strict=True) if active]
        others = [used[i] for i in np.random.default_rng(0).permutation(len(used))[: LEAST_OTHERS - n_others]]
    ones = [1.0] * (len(examples.names) + len(others))
    return [*texts, *others], [*truth, *([] for _ in others)], [*examples.weights, *ones]


def leave_one_out(
    hidden_ND: Tensor, truth: Sequence[Sequence[int]], weight_N: Tensor, n_labels: int
) -> dict[int, float]:
    """For labels of at most `FEW` examples: learn the label without each of them, and see how probable it is there.

    A label's name is learned from, too, but is the last text that has it, and is not left out.
    """
    members: list[list[int]] = [[] for _ in range(n_labels)]
    for i, own in enumerate(truth):
        for j in own:
            members[j].append(i)
    few = [j for j in range(n_labels) if 1 < len(members[j]) <= FEW + 1]
    found = {}
    for j in few[: REFITS // FEW]:
        probs = []
        for i in members[j][:-1]:
            rest_N = weight_N.clone()
            rest_N[i] = 0
            weight_1D, bias_1 = regress(hidden_ND, [[0] if j in own else [] for own in truth], rest_N, 1)
            probs.append(float(torch.sigmoid(hidden_ND[i] @ weight_1D[0] + bias_1[0])))
        found[j] = sum(probs) / len(probs)
    return found


def _represent(model: TaggingModel, texts: list[str], advance: Advance) -> Tensor:
    """The hidden states of texts, (N, D)."""
    hidden_ND = torch.empty(len(texts), model.clusters.in_features)
    for members in by_length([len(text) for text in texts], model.batch_size):
        states = model.read(model.prepare([texts[i] for i in members]))
        hidden_ND[torch.from_numpy(members)] = states.float().cpu()
        advance(len(members))
    return hidden_ND


def regress(
    hidden_ND: Tensor, truth: Sequence[Sequence[int]], weight_N: Tensor, n_labels: int
) -> tuple[Tensor, Tensor]:
    """Weights (L, D) and biases (L,) of one penalised logistic regression a label, by L-BFGS."""
    hidden_ND = hidden_ND.clone()  # out of inference mode
    pairs = torch.tensor([(i, j) for i, row in enumerate(truth) for j in row]).reshape(-1, 2)
    weight_LD, bias_L = torch.zeros(n_labels, hidden_ND.shape[1]), torch.zeros(n_labels)
    for start in range(0, n_labels, LEARNED_AT_ONCE):
        stop = min(start + LEARNED_AT_ONCE, n_labels)
        inside = (pairs[:, 1] >= start) & (pairs[:, 1] < stop)
        y_NC = torch.zeros(len(hidden_ND), stop - start)
        y_NC[pairs[inside, 0], pairs[inside, 1] - start] = 1.0
        total, positive_C = weight_N.sum(), weight_N @ y_NC
        linear = nn.Linear(hidden_ND.shape[1], stop - start)
        with torch.no_grad():
            linear.weight.zero_()
            linear.bias.copy_(torch.log(positive_C / (total - positive_C).clamp_min(0.5)))
        optimizer = torch.optim.LBFGS(linear.parameters(), max_iter=ITERATIONS, line_search_fn="strong_wolfe")

        def closure(linear: nn.Linear = linear, y_NC: Tensor = y_NC, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            losses_NC = nn.functional.binary_cross_entropy_with_logits(linear(hidden_ND), y_NC, reduction="none")
            loss = (weight_N @ losses_NC).sum() + PENALTY / 2 * linear.weight.square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        weight_LD[start:stop], bias_L[start:stop] = linear.weight.detach(), linear.bias.detach()
    if not (bool(weight_LD.isfinite().all()) and bool(bias_L.isfinite().all())):
        raise CorpusError("the new labels could not be learned: weights are not finite")
    return weight_LD, bias_L


def _extended(config: Config, old: TaggingModel, weight_LD: Tensor, bias_L: Tensor) -> TaggingModel:
    """A model with the same weights and one more cluster."""
    options: Any = old.clusters.options
    model = TaggingModel(
        Encoder.from_config(old.encoder.save_config()),
        old.tokenizer,
        config,
        n_labels=old.n_labels + len(bias_L),
        cutoffs=tuple(options["cutoffs"]),
        added=(*options["added"], len(bias_L)),
    )
    last = f"clusters.added.{len(options['added'])}"
    model.load_state_dict(old.state_dict() | {f"{last}.weight": weight_LD, f"{last}.bias": bias_L})
    return model.eval().to(old.device)
