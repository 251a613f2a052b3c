"""Scripts without spaces between words."""

UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese characters, as part of a character class of `re`."""
