"""Guards SKOS vocabularies: the three formats, languages, schemes, and files that would expand or reach elsewhere."""

import builtins

import pytest

from aplc.data.vocabulary import Entry, Vocabulary
from aplc.errors import CorpusError
from helpers import aplc, fails, write

TURTLE = '''
@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix owl: <http://www.w3.org/2002/07/owl#> .
@prefix dct: <http://purl.org/dc/terms/> .
@prefix e: <http://e.org/> .

e:topics a skos:ConceptScheme ; dct:title "Topics"@en, "Themen"@de ; skos:hasTopConcept e:animals .
e:pets a skos:ConceptScheme .
e:animals a skos:Concept ; skos:prefLabel "Animals"@en-GB, "Tiere"@de ; skos:narrower e:dogs .
e:dogs a skos:Concept ; skos:prefLabel "Hunde"@de, "Dogs"@en ; skos:altLabel "Hounds"@en, "Köter"@de, "canis" ;
    skos:hiddenLabel "dgos"@en ; skos:inScheme e:topics, e:pets ; skos:definition """Small and
  large."""@en, "Kleine"@de ; skos:scopeNote "Not wolves."@en .
e:cats skos:prefLabel "Katzen"@de ; skos:broader e:animals ; skos:topConceptOf e:pets .
e:old a skos:Concept ; skos:prefLabel "Old"@en ; owl:deprecated true .
e:some a skos:Collection ; skos:prefLabel "A collection"@en ; skos:member e:dogs .
'''
ANIMALS, DOGS, CATS = (f"http://e.org/{name}" for name in ("animals", "dogs", "cats"))
PETS = "http://e.org/pets"
ENTRIES = {
    ANIMALS: Entry(ANIMALS, "Animals", ("Tiere",), (), ("Topics",)),
    DOGS: Entry(
        *(DOGS, "Dogs", ("Hunde", "Hounds", "canis", "Köter", "dgos"), (ANIMALS,), ("Topics", PETS)),
        "Small and large. Not wolves.",
    ),
    CATS: Entry(CATS, "Katzen", (), (ANIMALS,), (PETS,)),
}


@pytest.fixture
def turtle(tmp_path):
    return write(tmp_path / "vocabulary.ttl", TURTLE)


@pytest.mark.parametrize(("suffix", "format_"), [("ttl", "turtle"), ("rdf", "xml"), ("xml", "xml"), ("nt", "nt")])
def test_every_format_gives_the_same_entries(tmp_path, suffix, format_):
    from rdflib import Graph

    path = tmp_path / f"v.{suffix}"
    Graph().parse(data=TURTLE, format="turtle").serialize(path, format=format_, encoding="utf-8")
    found = Vocabulary.read(path)
    assert found.file.endswith("(names in en)")
    assert {label: _sorted(entry) for label, entry in found.entries.items()} == {
        label: _sorted(entry) for label, entry in ENTRIES.items()
    }


def _sorted(entry):
    """rdflib writes triples in an order of its own."""
    return Entry(entry.label, entry.name, *(tuple(sorted(x)) for x in (entry.names, entry.broader, entry.schemes)),
                 entry.description)  # fmt: skip


def test_languages(turtle):
    german = Vocabulary.read(turtle, "de")
    assert german.entries[DOGS] == Entry(
        DOGS, "Hunde", ("Köter", "canis"), (ANIMALS,), ("Themen", "http://e.org/pets"), "Kleine"
    )
    # A concept without a name in the language keeps one that it has; en-GB is English.
    english = Vocabulary.read(turtle, "en")
    assert [english.name_of(uri) for uri in (ANIMALS, CATS)] == ["Animals", "Katzen"]
    with pytest.raises(CorpusError, match=r"vocabulary.ttl: no names in --language fr, only in de, en"):
        Vocabulary.read(turtle, "fr")


BOMB = '<!DOCTYPE r [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
OUTSIDE = '<!DOCTYPE r SYSTEM "http://127.0.0.1:9/x.dtd">'
RDF = '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">{}</rdf:RDF>'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("doctype", [BOMB, OUTSIDE])
def test_document_types_are_refused_before_anything_is_expanded(tmp_path, doctype, encoding):
    path = tmp_path / "v.rdf"
    path.write_bytes(f'<?xml version="1.0" encoding="{encoding}"?>\n{doctype}{RDF.format("&b;")}'.encode(encoding))
    with pytest.raises(CorpusError, match=r"v.rdf, line 2: has a document type declaration"):
        Vocabulary.read(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("v.ttl", TURTLE + "\nnonsense", r", line 17: not Turtle: "),
        ("v.ttl", "[" * 10_000, ": not Turtle: "),
        ("v.rdf", RDF.format("<a>"), r", line 1: not RDF/XML: mismatched tag"),
        ("v.rdf", "", r", line 1: not RDF/XML: no element found"),
        ("v.nt", "<http://e.org/a> <http://e.org/b> .\n", r", line 1: not N-Triples: "),
        ("v.nt", "<http://e.org/a> <http://e.org/b> <http://e.org/c> .\n", ": no skos:Concept in it"),
    ],
)
def test_a_bad_file_is_named(tmp_path, name, text, message):
    with pytest.raises(CorpusError, match=f"{name}{message}"):
        Vocabulary.read(write(tmp_path / name, text))


def test_cycles_and_long_names_are_refused_by_uri(turtle):
    write(turtle, TURTLE + "e:animals skos:broader e:cats .")
    with pytest.raises(CorpusError, match=r"vocabulary.ttl, http://e.org/\w+: a cycle, 'http://e.org"):
        Vocabulary.read(turtle)
    write(turtle, TURTLE + f'e:cats skos:altLabel "{"x" * 1_001}" .')
    with pytest.raises(CorpusError, match=r"vocabulary.ttl, http://e.org/cats: 'names' has 1,001 characters"):
        Vocabulary.read(turtle)


def test_the_package_that_is_missing_is_named(turtle, corpus, monkeypatch):
    original = builtins.__import__

    def without(name, *arguments, **options):
        if name.split(".")[0] == "rdflib":
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    done = aplc("inspect", corpus, "--vocabulary", turtle)
    fails(done, "vocabulary.ttl: reading SKOS needs rdflib: pip install rdflib")
