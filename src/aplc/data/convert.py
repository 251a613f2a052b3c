"""Corpora in other projects' formats, converted to `train.jsonl` and `test.jsonl`.

    convert(Path("EUR-Lex"), "attentionxml", Path("corpus"))

The formats, as each project's own code reads them:

- attentionxml: `train_raw_texts.txt` (or `train_texts.txt`, already tokenized) with one text per line,
  `train_labels.txt` with a document's labels separated by spaces. `/SEP/` between title and text becomes a space.
- pecos: `X.trn.txt` with one text per line, `Y.trn.npz` a sparse matrix of documents x labels, `output-items.txt` with
  one label name per line (without it, labels are numbers).
- aplc-xlnet: the authors' release. `train.csv` and `dev.csv` with a header, whose first columns are id, text, labels
  (separated by commas), `labels.txt` with all labels. The paper's figures were measured on `dev.csv`: it becomes the
  test part.
- xml-repository: texts in `trn.json.gz` (`title`, `content`, `target_ind`) or `trn_X.txt` (one text per line); labels
  in the former, in `trn_X_Y.txt` (header `documents labels`, lines `label:1 ...`), or at the start of the lines of the
  bag-of-words file `train.txt` (header `documents features labels`); names in `lbl.json.gz`, `Yf.txt` or `Y.txt`.

Documents stream; label names and PECOS' label matrix (eight bytes for each label of a document) are held in memory. The
label's number is added to a name that is empty or that several labels share: merging them would change the task.
"""

import csv
import gzip
import json
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, TypeVar

from aplc.data.corpus import refuse_corpus
from aplc.data.formats import UNQUOTED, Document, open_bytes
from aplc.errors import CorpusError
from aplc.files import atomic_write

Format = Literal["attentionxml", "pecos", "aplc-xlnet", "xml-repository"]
Parts = dict[str, Iterator[Document]]
T = TypeVar("T")


