"""Commands that train, and one that estimates what training will cost."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from aplc.cli.columns import as_options, reads_columns
from aplc.cli.common import (
    CorpusArgument,
    DeviceOption,
    LanguageOption,
    NetworkPresetOption,
    OnBadRow,
    PresetOption,
    SetOption,
    VocabularyOption,
    check_outputs,
    open_corpus,
    say_rejects,
)
from aplc.cli.help import options, say_next
from aplc.config import AUTO
from aplc.data.columns import Columns

ResumeOption = Annotated[bool, typer.Option("--resume", help="Resume from the newest intact checkpoint in --out.")]


@reads_columns
def plan(
    corpus: CorpusArgument,
    preset: PresetOption = AUTO,
    set_: SetOption = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file; - for standard output.")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(min=0, help="GB of memory to plan for; otherwise what this machine has.")
    ] = None,
    vocabulary: VocabularyOption = None,
    language: LanguageOption = None,
    device: DeviceOption = None,
    on_bad_row: OnBadRow = "stop",
    *,
    columns: Columns,
) -> None:
    """Show what a training run will cost: clusters, parameters, memory and time per epoch."""
    from aplc.console import Screen
    from aplc.files import output_json

    messages_to = check_outputs(json_file=json_file, corpora=[corpus], inputs=[vocabulary])
    from aplc.train.auto import configure

    screen = Screen()
    config = configure(preset, set_ or [], screen)
    with open_corpus(corpus, on_bad_row, Path("rejects.jsonl"), columns) as opened:
        from aplc.data.source import Source
        from aplc.models.base import training_of

        limit = None if memory is None else memory * 1e9
        source = Source.from_corpus(opened, vocabulary, language)
        planned = training_of(config).plan(source, config, memory=limit, screen=screen)
    print(planned.render(), file=messages_to)
    if json_file:
        output_json(json_file, planned.to_dict())
    given = options(
        preset=None if preset == AUTO else preset, set_=set_ or [], vocabulary=vocabulary, language=language
    )
    say_next("train", corpus, *given, *as_options(columns), "--out", "model")


@reads_columns
def pretrain(
    corpus: Annotated[
        Path, typer.Argument(help="A corpus (its test part is not read), a folder of text files, or one file.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the encoder, its checkpoints and metrics.jsonl.")],
    preset: Annotated[str, typer.Option(help="A size: mini, small or base; or a TOML file.")] = "mini",
    set_: SetOption = None,
    encoder: Annotated[
        str | None, typer.Option(help="Start from this XLNet, a folder or hub name; same as --set model.encoder.")
    ] = None,
    resume: ResumeOption = False,
    device: DeviceOption = None,
    on_bad_row: OnBadRow = "stop",
    *,
    columns: Columns,
) -> None:
    """Learn an encoder from plain text by permutation language modelling, for aplc train --set model.encoder=DIR."""
    from aplc.console import Screen
    from aplc.data.formats import BadRows
    from aplc.pretrain.config import PretrainConfig

    settings = [*(set_ or []), *([f"model.encoder={encoder}"] if encoder else [])]
    config = PretrainConfig.from_preset(preset).with_settings(settings)
    from aplc.pretrain.prepare import open_texts
    from aplc.pretrain.run import pretrain as pretrain_run

    bad_rows = BadRows(on_bad_row, out / "rejects.jsonl")
    pretrain_run(open_texts(corpus, bad_rows, columns), config, out, resume=resume, screen=Screen())
    say_rejects(bad_rows)
    print(f"encoder: {out}")
    say_next("train", "CORPUS", "--preset", "both", "--set", f"model.encoder={out}", "--out", "model")


@reads_columns
def train(
    corpus: CorpusArgument,
    out: Annotated[Path, typer.Option(help="Folder for the model, its checkpoints and metrics.jsonl.")],
    preset: PresetOption = AUTO,
    vocabulary: VocabularyOption = None,
    language: LanguageOption = None,
    set_: SetOption = None,
    more: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Train on the documents of this file, too: feedback of aplc serve, or any corpus file. None of them "
            "is held out. Can be given several times.",
        ),
    ] = None,
    resume: ResumeOption = False,
    device: DeviceOption = None,
    on_bad_row: OnBadRow = "stop",
    *,
    columns: Columns,
) -> None:
    """Train a model on a corpus' train part."""
    from aplc.console import Screen
    from aplc.train.auto import configure

    screen = Screen()
    config = configure(preset, set_ or [], screen, resumed=out if resume else None)
    with open_corpus(corpus, on_bad_row, out / "rejects.jsonl", columns) as opened:
        from aplc.data.source import Source
        from aplc.train.run import train as train_run

        source = Source.from_corpus(opened, vocabulary, language, more or [])
        train_run(source, config, out, resume=resume, screen=screen)
    print(f"model: {out}")
    if corpus.is_dir():
        say_next("evaluate", out, corpus, *as_options(columns))
    else:
        say_next("predict", out, "FILE", "--out", "tags.jsonl")


@reads_columns
def ablate(
    study: Annotated[Literal["clusters", "partition"], typer.Argument(help="The paper's Figure 4, or 5.")],
    corpus: CorpusArgument,
    out: Annotated[Path, typer.Option(help="Folder for the runs, the table and the figure.")],
    preset: NetworkPresetOption = "tiny",
    set_: SetOption = None,
    seeds: Annotated[int, typer.Option(min=1, help="Training runs for each setting.")] = 3,
    device: DeviceOption = None,
    on_bad_row: OnBadRow = "stop",
    *,
    columns: Columns,
) -> None:
    """Train with several numbers of clusters or several partitions; draw P@1 against them. Can be stopped and rerun."""
    from aplc.config import Config
    from aplc.console import Screen
    from aplc.store.safety import EVALUATION
    from aplc.train.ablate import ablate as ablate_run
    from aplc.train.ablate import markdown

    config = Config.from_preset(preset).with_settings(set_ or [])
    with open_corpus(corpus, on_bad_row, out / "rejects.jsonl", columns) as opened:
        rows = ablate_run(study, opened, config, out, seeds=seeds, screen=Screen())
    print(markdown(study, rows), end="")
    print(f"figure: {out / study}.svg (also .png)", file=sys.stderr)
    runs = sorted(path.parent for path in out.rglob(EVALUATION))
    say_next("compare", runs[0], runs[-1])
