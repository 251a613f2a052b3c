"""From token states to one vector per document: which state stands for it, and how long documents are cut in windows.

Encoders differ in the token that they were trained to read: BERT's `[CLS]` comes first, XLNet's `<cls>` last, and
sentence encoders take the mean. `choose_pooling` picks by family and gives its reason, which is shown to the user.

Shapes: B documents, T tokens, R windows of all documents, D width.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from aplc.files import read_json

_FIRST_TOKEN = {
    *("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "ernie", "longformer"),
    *("modernbert", "roberta", "xlm-roberta"),
}


def choose_pooling(family: str, folder: Path | None, source: str) -> tuple[str, str]:
    """(pooling, reason) for an encoder of this family; `folder` is where its checkpoint lies, if it has one."""
    if family == "xlnet":
        return "last", "XLNet's <cls> ends the text"
    if folder is not None and (folder / "1_Pooling" / "config.json").is_file():
        modes = read_json(folder / "1_Pooling" / "config.json")
        for pooling, key in (("first", "cls"), ("last", "lasttoken"), ("mean", "mean")):
            if modes.get(f"pooling_mode_{key}_token") or modes.get("pooling_mode") == key:
                return pooling, "its 1_Pooling/config.json says so"
        return "mean", "a sentence encoder, see its 1_Pooling/config.json"
    if folder is not None and (folder / "modules.json").is_file():
        return "mean", "a sentence encoder, it has a modules.json"
    if family == "mpnet" or "minilm" in source.lower():
        return "mean", "MPNet and MiniLM are mostly trained as sentence encoders"
    if family in _FIRST_TOKEN:
        return "first", f"{family}'s classification token begins the text"
    return "mean", f"there is no rule for {family}, and the mean works for any encoder"


def pool(states_BTD: Tensor, mask_BT: Tensor, pooling: str, *, pad_left: bool) -> Tensor:
    """The first or the last token's state, or the mean of all, (B, D). Padding does not count."""
    if pooling == "mean":
        weights_BT1 = mask_BT[..., None].to(states_BTD.dtype)
        return (states_BTD * weights_BT1).sum(1) / weights_BT1.sum(1).clamp_min(1)
    if pad_left == (pooling == "last"):  # no padding on this side
        return states_BTD[:, -1 if pad_left else 0]
    length_B = mask_BT.sum(1)
    at_B = mask_BT.shape[1] - length_B if pad_left else length_B - 1
    return states_BTD[torch.arange(len(at_B), device=at_B.device), at_B]


def split_windows(
    mask_BT: Tensor, length: int, *, specials: tuple[int, int], pad_left: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cut each document into as few windows of at most `length` tokens as possible, of about equal length.

    Every window repeats the document's special tokens: `specials` says how many stand before and after the text.
    Returns the columns of `mask_BT` that each window takes (R, T'), the windows' mask (R, T'), the document of each
    window (R,), and the number of windows of each document (B,).
    """
    before, after = specials
    room = length - before - after
    whole_B = mask_BT.sum(1).long()
    text_B = (whole_B - before - after).clamp_min(0)
    n_B = ((text_B + room - 1) // room).clamp_min(1)
    size_B = (text_B + n_B - 1) // n_B
    doc_R = torch.repeat_interleave(torch.arange(len(n_B), device=n_B.device), n_B)
    number_R = torch.arange(len(doc_R), device=n_B.device) - (n_B.cumsum(0) - n_B)[doc_R]
    skip_R = number_R * size_B[doc_R]
    taken_R = torch.minimum(size_B[doc_R], text_B[doc_R] - skip_R)
    total_R = taken_R + torch.minimum(whole_B, whole_B.new_tensor(before + after))[doc_R]
    width = int(total_R.max())
    place_RT = torch.arange(width, device=n_B.device).expand(len(doc_R), width)
    if pad_left:
        place_RT = place_RT - (width - total_R)[:, None]
    mask_RT = (place_RT >= 0) & (place_RT < total_R[:, None])
    column_RT = place_RT + torch.where(place_RT >= before, skip_R[:, None], 0)
    from_end_RT = whole_B[doc_R][:, None] - (total_R[:, None] - place_RT)
    column_RT = torch.where(place_RT >= before + taken_R[:, None], from_end_RT, column_RT)
    if pad_left:
        column_RT = column_RT + (mask_BT.shape[1] - whole_B)[doc_R][:, None]
    return torch.where(mask_RT, column_RT, 0), mask_RT.to(mask_BT.dtype), doc_R, n_B


def longest_document(long_text: str, max_length: int, max_segments: int, specials: tuple[int, int]) -> int:
    """Tokens that are read of a document, special tokens included."""
    if long_text == "windows":
        return sum(specials) + max_segments * (max_length - sum(specials))
    return max_length * (max_segments if long_text == "memory" else 1)


def average_windows(
    encode: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    input_ids: Tensor,
    attention_mask: Tensor,
    token_type_ids: Tensor | None,
    length: int,
    specials: tuple[int, int],
    pad_left: bool,
) -> Tensor:
    """(B, T) each -> (B, D): every window of at most `length` tokens encoded, then averaged by document."""
    source_RT, mask_RT, doc_R, n_B = split_windows(attention_mask, length, specials=specials, pad_left=pad_left)
    ids_RT = input_ids[doc_R[:, None], source_RT]
    types_RT = None if token_type_ids is None else token_type_ids[doc_R[:, None], source_RT]
    vectors_RD = encode(ids_RT, mask_RT, types_RT)
    sum_BD = vectors_RD.new_zeros(len(input_ids), vectors_RD.shape[1]).index_add(0, doc_R, vectors_RD)
    return sum_BD / n_B[:, None]