def convert(
    source: Path, format_: Format, out: Path, *, advance: Callable[[], None] = lambda: None
) -> tuple[dict[str, int], int]:
    """Write the parts of `source` to `out`. Returns the number of documents in each part, and the number of labels."""
    if not source.is_dir():
        raise CorpusError(f"{source}: no such folder; give the folder with the {format_} files")
    if out.resolve() == source.resolve():
        raise CorpusError(f"{out}: this is the source folder; give --out another one")
    parts = _READERS[format_](source)
    refuse_corpus(out)
    counts, labels = dict.fromkeys(parts, 0), set[str]()
    with ExitStack() as stack:  # all parts are written, or none
        written = {part: stack.enter_context(atomic_write(out / f"{part}.jsonl")) for part in parts}
        for part, documents in parts.items():
            for document in documents:
                row = {"text": document.text, "labels": document.labels}
                row |= {} if document.id is None else {"id": document.id}
                try:
                    written[part].write((json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8"))
                except UnicodeEncodeError:  # half of a surrogate pair, which JSON allows
                    raise CorpusError(
                        f"{source}, line {document.line} of the {part} part: not valid Unicode; download the file again"
                    ) from None
                labels.update(document.labels)
                counts[part] += 1
                advance()
            if counts[part] == 0:
                raise CorpusError(f"{source}: the {part} part has no documents")
    return counts, len(labels)


def _attentionxml(source: Path) -> Parts:
    def part(name: str, texts: Path) -> Iterator[Document]:
        labels = source / f"{name}_labels.txt"
        for line, text, names in _side_by_side(texts, _lines(texts), labels, _lines(labels)):
            yield Document(" ".join(text.replace("/SEP/", " ").split()), _unique(names.split()), line=line)

    files = {part: [f"{part}_raw_texts.txt", f"{part}_texts.txt"] for part in ("train", "test")}
    return _parts(source, files, part)


def _pecos(source: Path) -> Parts:
    items = source / "output-items.txt"
    names = _distinct(_lines(items)) if items.is_file() else None

    def part(name: str, texts: Path) -> Iterator[Document]:
        matrix = source / f"Y.{'trn' if name == 'train' else 'tst'}.npz"
        rows = _matrix_rows(matrix, names, items)
        for line, text, row in _side_by_side(texts, _lines(texts), matrix, rows):
            yield Document(text, row, line=line)

    return _parts(source, {"train": ["X.trn.txt"], "test": ["X.tst.txt"]}, part)


def _matrix_rows(path: Path, names: list[str] | None, items: Path) -> Iterator[list[str]]:
    import scipy.sparse as sp

    if not path.is_file():
        raise CorpusError(f"{path}: no such file; is the whole archive unpacked?")
    try:
        loaded = sp.load_npz(path)
        if loaded.format in ("csr", "csc"):  # scipy checks the others when it makes them
            loaded.check_format()
        matrix = sp.csr_matrix(loaded)
    except (ValueError, TypeError, LookupError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise CorpusError(f"{path}: not a sparse matrix saved by scipy ({error}); download it again") from None
    if names is not None and matrix.shape[1] != len(names):
        raise CorpusError(f"{path}: {matrix.shape[1]:,} labels, but {items.name} has {len(names):,} lines")
    matrix.eliminate_zeros()
    for start, end in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
        yield [names[i] if names else str(i) for i in matrix.indices[start:end].tolist()]


def _aplc_xlnet(source: Path) -> Parts:
    labels_file = source / "labels.txt"
    known = {line.strip() for line in _lines(labels_file)}

    def part(_: str, path: Path) -> Iterator[Document]:
        csv.field_size_limit(2**31 - 1)  # the default refuses texts over 128 KiB
        reader = csv.reader(_decoded(path), strict=True)
        try:
            header = next(reader, [])
            if len(header) < 3:
                raise _fault(path, 1, f"the header is {header}, expected at least id, text, labels")
            for cells in filter(None, reader):  # not blank lines
                if len(cells) != len(header):
                    cure = "quote cells that contain commas"
                    raise _fault(
                        path, reader.line_num, f"{len(cells)} cells where the header has {len(header)}; {cure}"
                    )
                labels = _unique(name for name in map(str.strip, cells[2].split(",")) if name)
                if unknown := [name for name in labels if name not in known]:
                    found = f"label {unknown[0]!r} is not in {labels_file.name}"
                    raise _fault(path, reader.line_num, f"{found}; are both from the same archive?")
                yield Document(cells[1], labels, id=cells[0], line=reader.line_num)
        except csv.Error as error:
            raise _fault(path, reader.line_num, f"not CSV ({error}); {UNQUOTED}") from None

    return _parts(source, {"train": ["train.csv"], "test": ["dev.csv"]}, part)


def _xml_repository(source: Path) -> Parts:
    names = _repository_names(source)

    def named(ids: Iterable[int], path: Path, line: int) -> list[str]:
        wanted = list(ids)
        if names and (beyond := [i for i in wanted if not 0 <= i < len(names)]):
            raise _fault(path, line, f"label {beyond[0]}, but there are only {len(names):,} label names")
        return _unique(names[i] if names else str(i) for i in wanted)

    def part(name: str, texts: Path) -> Iterator[Document]:
        if ".json" in texts.name:
            for line, row in _json_rows(texts):
                ids = row.get("target_ind")
                if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
                    raise _fault(texts, line, "no list of label numbers under 'target_ind'")
                if not row.keys() & {"title", "content"}:
                    raise _fault(texts, line, f"neither 'title' nor 'content', only {', '.join(row)}")
                uid = None if row.get("uid") is None else str(row["uid"])
                yield Document(_title_and_content(row), named(ids, texts, line), uid, line)
            return
        short = "trn" if name == "train" else "tst"
        labels = _find(source, [f"{short}_X_Y.txt", f"{name}.txt"])
        if labels is None:
            raise CorpusError(f"{source}: {texts.name} needs {short}_X_Y.txt or the bag-of-words {name}.txt beside it")
        for line, text, ids in _side_by_side(texts, _lines(texts), labels, _sparse_rows(labels, names)):
            yield Document(text, named(ids, labels, line + 1), line=line)

    texts = {
        part: [f"{short}.json.gz", f"{short}.json", f"{short}_X.txt", f"raw/{short}_X.txt"]
        for part, short in (("train", "trn"), ("test", "tst"))
    }
    if _find(source, [*texts["train"], *texts["test"]]) is None and (source / "train.txt").is_file():
        raise CorpusError(
            f"{source / 'train.txt'}: bag-of-words features only, and a tagger needs the texts; "
            "put trn.json.gz, or trn_X.txt with one text per line, beside it"
        )
    return _parts(source, texts, part)


def _repository_names(source: Path) -> list[str]:
    """Label names; empty if the folder has no file of them."""
    path = _find(source, ["lbl.json.gz", "lbl.json", "Yf.txt", "Y.txt", "raw/Y.txt"])
    if path is None:
        return []
    if ".json" in path.name:
        return _distinct(str(row.get("title") or "") for _, row in _json_rows(path))
    return _distinct(_lines(path))


def _sparse_rows(path: Path, names: list[str]) -> Iterator[list[int]]:
    """Label ids of each line: `label:1 label:1` after a header of two numbers, `label,label word:1` after three."""
    lines = _lines(path)
    header = next(lines, "")
    try:
        n_documents, *features, n_labels = map(int, header.split())
        if len(features) > 1:
            raise ValueError
    except ValueError:
        hint = "expected 'documents labels' or 'documents features labels'"
        raise _fault(path, 1, f"the header is {header[:40]!r}, {hint}") from None
    if names and len(names) != n_labels:
        raise _fault(path, 1, f"{n_labels:,} labels in the header, but there are {len(names):,} label names")
    n = 0
    for n, line in enumerate(lines, start=1):
        try:
            cells = _before_words(line) if features else line.split()
            ids = [int(cell.partition(":")[0]) for cell in cells if cell]
        except ValueError:
            raise _fault(path, n + 1, f"can't read the labels in {line[:40]!r}") from None
        if beyond := [i for i in ids if not 0 <= i < n_labels]:
            raise _fault(path, n + 1, f"label {beyond[0]}, but the header says {n_labels:,} labels")
        yield ids
    if n != n_documents:
        raise _fault(path, n + 1, f"the file ends after {n:,} documents, but the header says {n_documents:,}")


def _before_words(line: str) -> list[str]:
    """The labels of `3,17 0:0.5 8:1.2`. A line that begins with a space or a word has none."""
    cells = line.split()
    labels = cells.pop(0).split(",") if cells and not line[0].isspace() and ":" not in cells[0] else []
    if not all(":" in word for word in cells):
        raise ValueError("a space between labels")
    return labels


def _title_and_content(row: dict[str, object]) -> str:
    return " ".join(" ".join(str(row.get(key) or "").split()) for key in ("title", "content")).strip()


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _fault(path, number, f"not JSON: {error}") from None
        if not isinstance(row, dict):
            raise _fault(path, number, f"expected an object, found {type(row).__name__}")
        yield number, row


def _parts(source: Path, files: dict[str, list[str]], read: Callable[[str, Path], Iterator[Document]]) -> Parts:
    """The parts whose file exists; the training part must."""
    found = {part: path for part, names in files.items() if (path := _find(source, names))}
    if "train" not in found:
        raise CorpusError(f"{source}: no {' or '.join(files['train'])}; is --from right, and the archive unpacked?")
    return {part: read(part, path) for part, path in found.items()}


def _find(source: Path, names: Iterable[str]) -> Path | None:
    return next((source / name for name in names if (source / name).is_file()), None)


def _lines(path: Path) -> Iterator[str]:
    return (line.rstrip("\r\n") for line in _decoded(path))


def _decoded(path: Path) -> Iterator[str]:
    """Lines with their line breaks. Only \\n ends a line, as in the programs that wrote them; an empty line counts."""
    with open_bytes(path) as stream:
        try:
            for number, raw in enumerate(stream, start=1):
                try:
                    yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    cure = f"iconv -f latin1 -t utf-8 {path.name}"
                    raise _fault(path, number, f"not UTF-8 at byte {error.start}; perhaps {cure}") from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise CorpusError(f"{path}: broken gzip file ({error}); download it again") from None


def _side_by_side(a: Path, left: Iterator[str], b: Path, right: Iterator[T]) -> Iterator[tuple[int, str, T]]:
    """Line number, line of `a` and item of `b`; an error if one has more than the other."""
    nothing = object()
    line = 0
    for line, text in enumerate(left, start=1):
        row = next(right, nothing)
        if row is nothing:
            raise CorpusError(f"{a}, line {line}: {b.name} ends after {line - 1:,} documents; download both again")
        yield line, text, row  # type: ignore[misc]
    if next(right, nothing) is not nothing:
        raise CorpusError(f"{b}: has more than the {line:,} documents of {a.name}; download both again")


def _distinct(names: Iterable[str]) -> list[str]:
    """Names with whitespace normalised. The label's number is added to empty and repeated names until all differ."""
    clean = [" ".join(name.split()) for name in names]
    while "" in (count := Counter(clean)) or len(count) < len(clean):
        clean = [name if name and count[name] == 1 else f"{name} #{i}".strip() for i, name in enumerate(clean)]
    return clean


def _unique(labels: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(labels))


def _fault(path: Path, line: int, error: str) -> CorpusError:
    return CorpusError(f"{path}, line {line}: {error}")


_READERS: dict[Format, Callable[[Path], Parts]] = {
    "attentionxml": _attentionxml,
    "pecos": _pecos,
    "aplc-xlnet": _aplc_xlnet,
    "xml-repository": _xml_repository,
}
