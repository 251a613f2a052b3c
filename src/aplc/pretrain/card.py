"""The card of a pretrained encoder, what its folder says of itself, and the curve of its held-out loss."""

import json
from pathlib import Path

from aplc.pretrain.config import PretrainConfig
from aplc.pretrain.objective import PermutationLM
from aplc.pretrain.prepare import PretrainingData
from aplc.version import __version__

TEMPLATE = """\
---
library_name: aplc
tags: [xlnet, permutation-language-modelling]
---

# An XLNet of {layers} layers x {width}

Pretrained by permutation language modelling with aplc {version}, {start}.

| | |
| --- | --- |
| weights | {parameters:,} |
| vocabulary | {pieces:,} pieces |
| text | {documents:,} documents, {tokens:,} tokens |
| trained | {step:,} steps of {rows} segments of {length} tokens, memory {memory}: {passes:.1f} passes over the text |
| held-out loss | {loss} |

```sh
aplc train CORPUS --out MODEL --set model.encoder=path/of/this/folder
```

`transformers.XLNetLMHeadModel.from_pretrained` reads it, too. It knows the language of its training text and little
else, and what is wrong or one-sided in that text may show in what is built on it.
"""


def encoder_card(
    model: PermutationLM, data: PretrainingData, config: PretrainConfig, loss: float | None, baseline: float, step: int
) -> str:
    sizes, train = model.transformer.config, data.train
    held_out = "not measured"
    if loss is not None:
        held_out = f"{loss:.3f} a token; the unigram distribution has {baseline:.3f}"
    return TEMPLATE.format(
        layers=sizes.n_layer,
        width=sizes.d_model,
        version=__version__,
        start="from random weights" if config.model.encoder == "new" else f"from `{config.model.encoder}`",
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        pieces=sizes.vocab_size,
        documents=len(train.rows),
        tokens=train.n_tokens,
        step=step,
        rows=train.batch_size,
        length=train.length,
        memory=config.data.memory,
        passes=step / len(train),
        loss=held_out,
    )


def draw_curve(metrics: Path, picture: Path) -> None:
    """Held-out loss over steps beside the unigram distribution's, from a run's metrics.jsonl, as .svg or .png."""
    from aplc.evaluate.pictures import LINES, SERIES, figure, save_picture, style

    lines = map(json.loads, metrics.read_text("utf-8").splitlines())
    points = [(line["step"], line["held_out"], line["unigram"]) for line in lines if line.get("held_out")]
    steps, losses, baselines = zip(*points, strict=True)
    with style():
        made, (axes,) = figure()
        axes.plot(steps, losses, color=SERIES[0], marker="o", label="permutation language model")
        axes.plot(steps, baselines, color=SERIES[1], linestyle=LINES[1], label="unigram distribution")
        axes.set(xlabel="step", ylabel="held-out loss a token (nats)")
        axes.legend()
    save_picture(made, picture)
