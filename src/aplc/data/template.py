"""Special tokens: their names, and the template that says where they stand around a text.

`text <sep> <cls>` with segment ids 0, 0, 2 for XLNet, `[CLS] text [SEP]` for BERT. A tokenizer's template is read once,
so that batches can be made from plain ids in the cache, cut to any length.
"""

from dataclasses import dataclass

from tokenizers import Tokenizer, processors

from aplc.errors import ModelError

SPECIALS = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
"""XLNet's special tokens in XLNet's order."""
PAD_NAMES = ("<pad>", "[PAD]")


@dataclass(frozen=True)
class Template:
    """Special tokens before and after a text, with their segment ids."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    prefix_types: tuple[int, ...]
    suffix_types: tuple[int, ...]
    pad: int

    @property
    def size(self) -> int:
        return len(self.prefix) + len(self.suffix)


def set_xlnet_template(fast: Tokenizer) -> None:
    """Make `fast` put XLNet's special tokens around a text: `text <sep> <cls>`, segments 0, 0, 2."""
    specials = [(name, fast.token_to_id(name)) for name in ("<sep>", "<cls>")]
    fast.post_processor = processors.TemplateProcessing(
        single="$A:0 <sep>:0 <cls>:2", pair="$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2", special_tokens=specials
    )


def read_template(fast: Tokenizer) -> Template:
    """Encode a text with and without special tokens: what differs is the template."""
    pad = next((i for i in map(fast.token_to_id, PAD_NAMES) if i is not None), None)
    if pad is None:
        raise ModelError(f"the tokenizer has no padding token ({' or '.join(PAD_NAMES)})")
    whole, bare = fast.encode("a"), fast.encode("a", add_special_tokens=False)
    extra = len(whole.ids) - len(bare.ids)
    start = next(i for i in range(extra + 1) if whole.ids[i : i + len(bare.ids)] == bare.ids)
    end = start + len(bare.ids)
    return Template(
        prefix=tuple(whole.ids[:start]),
        suffix=tuple(whole.ids[end:]),
        prefix_types=tuple(whole.type_ids[:start]),
        suffix_types=tuple(whole.type_ids[end:]),
        pad=pad,
    )
