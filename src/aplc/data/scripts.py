"""What a word is in any script, as regular expressions.

A word is a run of letters and digits with the marks on them (accents, vowel signs); Python's own idea of a word leaves
marks out. In scripts without spaces between words a single character is the best guess at a word.
"""

import re
import unicodedata

UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
"""Thai and Lao, Burmese, Khmer, Japanese kana, Chinese; for use inside the brackets of a regular expression."""
_MARKS = "".join(
    chr(i)
    for i in range(0x300, 0x10000)
    if unicodedata.category(chr(i)).startswith("M") and not re.match(f"[{UNSPACED}]", chr(i))
)
_LETTER = rf"[^\W_{UNSPACED}]"
WORD = rf"[{UNSPACED}]|{_LETTER}+(?:[{_MARKS}]+{_LETTER}*)*"
