"""aplc as a backend of Annif (annif.org), the subject indexing toolkit that libraries run.

Annif finds its backends in a table of its own, so this file is the `annif` command with one more entry in that table.
In an environment that has both packages:

    python examples/annif_backend.py load-vocab mesh subjects.tsv --language en
    python examples/annif_backend.py train mesh-aplc train.tsv
    echo "Evoked potentials in children" | python examples/annif_backend.py suggest mesh-aplc
    python examples/annif_backend.py eval mesh-aplc test.tsv

with a project in projects.cfg:

    [mesh-aplc]
    name = MeSH with aplc
    language = en
    backend = aplc
    vocab = mesh
    limit = 10
    # what aplc train --preset and --set take:
    preset = words
    settings = data.min_count=1
    # or a model folder that aplc trained or exported, instead of annif train:
    # model = demo/model

A model trained here has subjects' URIs as labels, and the project's vocabulary: names, synonyms and hierarchy, as
Annif's own loader saved them. So subjects that no training document has can be suggested, too. A given model may have
URIs or preferred labels in the project's language; labels that the vocabulary lacks are left out.

Run for real on 2026-11-18 with Annif 1.4.3 and aplc 0.1.0 on PubMed-MeSH: see examples/README.md for what was typed and
what came out.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import annif.backend
from annif.backend.backend import AnnifBackend
from annif.cli import cli
from annif.corpus.types import Document, DocumentCorpus
from annif.exception import NotInitializedException, NotSupportedException
from annif.suggestion import SubjectSuggestion, SuggestionBatch

from aplc import Tagger
from aplc.data.vocabulary import Vocabulary
from aplc.errors import AplcError


class AplcBackend(AnnifBackend):
    """Texts to subjects through a `Tagger`; batches of documents go through the model together."""

    name = "aplc"
    DEFAULT_PARAMETERS = {"preset": "tiny", "settings": ""}  # noqa: RUF012
    _tagger: Tagger | None = None

    @property
    def _folder(self) -> Path:
        return Path(self.params.get("model") or Path(self.datadir) / "aplc-model")

    @property
    def is_trained(self) -> bool:
        return (self._folder / "config.json").is_file()

    def initialize(self, parallel: bool = False) -> None:
        if self._tagger is None:
            if not self.is_trained:
                raise NotInitializedException(f"no model in {self._folder}", backend_id=self.backend_id)
            self._tagger = Tagger.from_pretrained(self._folder)
            names = self._tagger.folder.labels.names
            subjects, language = self.project.subjects, self.project.vocab_lang
            found = ((name, self._subject(name, subjects, language)) for name in names)
            self._subject_ids = {name: i for name, i in found if i is not None}
            self.info(f"{len(self._subject_ids):,} of {len(names):,} labels are subjects of the vocabulary")

    @staticmethod
    def _subject(name: str, subjects: Any, language: str) -> int | None:
        found = subjects.by_uri(name, warnings=False)
        return subjects.by_label(name, language) if found is None else found

    def _train(self, corpus: DocumentCorpus, params: dict[str, Any], jobs: int = 0) -> None:
        if corpus == "cached" or params.get("model"):
            raise NotSupportedException("training again from a cache, or of a given model, is not supported")
        subjects, texts, labels = self.project.subjects, [], []
        for document in corpus.documents:
            if document.subject_set:
                texts.append(document.text)
                labels.append([subjects[i].uri for i in document.subject_set])
        tagger = Tagger(preset=params["preset"], settings=shlex.split(params["settings"]), verbose=True)
        tagger.fit(texts, labels, vocabulary=self._vocabulary()).save_pretrained(self._folder)
        self._tagger = None

    def _vocabulary(self) -> dict[str, object]:
        """Subjects of the project, with synonyms and hierarchy where Annif's SKOS file has them."""
        language, vocab = self.project.vocab_lang, self.project.vocab
        try:
            entries = Vocabulary.read(Path(vocab.datadir) / vocab.INDEX_FILENAME_TTL, language).entries
        except AplcError as error:  # a circle in the hierarchy, for example
            self.warning(f"names only, without synonyms and hierarchy: {error}")
            entries = {}
        subjects = (subject for _, subject in self.project.subjects.active)
        return {s.uri: entries.get(s.uri, s.labels.get(language) or "") for s in subjects}

    def _suggest_batch(self, documents: list[Document], params: dict[str, Any]) -> SuggestionBatch:
        assert self._tagger is not None
        limit = int(params["limit"])
        suggestions = [
            [
                SubjectSuggestion(subject_id=self._subject_ids[label], score=probability)
                for label, probability in tags
                if label in self._subject_ids
            ]
            for tags in self._tagger.predict([document.text for document in documents], top_k=limit)
        ]
        return SuggestionBatch.from_sequence(suggestions, self.project.subjects, limit=limit)


def register() -> None:
    """Add aplc to Annif's table of backends."""
    annif.backend._backend_fns["aplc"] = lambda: AplcBackend


if __name__ == "__main__":
    register()
    cli()
