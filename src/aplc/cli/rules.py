"""Options of aplc predict: what it reads and writes, how many labels a document gets, and which."""

from pathlib import Path
from typing import Annotated, Literal

import typer

InputArgument = Annotated[
    str,
    typer.Argument(
        metavar="INPUT",
        help="A .jsonl, .json, .csv, .tsv, .parquet or .txt file; labels in it are not read; "
        "- for JSON Lines on standard input.",
    ),
]
TagsOption = Annotated[
    Path,
    typer.Option(
        help="File to write, a row for each document: .csv, .tsv, .json, or else JSON Lines; - for standard "
        "output. An existing file is replaced."
    ),
]
TopKOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="At most this many labels for a document: 5 by default, 100 with --threshold, --precision or "
        "--expected-f1.",
    ),
]
ThresholdOption = Annotated[
    float | None, typer.Option(min=0, max=1, help="Only labels with at least this probability.")
]
PrecisionOption = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, help="Only labels probable enough that this share of them is right on held-out documents."
    ),
]
ExpectedF1Option = Annotated[
    bool, typer.Option("--expected-f1", help="As many labels as give the highest expected F1.")
]
AllowOption = Annotated[Path | None, typer.Option(help="Only the labels in this file, one a line.")]
DenyOption = Annotated[Path | None, typer.Option(help="None of the labels in this file, one a line.")]
SchemeOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Only labels of this scheme of the vocabulary. Can be given several times."),
]
NotSchemeOption = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="No label of this scheme. Can be given several times.")
]
BelowOption = Annotated[
    list[str] | None,
    typer.Option(metavar="LABEL", help="Only this label and narrower ones. Can be given several times."),
]
LabelsAsOption = Annotated[
    Literal["label", "name", "both"],
    typer.Option(help="Write labels, what the vocabulary calls them, or both (names in a column of their own)."),
]
KeepOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN",
        help="Copy this column of the input to the output; 'all' for every column. Can be given several times.",
    ),
]
