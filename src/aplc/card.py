"""The model card: what a model folder says of itself to people and to the hub."""

from aplc import __version__
from aplc.config import Config
from aplc.data.labels import LabelSet

TEMPLATE = """\
---
library_name: aplc
pipeline_tag: text-classification
tags: [extreme-multi-label, aplc-xlnet]
---

# A tagger of {n_labels:,} labels

APLC-XLNet (Ye et al., ICML 2020), trained with aplc {version} on {n_documents:,} documents.

```python
from aplc import Tagger

tagger = Tagger.from_pretrained("path/of/this/folder")
tagger.predict("a text", top_k=5)  # [(label, probability), ...]
```

Encoder `{encoder}`, hidden layer of {hidden}, up to {length} tokens of a text, {epochs} epochs at most.
The label in the middle of the frequency order has {median:,} training documents. Rare labels are found less often
than frequent ones; `aplc evaluate` shows by how much. Only labels listed in `labels.txt` are ever predicted.
"""


def model_card(config: Config, labels: LabelSet, n_documents: int) -> str:
    return TEMPLATE.format(
        n_labels=len(labels),
        version=__version__,
        n_documents=n_documents,
        encoder=config.model.encoder,
        hidden=config.model.hidden_width,
        length=config.data.max_length,
        epochs=config.train.epochs,
        median=int(labels.counts[len(labels) // 2]),
    )
