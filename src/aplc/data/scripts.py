"""Scripts without spaces between words, where a single character is the best guess at a word."""

UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
"""Thai and Lao, Burmese, Khmer, Japanese kana, Chinese; for use inside the brackets of a regular expression."""
