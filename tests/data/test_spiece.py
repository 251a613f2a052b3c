"""Guards `load_spiece`: ids match the `sentencepiece` package's, on a model trained here."""

import io
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aplc.data.spiece import load_spiece, read_spiece
from aplc.errors import ModelError

sentencepiece = pytest.importorskip("sentencepiece")

STEMS = [
    "gen",
    "cell",
    "tumor",
    "protein",
    "liver",
    "enzym",
    "neur",
    "cardi",
    "hepat",
    "immun",
    "recept",
    "inhibit",
    "synth",
    "metabol",
    "therap",
    "klinik",
    "größ",
]
ENDS = ["s", "ing", "ed", "ation", "ic", "al", "osis", "itis", "ectomy", "ogenesis", "ology", "ase", "ung", "keit"]
EXTRA = [
    "multi-label",
    "(p < 0.05)",
    "α-helix",
    "2,3-DPG",
    "IL-6,",
    "5.5%",
    "“quoted”",
    "Ärzte",
    "naïve",
    "£3–€4",
    "H₂O",
    "1/2",
    "½",
    "<w>",
    "k<v>",
]


def abstract(generator):
    words = []
    for _ in range(generator.randint(3, 160)):
        word = generator.choice(STEMS) + generator.choice(ENDS) if generator.random() < 0.8 else generator.choice(EXTRA)
        words.append(word.capitalize() if generator.random() < 0.15 else word)
    return " ".join(words) + "."


@pytest.fixture(scope="module")
def texts():
    generator = random.Random(0)
    return [abstract(generator) for _ in range(400)]


@pytest.fixture(scope="module")
def model(texts, tmp_path_factory):
    """XLNet's special pieces and user-defined symbols, in XLNet's order."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=out,
        vocab_size=300,
        hard_vocab_limit=False,  # how many pieces these texts give depends on the version
        model_type="unigram",
        control_symbols=["<cls>", "<sep>", "<pad>", "<mask>", "<eod>"],
        user_defined_symbols=["<eop>", ".", "(", ")", '"', "-", "–", "£", "€"],
        minloglevel=2,
        num_threads=1,
    )
    path = tmp_path_factory.mktemp("spiece") / "spiece.model"
    path.write_bytes(out.getvalue())
    return path


@pytest.fixture(scope="module")
def theirs(model):
    return sentencepiece.SentencePieceProcessor(model_file=str(model))


@pytest.fixture(scope="module")
def ours(model):
    return load_spiece(model)


def test_ids_match_sentencepiece(texts, ours, theirs):
    found = [encoding.ids for encoding in ours.encode_batch(texts, add_special_tokens=False)]
    assert found == theirs.encode(texts)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "  two  spaces ",
        "tab\tand\nnew line\r\n",
        "no-break\u00a0space",
        "a<sep>b <cls> <pad>",
        "<unk> <s> </s>",
        "<eop> <mask>",
        "u\u0308ber über",
        "ﬁne ½ ㎏ Ａ",
        "漢字 unknown",
        "漢 字",
        "multi-label, (p < 0.05)",
        "...",
        "…",
        "zero\u200bwidth",
        "e\u0301\u0323",
    ],
)
def test_corner_cases_match_sentencepiece(text, ours, theirs):
    assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text)


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cn", "Co", "Mn", "Me", "Mc"]), max_size=40))
def test_any_text_without_combining_marks_matches_sentencepiece(text, ours, theirs):
    assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text)


def test_special_tokens_follow_the_text(ours, theirs):
    encoding = ours.encode("liver cells")
    ids = theirs.encode("liver cells")
    assert encoding.ids == [*ids, theirs.piece_to_id("<sep>"), theirs.piece_to_id("<cls>")]
    assert encoding.type_ids == [0] * len(ids) + [0, 2]
    assert ours.token_to_id("<pad>") == theirs.piece_to_id("<pad>")
    assert ours.get_vocab_size() == theirs.get_piece_size()


def test_ids_are_the_same_after_saving_as_tokenizer_json(texts, ours, tmp_path):
    from tokenizers import Tokenizer

    ours.save(str(tmp_path / "tokenizer.json"))
    again = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [e.ids for e in again.encode_batch(texts[:50])] == [e.ids for e in ours.encode_batch(texts[:50])]


def test_pieces_and_scores_match_sentencepiece(model, theirs):
    pieces = read_spiece(model).pieces
    assert [piece for piece, _, _ in pieces] == [theirs.id_to_piece(i) for i in range(theirs.get_piece_size())]
    assert [score for _, score, _ in pieces] == pytest.approx([theirs.get_score(i) for i in range(len(pieces))])


def test_missing_and_broken_models_are_refused(tmp_path, model):
    with pytest.raises(ModelError, match="can't read"):
        load_spiece(tmp_path / "none.model")
    (tmp_path / "text.model").write_bytes(b"this is no model")
    with pytest.raises(ModelError, match="not a SentencePiece model"):
        load_spiece(tmp_path / "text.model")
    (tmp_path / "half.model").write_bytes(model.read_bytes()[:1000])
    with pytest.raises(ModelError, match="not a SentencePiece model"):
        load_spiece(tmp_path / "half.model")
