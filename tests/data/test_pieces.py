"""Guards which pieces begin a word, for each family of tokenizers."""

import pytest

from aplc.data.pieces import word_starts


@pytest.mark.parametrize(
    ("pieces", "starts"),
    [
        (["<sep>", "▁rain", "fall", "▁", "▁##", "##"], [False, True, False, True, True, False]),
        (["Ġrain", "fall", "Ġsnow", "▁"], [True, False, True, False]),
        (["[CLS]", "rain", "##fall", "##s", "Ġ"], [True, True, False, False, True]),
        (["rain", "snow"], [True, True]),
        ([], []),
    ],
    ids=["SentencePiece", "byte-level BPE", "WordPiece", "no marks", "empty vocabulary"],
)
def test_word_starts(pieces, starts):
    assert word_starts(pieces) == starts
