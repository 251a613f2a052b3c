"""Rows of a SKOS vocabulary in Turtle, RDF/XML or N-Triples, read with rdflib (the extra `skos`).

A concept's URI is its label; prefLabel (else rdfs:label) its name; altLabel and hiddenLabel its names; broader, and
narrower the other way round, its hierarchy; inScheme, topConceptOf and hasTopConcept its schemes, by title where they
have one; definition and scopeNote its description. Deprecated concepts (owl:deprecated) are left out.

Only these triples are kept, as plain strings: rdflib's own graph would take ten times the memory. Nothing is fetched:
none of the three formats has imports, and a document type declaration, which may define entities, is refused.
"""

import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO
from xml.parsers import expat

from aplc.data.bounded import LANGUAGE, BoundedLines, read_whole
from aplc.data.checks import shorten
from aplc.errors import CorpusError, needs

SUFFIXES = (".ttl", ".rdf", ".xml", ".nt")
_SKOS, _RDFS = "http://www.w3.org/2004/02/skos/core#", "http://www.w3.org/2000/01/rdf-schema#"
_TYPE, _DEPRECATED = "http://www.w3.org/1999/02/22-rdf-syntax-ns#type", "http://www.w3.org/2002/07/owl#deprecated"
_TITLES = ("http://purl.org/dc/terms/title", "http://purl.org/dc/elements/1.1/title")
_TEXTS = {
    **{f"{_SKOS}{name}": name for name in ("prefLabel", "altLabel", "hiddenLabel", "definition", "scopeNote")},
    f"{_RDFS}label": "label",
    **dict.fromkeys(_TITLES, "title"),
}
_LINKS = {
    **{f"{_SKOS}{name}": name for name in ("broader", "narrower", "inScheme", "topConceptOf", "hasTopConcept")},
    _TYPE: "type",
}
_NO_CONCEPTS = tuple(f"{_SKOS}{name}" for name in ("ConceptScheme", "Collection", "OrderedCollection"))

Text = tuple[str, str]
"""(language in lower case or "", text)."""
Names = Mapping[str, list[Text]]


class Triples:
    """What is kept of a file: by property, texts and links of each subject."""

    def __init__(self) -> None:
        self.texts: dict[str, dict[str, list[Text]]] = defaultdict(lambda: defaultdict(list))
        self.links: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        self.deprecated: set[str] = set()
        self._strings: dict[str, str] = {}
        from rdflib.term import BNode, Literal

        self._blank, self._literal = BNode, Literal

    def triple(self, subject: Any, predicate: Any, value: Any) -> None:
        """Take a triple of rdflib's; those of blank nodes are passed over."""
        if isinstance(subject, self._blank) or isinstance(value, self._blank):
            return
        about, kind = self._string(subject), str(predicate)
        if isinstance(value, self._literal):
            if kind in _TEXTS:
                self.texts[_TEXTS[kind]][about].append((self._string(value.language or "").lower(), str(value)))
            elif kind == _DEPRECATED and str(value).lower() in ("true", "1"):
                self.deprecated.add(about)
        elif kind in _LINKS:
            self.links[_LINKS[kind]][about].append(self._string(value))

    def _string(self, term: Any) -> str:
        """A plain string, the same object for equal ones."""
        return self._strings.setdefault(text := str(term), text)


def read_skos(
    path: Path, stream: BinaryIO, language: str | None
) -> tuple[Iterator[tuple[str, Mapping[str, Any]]], str]:
    """The rows of a file, and what to call it, with the language that was chosen."""
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    with _quiet():
        triples = _read_lines(path, stream) if kind == "nt" else _read_graph(path, stream, kind)
    concepts = _concepts(triples)
    if not concepts:
        raise CorpusError(f"{path}: no skos:Concept in it; is it a SKOS vocabulary?")
    chosen = _choose(path, triples, concepts, language)
    file = f"{path} (names in {chosen})" if chosen else str(path)
    return _rows(triples, concepts, chosen, only=language is not None), file


def _rdflib(path: Path) -> None:
    try:
        import rdflib  # noqa: F401
    except ImportError:
        raise CorpusError(needs(f"{path}: reading SKOS", "rdflib")) from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """rdflib warns of every odd URI on standard error."""
    log = logging.getLogger("rdflib")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def _read_lines(path: Path, stream: BinaryIO) -> Triples:
    """N-Triples, line by line."""
    _rdflib(path)
    from rdflib.plugins.parsers.ntriples import W3CNTriplesParser

    triples = Triples()
    parser: Any = W3CNTriplesParser(sink=triples)  # type: ignore[arg-type]
    with stream:
        lines = BoundedLines(path, stream)
        for text in lines:
            lines.settle()
            parser.line = text.rstrip("\r\n")
            try:
                parser.parseline()
            except Exception as error:  # of many classes
                raise lines.error(f"not N-Triples: {_short(error)}") from None
    return triples


def _read_graph(path: Path, stream: BinaryIO, kind: str) -> Triples:
    """Turtle or RDF/XML, which rdflib reads whole."""
    _rdflib(path)
    from rdflib import Graph

    triples = Triples()

    class Kept(Graph):
        def add(self, triple: Any) -> "Kept":
            triples.triple(*triple)
            return self

    raw = read_whole(path, stream, "convert it to N-Triples, .nt, which is read line by line")
    name, format_ = ("Turtle", "turtle") if kind == "ttl" else ("RDF/XML", "xml")
    try:
        if format_ == "xml":
            _refuse_doctype(path, raw)
        Kept(bind_namespaces="none").parse(data=raw, format=format_)
    except CorpusError:
        raise
    except Exception as error:  # rdflib's, expat's, Python's: each parser has classes of its own
        at = getattr(error, "lines", None)
        at = error.getLineNumber() - 1 if hasattr(error, "getLineNumber") else at
        place = f"{path}, line {at + 1}" if isinstance(at, int) else str(path)
        raise CorpusError(f"{place}: not {name}: {_short(error)}") from None
    return triples


