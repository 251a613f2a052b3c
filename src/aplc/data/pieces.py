"""Which pieces of a vocabulary begin a word."""

from collections.abc import Sequence

BEGINS = ("▁", "Ġ")
"""How SentencePiece and byte-level BPE mark a piece that begins a word."""
CONTINUES = "##"
"""How WordPiece marks a piece that continues one."""


def word_starts(pieces: Sequence[str]) -> list[bool]:
    """For each piece of a vocabulary, whether a word begins with it.

    A tokenizer uses one of the marks. It is the one that most pieces have: a few may start with another because the
    texts do. Where no piece is marked, each is a word.
    """
    mark = max((CONTINUES, *BEGINS), key=lambda mark: sum(piece.startswith(mark) for piece in pieces))
    return [piece.startswith(mark) != (mark == CONTINUES) for piece in pieces]
