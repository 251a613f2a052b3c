"""Text to token ids: a Unigram tokenizer trained on the corpus, or the one an encoder brings along.

Special tokens stand around a text as the tokenizer's own template says: `text <sep> <cls>` with segment ids 0, 0, 2
for XLNet, `[CLS] text [SEP]` for BERT. The template is read off the tokenizer once, so batches can be put together
from bare ids in the cache, cut to any length.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as FastTokenizer

from aplc.errors import CorpusError, ModelError
from aplc.files import atomic_write, digest

FILE = "tokenizer.json"
SPECIALS = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
"""XLNet's special tokens in XLNet's order."""
PAD_NAMES = ("<pad>", "[PAD]")
VERSION = 2
"""Of how a corpus' tokenizer is made; one of another version is not taken from the cache."""


@dataclass(frozen=True)
class Template:
    """Special tokens before and after a text, and segment ids."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    prefix_types: tuple[int, ...]
    suffix_types: tuple[int, ...]
    pad: int

    @property
    def size(self) -> int:
        return len(self.prefix) + len(self.suffix)


class Tokenizer:
    def __init__(self, fast: FastTokenizer) -> None:
        self.fast = fast
        fast.no_truncation()
        fast.no_padding()
        self.template = _read_template(fast)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, *, progress: bool = False) -> "Tokenizer":
        """A SentencePiece-style Unigram model with XLNet's special tokens. Little text gives fewer pieces."""
        fast = _around(models.Unigram())
        trainer = trainers.UnigramTrainer(
            vocab_size=vocab_size, special_tokens=SPECIALS, unk_token="<unk>", show_progress=progress
        )
        try:
            fast.train_from_iterator(texts, trainer)
        except Exception as error:  # tokenizers raises bare Exception
            raise CorpusError(f"can't train a tokenizer on these texts: {error}") from None
        vocab = [(piece, score) for piece, score in json.loads(fast.to_str())["model"]["vocab"]]
        pieces = [pair for pair in vocab if pair[0] not in SPECIALS]  # texts may have "<sep>" in them, and learn it
        if not pieces:
            raise CorpusError("can't train a tokenizer: all texts are empty")
        fast = _around(models.Unigram([*vocab[: len(SPECIALS)], *_in_order(pieces)], unk_id=0))
        fast.add_special_tokens(SPECIALS)
        xlnet_template(fast)
        return cls(fast)

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """From a `tokenizer.json`, or a folder that has one or XLNet's `spiece.model`.

        A folder of XLNet's with both is read from `spiece.model`: its `tokenizer.json` cuts some texts differently.
        """
        file, pieces = path / FILE if path.is_dir() else path, path / "spiece.model"
        if pieces.is_file() and (not file.is_file() or _is_xlnet(path)):
            from aplc.data.spiece import load_spiece

            return cls(load_spiece(pieces))
        try:
            return cls(FastTokenizer.from_str(file.read_text("utf-8")))
        except OSError:
            raise ModelError(f"{path}: no {FILE} or spiece.model there") from None
        except ModelError:
            raise
        except BaseException as error:  # tokenizers raises bare Exception, and its panics are not even that
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise ModelError(f"{file}: not a tokenizer ({' '.join(str(error).split())[:200]})") from None

    def save(self, folder: Path) -> None:
        with atomic_write(folder / FILE) as out:
            out.write(self.fast.to_str(pretty=True).encode("utf-8"))

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return max(self.fast.get_vocab_size(with_added_tokens=True), 1 + max(self.fast.get_vocab().values()))

    @property
    def fingerprint(self) -> str:
        return digest(json.loads(self.fast.to_str()))

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text, whole and without special tokens."""
        return [encoding.ids for encoding in self.fast.encode_batch_fast(texts, add_special_tokens=False)]


def _around(model: models.Unigram) -> FastTokenizer:
    fast = FastTokenizer(model)
    fast.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    fast.pre_tokenizer = pre_tokenizers.Metaspace()
    fast.decoder = decoders.Metaspace()
    return fast


def _in_order(pieces: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Pieces by falling score, and of equal score by name: the same after every training on the same texts.

    The trainer goes through hash tables of random order. So the last bits of its scores vary, and so does which of the
    signs too rare to be learned gets the lowest score, which a ten-thousandth more, and so on: all get the lowest.
    """
    floor = min(score for _, score in pieces)

    def settled(piece: str, score: float) -> float:
        above = (score - floor) * 10_000
        return round(floor if len(piece) == 1 and abs(above - round(above)) < 1e-6 else score, 6)

    return sorted(((piece, settled(piece, score)) for piece, score in pieces), key=lambda pair: (-pair[1], pair[0]))


def _is_xlnet(folder: Path) -> bool:
    try:
        return json.loads((folder / "config.json").read_text("utf-8"))["model_type"] == "xlnet"
    except (OSError, ValueError, KeyError, TypeError):
        return False


def xlnet_template(fast: FastTokenizer) -> None:
    """Make `fast` put XLNet's special tokens around a text: `text <sep> <cls>`, segments 0, 0, 2."""
    specials = [(name, fast.token_to_id(name)) for name in ("<sep>", "<cls>")]
    fast.post_processor = processors.TemplateProcessing(
        single="$A:0 <sep>:0 <cls>:2", pair="$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2", special_tokens=specials
    )


def _read_template(fast: FastTokenizer) -> Template:
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
