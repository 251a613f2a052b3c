"""Text to token ids, by a Unigram tokenizer trained on the corpus or by the encoder's own tokenizer.

Ids are those of the text alone; `Tokenizer.template` has the special tokens that a batch adds around them.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as FastTokenizer

from aplc.data.spiece import load_spiece
from aplc.data.template import SPECIALS, Template, read_template, set_xlnet_template
from aplc.errors import CorpusError, ModelError
from aplc.files import atomic_write, digest

__all__ = ["SPECIALS", "TOKENIZER_FILE", "TOKENIZER_VERSION", "Template", "Tokenizer"]

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_VERSION = 2
"""Goes up when a tokenizer is trained in another way, so that an older one in the cache is not used."""


class Tokenizer:
    def __init__(self, fast: FastTokenizer) -> None:
        self.fast = fast
        fast.no_truncation()
        fast.no_padding()
        self.template = read_template(fast)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, *, progress: bool = False) -> "Tokenizer":
        """A SentencePiece-style Unigram model with XLNet's special tokens. A small corpus gives fewer pieces."""
        fast = _with_whitespace_rules(models.Unigram())
        trainer = trainers.UnigramTrainer(
            vocab_size=vocab_size, special_tokens=SPECIALS, unk_token="<unk>", show_progress=progress
        )
        try:
            fast.train_from_iterator(texts, trainer)
        except Exception as error:  # tokenizers raises bare Exception
            raise CorpusError(f"can't train a tokenizer on these texts: {error}") from None
        vocab = [(piece, score) for piece, score in json.loads(fast.to_str())["model"]["vocab"]]
        pieces = [pair for pair in vocab if pair[0] not in SPECIALS]  # a text may contain "<sep>"
        if not pieces:
            raise CorpusError("can't train a tokenizer: all texts are empty")
        fast = _with_whitespace_rules(models.Unigram([*vocab[: len(SPECIALS)], *_in_order(pieces)], unk_id=0))
        fast.add_special_tokens(SPECIALS)
        set_xlnet_template(fast)
        return cls(fast)

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """From a `tokenizer.json`, or from a folder with a `tokenizer.json` or XLNet's `spiece.model`.

        Where XLNet's folder has both, `spiece.model` is read: the `tokenizer.json` splits some texts differently.
        """
        file, pieces = path / TOKENIZER_FILE if path.is_dir() else path, path / "spiece.model"
        if pieces.is_file() and (not file.is_file() or _is_xlnet(path)):
            return cls(load_spiece(pieces))
        try:
            return cls(FastTokenizer.from_str(file.read_text("utf-8")))
        except OSError:
            raise ModelError(f"{path}: no {TOKENIZER_FILE} or spiece.model there") from None
        except ModelError:
            raise
        except BaseException as error:  # tokenizers raises bare Exception, and its panics are BaseException
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise ModelError(f"{file}: not a tokenizer ({' '.join(str(error).split())[:200]})") from None

    def save(self, folder: Path) -> None:
        with atomic_write(folder / TOKENIZER_FILE) as out:
            out.write(self.fast.to_str(pretty=True).encode("utf-8"))

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return max(self.fast.get_vocab_size(with_added_tokens=True), 1 + max(self.fast.get_vocab().values()))

    @property
    def fingerprint(self) -> str:
        return digest(json.loads(self.fast.to_str()))

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text, uncut and without special tokens."""
        return [encoding.ids for encoding in self.fast.encode_batch_fast(texts, add_special_tokens=False)]


def _with_whitespace_rules(model: models.Unigram) -> FastTokenizer:
    fast = FastTokenizer(model)
    fast.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    fast.pre_tokenizer = pre_tokenizers.Metaspace()
    fast.decoder = decoders.Metaspace()
    return fast


def _in_order(pieces: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Pieces by falling score, then by name, so that training on the same texts always gives the same tokenizer.

    The trainer iterates over hash tables in random order, so the last bits of its scores vary. Characters too rare to
    be learned get the lowest score, the lowest plus 1/10,000 and so on, in random order: here all get the lowest.
    """
    floor = min(score for _, score in pieces)

    def stable(piece: str, score: float) -> float:
        above = (score - floor) * 10_000
        return round(floor if len(piece) == 1 and abs(above - round(above)) < 1e-6 else score, 6)

    return sorted(((piece, stable(piece, score)) for piece, score in pieces), key=lambda pair: (-pair[1], pair[0]))


def _is_xlnet(folder: Path) -> bool:
    try:
        return json.loads((folder / "config.json").read_text("utf-8"))["model_type"] == "xlnet"
    except (OSError, ValueError, KeyError, TypeError):
        return False
