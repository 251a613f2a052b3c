"""A run that trains both parts of a model: first the words, which take minutes, then the network, then their blend.

From the network's first epoch on the folder holds a model that can be used; until the end it answers with the words
alone. `--resume` finds the words there and goes on with the network's newest checkpoint; the blend is learned again.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from aplc.config import Config
from aplc.console import Screen
from aplc.data.batches import by_length
from aplc.data.cache import blocks
from aplc.data.examples import Examples
from aplc.data.source import TrainingData
from aplc.errors import ModelError
from aplc.files import read_json
from aplc.models.base import BLEND_FILE, WORDS_FILE
from aplc.models.blend import CANDIDATES, Blend, Pairs
from aplc.models.both import BothModel, save_blend
from aplc.models.trained import TrainedTagger
from aplc.nn.distributed import world
from aplc.predict.search import DOCUMENTS_AT_ONCE
from aplc.store.digests import changing
from aplc.store.folder import load_tagger, lost_files
from aplc.store.safety import CONFIG
from aplc.train import update
from aplc.train.network import Tokens, encoder_to_train, fit_network
from aplc.train.run_folder import RunFolder
from aplc.words import later
from aplc.words import model as words_models
from aplc.words.blocks import FOLDER, Blocks
from aplc.words.fit import fit_words
from aplc.words.index import best_columns
from aplc.words.model import Floats, WordsModel


def fit(data: TrainingData, config: Config, folder: RunFolder, screen: Screen) -> None:
    """Train both parts and leave them in the folder, blended."""
    if not len(data.valid_rows):
        screen.say(
            "blend: no documents are held out to learn it from, so the words alone will count; set data.validation"
        )
    of_network = data.with_seen_labels()
    tokens = Tokens.of(of_network, config, screen)
    folder.check(tokens.identity)
    words, alone = _words_of(folder, data, config, screen), Blend.of_words_alone(len(data.labels))
    world().barrier()  # every process has looked before the first one writes
    if words is None:
        encoder_to_train(config, tokens.tokenizer)  # what is wrong with it is said before the words take their time
        blocks = Blocks(folder.path / FOLDER, begin=lambda: folder.begin(tokens.identity))
        words = fit_words(data, config, screen, blocks)
        folder.begin(tokens.identity)
        with changing(folder.path):
            words.save_weights(folder.path, WORDS_FILE)
        world().barrier()
        blocks.remove()
    if not (folder.path / BLEND_FILE).is_file() or BLEND_FILE in lost_files(folder.path):
        with changing(folder.path):
            save_blend(alone, folder.path)
    fit_network(
        of_network, tokens, config, folder, screen, lambda network: BothModel(words, network, alone), data.labels
    )
    blend, found = learn_blend(load_tagger(folder.path), data, screen)
    world().barrier()
    with changing(folder.path):
        save_blend(blend, folder.path)
    world().barrier()
    screen.say(f"blend: {found}")


def _words_of(folder: RunFolder, data: TrainingData, config: Config, screen: Screen) -> WordsModel | None:
    """The words part that an earlier session of this run left, if it is whole."""
    path = folder.path
    if not (folder.started and (path / CONFIG).is_file() and (path / WORDS_FILE).is_file()):
        return None
    if WORDS_FILE in lost_files(path):
        return None
    try:
        settings = read_json(path / CONFIG) | {"n_labels": len(data.labels)}
        words = words_models.load(path, settings, config, WORDS_FILE)
    except ModelError:
        return None
    screen.say("words: found in the folder, not fitted again")
    return words


def learn_blend(trained: TrainedTagger, data: TrainingData, screen: Screen) -> tuple[Blend, str]:
    """The blend that the held-out documents suggest, and what was found."""
    model = trained.model
    assert isinstance(model, BothModel)
    if not len(data.valid_rows):
        return Blend.of_words_alone(model.n_labels), "words alone; no documents were held out to learn more from"
    parts, seen = [], 0
    with screen.bar("blending", len(data.valid_rows)) as advance:
        for block in blocks(data.held_out(), DOCUMENTS_AT_ONCE):
            texts = [document.text for document in block]
            truth = [trained.labels.encode(document.labels) for document in block]
            for members in by_length([len(text) for text in texts], model.batch_size):
                opinions = model.opinions(model.prepare([texts[i] for i in members]))
                known = [logits_BL[:, : model.network.n_labels] for logits_BL in opinions]
                parts.append(pairs_of(seen + members, [truth[i] for i in members], *known))
                advance(len(members))
            seen += len(block)
    document, *others = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(document, kind="stable")
    return Blend.learn(Pairs(document[order], *(column[order] for column in others)), trained.labels.counts)


def pairs_of(
    document_B: NDArray[np.int64], truth: Sequence[Sequence[int]], words_BL: Floats, network_BL: Floats
) -> tuple[NDArray, ...]:
    """The columns of `Pairs` for a batch."""
    k = min(CANDIDATES, words_BL.shape[1])
    best = [np.unique(row) for row in np.concatenate([best_columns(words_BL, k), best_columns(network_BL, k)], 1)]
    row, label = np.repeat(np.arange(len(best)), list(map(len, best))), np.concatenate(best)
    hit = np.concatenate([np.isin(own, true) for own, true in zip(best, truth, strict=True)])
    return document_B[row], label, words_BL[row, label], network_BL[row, label], hit


def add_labels(
    model: BothModel, config: Config, examples: Examples, advance: Callable[[int], None]
) -> tuple[BothModel, dict[int, float]]:
    """Both parts, with more labels in the words part: the network has nothing to say of them."""
    words, left_out = later.add_labels(model.words, config, examples, advance)
    more = Blend.of_words_alone(len(examples.names))
    blend = Blend(np.concatenate([model.blend.curve_3L, more.curve_3L], 1))
    return replace(model, words=words, blend=blend), left_out


def learn(model: BothModel, config: Config, texts: list[str], truth: Sequence[Sequence[int]]) -> BothModel:
    """Both parts after more documents: one gentle pass of the network over the labels it knows, and the words."""
    known = [[label for label in own if label < model.network.n_labels] for own in truth]
    network = update.learn(model.network, config, texts, known)
    return replace(model, words=later.learn(model.words, config, texts, truth), network=network)
