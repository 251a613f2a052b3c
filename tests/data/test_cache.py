"""Guards the cache of documents: it holds what was encoded, and is never stale or half-built."""

import errno
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from aplc.console import Screen
from aplc.data.cache import DocumentCache
from aplc.data.corpus import Corpus
from aplc.data.formats import Document
from aplc.data.labels import LabelSet
from aplc.data.source import Source
from aplc.errors import CorpusError
from helpers import write_rows

TEXTS = ["the quick brown fox", "jumps over the lazy dog", "  ", "the the the\nfox\tdog"]
LABELS = LabelSet.from_counter(Counter({"a": 3, "b": 2, "c": 1}))
NUMBER, PAIR = np.dtype(np.uint16), np.dtype([("letter", np.int32), ("count", np.uint16)])


def lengths_of_words(texts):
    """An encoding function that is easy to check."""
    return [[len(word) for word in text.split()] for text in texts]


def letters_of(texts):
    """One that gives records, as the words model's does."""
    counts = [sorted(Counter(map(ord, text.replace(" ", ""))).items()) for text in texts]
    return [np.array(pairs, dtype=PAIR) for pairs in counts]


def build(folder, documents, *options, encode=lengths_of_words, dtype=NUMBER):
    return DocumentCache.build(folder, documents, encode, dtype, LABELS, *options)


def documents(texts=TEXTS):
    return [Document(text, labels=["a", "c"][: i % 3]) for i, text in enumerate(texts)]


def test_cache_holds_whole_documents(tmp_path):
    cache = build(tmp_path / "cache", documents())
    assert len(cache) == len(TEXTS)
    assert cache.lengths.tolist() == [4, 5, 0, 5]
    for i, (expected, document) in enumerate(zip(lengths_of_words(TEXTS), documents(), strict=True)):
        items, labels = cache.document(i)
        assert items.tolist() == expected
        assert labels.tolist() == LABELS.encode(document.labels)


def test_cache_holds_records(tmp_path):
    for _ in range(2):  # built, then read
        cache = build(tmp_path / "cache", documents(), encode=letters_of, dtype=PAIR)
        assert [cache.document(i)[0].tolist() for i in range(4)] == [pairs.tolist() for pairs in letters_of(TEXTS)]


def test_files_are_on_the_disk_before_the_cache_has_its_name(tmp_path, monkeypatch):
    flushed, fsync = set(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (flushed.add(os.fstat(file).st_ino), fsync(file)))
    rename = os.rename
    unsafe = []

    def checked(source, target):
        unsafe.extend(path.name for path in Path(source).iterdir() if path.stat().st_ino not in flushed)
        rename(source, target)

    monkeypatch.setattr(os, "rename", checked)
    build(tmp_path / "cache", documents())
    assert unsafe == []
    assert (tmp_path / "cache").is_dir()


def test_cache_is_built_once_for_a_corpus_an_encoding_and_a_label_set(tmp_path):
    """And anew where one of them changes."""
    rows = [{"text": document.text, "labels": document.labels} for document in documents()]
    read = []

    def counted(texts):
        read.extend(texts)
        return lengths_of_words(texts)

    def encoded(name="lengths", labels=LABELS):
        source = Source.from_corpus(Corpus.open(tmp_path / "c.jsonl"))
        read.clear()
        source.encoded("train", counted, NUMBER, labels, name=name, screen=Screen(quiet=True))
        return len(read)

    write_rows(tmp_path / "c.jsonl", rows)
    assert [encoded(), encoded()] == [4, 0]
    assert [encoded(name="another"), encoded(labels=LabelSet.from_counter(Counter({"a": 1})))] == [4, 4]
    write_rows(tmp_path / "c.jsonl", [*rows, {"text": "one more", "labels": ["a"]}])
    assert [encoded(), encoded()] == [5, 0]


def test_half_built_cache_is_never_used(tmp_path):
    def breaking():
        yield from documents()
        raise CorpusError("broken row")

    with pytest.raises(CorpusError):
        build(tmp_path / "cache", breaking())
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    assert len(build(tmp_path / "cache", documents())) == len(TEXTS)


@pytest.mark.parametrize("stop", [0, 3, 70, 99, 139])
def test_build_cut_short_goes_on_where_it_stopped(tmp_path, monkeypatch, stop):
    """The killed process leaves more on disk than it noted: the rest is cut off and written again."""
    monkeypatch.setattr("aplc.data.cache.ENCODED_AT_ONCE", 7)
    monkeypatch.setattr("aplc.data.cache.NOTE_EVERY", 2)
    many = documents(TEXTS * 35)
    for document in many[::5]:
        document.partial, document.rejected = True, ("b", "c")[: len(document.labels)]

    def killed():
        yield from many[:stop]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "parts", killed())
    advanced = []
    parts = build(tmp_path / "parts", iter(many), advanced.append)
    whole = build(tmp_path / "whole", many)
    assert advanced[0] == stop // 14 * 14
    assert sum(advanced) == len(many)
    for name in ("items", "offsets", "label_ids", "label_offsets", "partial", "rejected_ids", "rejected_offsets"):
        assert getattr(parts, name).tolist() == getattr(whole, name).tolist()
    assert parts.partial.tolist() == list(range(0, 140, 5))
    assert {path.name for path in (tmp_path / "parts").iterdir()} == {p.name for p in (tmp_path / "whole").iterdir()}


def test_cache_of_empty_texts(tmp_path):
    cache = build(tmp_path / "cache", documents([" ", ""]))
    assert cache.document(0)[0].tolist() == []


def test_full_disk_names_the_cache_and_how_to_move_it(tmp_path):
    def filling():
        yield from documents()
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device; make room, or set APLC_CACHE") as found:
        build(tmp_path / "cache", filling())
    assert found.value.filename == str(tmp_path / "cache")