def _refuse_doctype(path: Path, raw: bytes) -> None:
    """Entities can grow to any size, and name files and addresses. They are declared before the first element."""

    class Found(Exception):  # noqa: N818 -- ends the parser
        pass

    def refuse(*_: object) -> None:
        line = parser.CurrentLineNumber
        raise CorpusError(
            f"{path}, line {line}: has a document type declaration (<!DOCTYPE ...>), whose entities are not expanded; "
            "save it without one, or as Turtle"
        )

    def stop(*_: object) -> None:
        raise Found

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler, parser.StartElementHandler = refuse, stop
    try:
        parser.Parse(raw, True)
    except Found:
        pass
    except expat.ExpatError as error:
        raise CorpusError(f"{path}, line {error.lineno}: not RDF/XML: {_short(error)}") from None


def _short(error: Exception) -> str:
    """The reason that a parser gives, on one line."""
    why = getattr(error, "_why", None) or getattr(error, "getMessage", lambda: str(error))()
    return shorten(" ".join(str(why).split())) or type(error).__name__


def _concepts(triples: Triples) -> list[str]:
    """URIs of what is a concept by its type, or has a prefLabel and is nothing else, in the order of the file."""
    types = triples.links["type"]
    typed = (uri for uri, kinds in types.items() if f"{_SKOS}Concept" in kinds)
    called = (uri for uri in triples.texts["prefLabel"] if not any(kind in _NO_CONCEPTS for kind in types.get(uri, ())))
    return [uri for uri in dict.fromkeys((*typed, *called)) if uri not in triples.deprecated]


def _choose(path: Path, triples: Triples, concepts: list[str], language: str | None) -> str:
    """The language of names: the one asked for, or English, or the most frequent."""
    names = _names(triples)
    counts = Counter(tag for uri in concepts for tag, _ in names.get(uri, ()))
    if language:
        if not any(_is(tag, language.lower()) for tag in counts):
            known = ", ".join(tag for tag, _ in counts.most_common() if tag) or "no language at all"
            raise CorpusError(f"{path}: no names in --language {language}, only in {known}")
        return language.lower()
    if any(_is(tag, LANGUAGE) for tag in counts):
        return LANGUAGE
    return next((tag for tag, _ in counts.most_common() if tag), "")


def _names(triples: Triples) -> Names:
    return {**triples.texts["label"], **triples.texts["prefLabel"]}


def _is(tag: str, language: str) -> bool:
    """Whether a tag is the language or a variety of it: en-gb is en."""
    return tag == language or tag.startswith(f"{language}-")


def _ordered(texts: list[Text], language: str, *, only: bool) -> list[str]:
    """Texts in the language first, then those without one, then others; `only`: none of the others."""
    rank = [(0 if _is(tag, language) else 1 if not tag else 2, tag != language, text) for tag, text in texts]
    order = sorted(range(len(texts)), key=lambda i: rank[i][:2])
    return [rank[i][2] for i in order if rank[i][0] < 2 or not only]


def _rows(
    triples: Triples, concepts: list[str], language: str, *, only: bool
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    names, broader, schemes = _names(triples), _broader(triples), _schemes(triples)
    title = _titles(triples, schemes, language)
    for uri in concepts:
        own = names.get(uri, [])
        name, *others = _ordered(own, language, only=only) or _ordered(own, language, only=False) or [""]
        for kind in ("altLabel", "hiddenLabel"):
            others += _ordered(triples.texts[kind].get(uri, []), language, only=only)
        notes = [
            note
            for kind in ("definition", "scopeNote")
            for note in _ordered(triples.texts[kind].get(uri, []), language, only=only)[:1]
        ]
        yield (
            uri,
            {
                "label": uri,
                "name": name,
                "names": others,
                "broader": broader.get(uri, []),
                "scheme": [title(scheme) for scheme in schemes.get(uri, [])],
                "description": " ".join(notes),
            },
        )


def _broader(triples: Triples) -> Mapping[str, list[str]]:
    found = triples.links["broader"]
    for above, below in triples.links["narrower"].items():
        for uri in below:
            found[uri].append(above)
    return found


def _schemes(triples: Triples) -> Mapping[str, list[str]]:
    found = triples.links["inScheme"]
    for uri, schemes in triples.links["topConceptOf"].items():
        found[uri] += schemes
    for scheme, tops in triples.links["hasTopConcept"].items():
        for uri in tops:
            found[uri].append(scheme)
    return found


def _titles(triples: Triples, schemes_of: Mapping[str, list[str]], language: str) -> Callable[[str], str]:
    """What a scheme is called: its title if no other scheme has the same, else its URI."""
    called = {}
    for scheme in {scheme for schemes in schemes_of.values() for scheme in schemes}:
        texts = [text for kind in ("prefLabel", "title", "label") for text in triples.texts[kind].get(scheme, [])]
        called[scheme] = next(iter(_ordered(texts, language, only=False)), scheme)
    shared = Counter(called.values())
    return lambda scheme: called[scheme] if shared[called[scheme]] == 1 else scheme
