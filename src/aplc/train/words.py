"""A run that fits a words model. Labels are solved for in blocks, and finished ones are kept: a killed run goes on.

Under `torchrun` the processes share the blocks out; `--out` must then be a folder that all of them reach.
"""

from aplc.config import Config
from aplc.console import Screen
from aplc.data.source import TrainingData
from aplc.errors import RunError
from aplc.models.trained import TrainedTagger
from aplc.nn.distributed import world
from aplc.nn.weights import WEIGHTS
from aplc.store.folder import lost_files, save_tagger
from aplc.train.run_folder import RunFolder
from aplc.words.blocks import FOLDER, Blocks
from aplc.words.fit import fit_words, without_effect


def fit(data: TrainingData, config: Config, folder: RunFolder, screen: Screen) -> None:
    """Fit a words model and leave it in the folder."""
    identity = {"config": config.to_dict(), **data.source.identity}
    folder.check(identity)
    if folder.started and (folder.path / WEIGHTS).is_file() and not lost_files(folder.path):
        screen.say(f"this run is finished; its model is in {folder.path}")
        return
    if idle := without_effect(config):
        screen.say(f"these settings have no effect on a words model: {', '.join(idle)}")
    blocks = Blocks(folder.path / FOLDER, begin=lambda: folder.begin(identity))
    try:
        model = fit_words(data, config, screen, blocks)
    except RunError:
        if not folder.started:  # with these settings it would end in the same way again
            blocks.remove()
            folder.forget()
        raise
    folder.begin(identity)
    trained = TrainedTagger(
        config=config, model=model, labels=data.labels, n_documents=data.n_documents, vocabulary=data.vocabulary
    )
    save_tagger(trained, folder.path)
    world().barrier()
    blocks.remove()
