"""Guards XLNet: states, gradients, memory and files against `transformers.XLNetModel` with the same weights, errors."""

import copy
import json

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from aplc.errors import ModelError
from aplc.nn.relative import dropout, relative_attention, relative_shift
from aplc.nn.xlnet import XLNet, XLNetConfig

SIZES = {"vocab_size": 90, "d_model": 48, "n_layer": 3, "n_head": 4, "d_inner": 96}


def pair(seed=0, std=0.1, **changes):
    """(ours, theirs) in eval mode with the same weights, larger than those of a new model so that every term counts."""
    sizes = {**SIZES, "mem_len": None, **changes}
    torch.manual_seed(seed)
    theirs = transformers.XLNetModel(transformers.XLNetConfig(**sizes)).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, 0.0, std)
    ours = XLNet(XLNetConfig(**sizes)).eval()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def inputs(lengths, tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 90, (len(lengths), tokens), generator=generator)
    mask = (torch.arange(tokens) >= tokens - torch.tensor(lengths)[:, None]).long()
    types = torch.zeros_like(ids)
    types[:, -1] = 2
    types[mask == 0] = 3
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


@pytest.mark.parametrize("tokens", [1, 2, 3, 47, 48, 127, 128, 129, 300, 512, 600])
def test_xlnet_matches_transformers(tokens):
    ours, theirs = pair(seed=tokens)
    batch = inputs([tokens, max(1, tokens // 2), 1], tokens)
    with torch.no_grad():
        for names in ((), ("attention_mask",), ("token_type_ids",), ("attention_mask", "token_type_ids")):
            given = {name: batch[name] for name in ("input_ids", *names)}
            expected = theirs(**given).last_hidden_state
            torch.testing.assert_close(ours(**given, last_only=False), expected, atol=1e-5, rtol=0)
            torch.testing.assert_close(ours(**given), expected[:, -1], atol=1e-5, rtol=0)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 200), st.integers(0, 10**6))
def test_xlnet_matches_transformers_at_any_length(tokens, seed):
    ours, theirs = pair(seed=3)
    lengths = torch.randint(1, tokens + 1, (3,), generator=torch.Generator().manual_seed(seed)).tolist()
    batch = inputs(lengths, tokens, seed)
    with torch.no_grad():
        expected = theirs(**batch).last_hidden_state[:, -1]
        torch.testing.assert_close(ours(**batch), expected, atol=1e-5, rtol=0)


def test_left_padding_of_every_amount_changes_nothing():
    ours, _ = pair()
    batch = inputs([60], 60)
    with torch.no_grad():
        alone = ours(**batch)
        for amount in range(0, 90, 10):
            padded = {name: torch.nn.functional.pad(x, (amount, 0)) for name, x in batch.items()}
            torch.testing.assert_close(ours(**padded), alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", ["small", "base"])
def test_xlnet_matches_transformers_at_real_sizes(size):
    widths = {"small": (256, 4, 1024), "base": (768, 12, 3072)}[size]
    ours, theirs = pair(d_model=widths[0], n_head=widths[1], d_inner=widths[2], n_layer=2, std=0.02)
    batch = inputs([512, 300], 512)
    with torch.no_grad():
        expected = theirs(**batch).last_hidden_state[:, -1]
        torch.testing.assert_close(ours(**batch), expected, atol=1e-5, rtol=0)


def gradients(model, batch, weights, last):
    model.zero_grad()
    out = model(**batch)
    out = out.last_hidden_state[:, -1] if last else out
    (out * weights).sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("tokens", [5, 48, 130, 257])
def test_gradients_match_transformers(tokens):
    """Against transformers in float64. The segment term's gradients are small differences of large sums, in float32 no
    better than 1e-4 in transformers itself; there ours must be as good as theirs."""
    ours, theirs = pair(seed=1)
    batch = inputs([tokens, max(1, tokens - 3)], tokens)
    weights = torch.randn(2, 48)
    exact = gradients(copy.deepcopy(theirs).double(), batch, weights.double(), last=True)
    found, single = gradients(ours, batch, weights, last=False), gradients(theirs, batch, weights, last=True)
    assert found.keys() == exact.keys()
    for name, gradient in exact.items():
        error, their_error = ((g[name] - gradient).norm() / gradient.norm() for g in (found, single))
        assert error < (1e-4 + 4 * their_error if "seg_embed" in name or "r_s_bias" in name else 1e-4), name


def test_gradients_match_transformers_in_float64():
    ours, theirs = (model.double() for model in pair(seed=2))
    batch, weights = inputs([70, 20], 70), torch.randn(2, 48).double()
    found, exact = gradients(ours, batch, weights, last=False), gradients(theirs, batch, weights, last=True)
    for name, gradient in exact.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-9, rtol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


def test_relative_shift_reads_the_right_distance():
    queries, keys = 3, 5
    distance = torch.arange(keys, -queries, -1).expand(2, queries, -1).contiguous()  # every row: K ... 1 - Q
    expected = (keys - queries + torch.arange(queries))[:, None] - torch.arange(keys)
    assert torch.equal(relative_shift(distance, keys), expected.expand(2, -1, -1))


@pytest.mark.parametrize(("queries", "keys"), [(64, 64), (129, 129), (64, 200), (300, 301)])
def test_blocked_attention_matches_sdpa(queries, keys, monkeypatch):
    torch.manual_seed(0)
    tensors = [torch.randn(2, n, 3, 8) * 0.3 for n in (queries, queries, keys, keys)]
    tensors += [torch.randn(keys + queries, 3, 8) * 0.3, torch.randn(2, queries, 3)]
    differ, mask = torch.randint(0, 2, (2, queries, keys)).float(), torch.zeros(2, queries, keys)
    mask[0, :, :10] = -1e30
    target = torch.randn(2, queries, 3, 8)
    results = []
    for short in (1, 10**6):
        monkeypatch.setattr("aplc.nn.relative.SHORT", short)
        leaves = [t.clone().requires_grad_() for t in tensors]
        out = relative_attention(*leaves[:5], seg_BQH=leaves[5], differ_BQK=differ, mask_BQK=mask)
        (out * target).sum().backward()
        results.append([out, *(leaf.grad for leaf in leaves)])
    for fast, slow in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow, atol=2e-5, rtol=1e-4)


def test_attention_dropout_has_the_right_mean_and_gradient():
    """With a fixed seed attention with dropout is a smooth function, so a finite difference checks its backward."""
    torch.manual_seed(0)
    q, k, v, r = torch.randn(1, 60, 2, 4), torch.randn(1, 60, 2, 4), torch.randn(1, 60, 2, 4), torch.randn(120, 2, 4)

    def run(q, k, v, r):
        torch.manual_seed(5)
        return relative_attention(q, q * 0.5, k, v, r, dropout=0.3)

    leaves = [t.clone().requires_grad_() for t in (q, k, v, r)]
    weights = torch.randn(1, 60, 2, 4)
    (run(*leaves) * weights).sum().backward()
    for i, leaf in enumerate(leaves):
        direction = torch.randn_like(leaf)
        moved = [[t + sign * 1e-2 * direction if j == i else t for j, t in enumerate((q, k, v, r))] for sign in (1, -1)]
        slope = sum(sign * (run(*m) * weights).double().sum() for sign, m in zip((1, -1), moved, strict=True)) / 2e-2
        assert (leaf.grad * direction).sum().item() == pytest.approx(slope.item(), rel=0.02, abs=0.02)
    mean = torch.stack([relative_attention(q, q, k, v, r, dropout=0.3) for _ in range(400)]).mean(0)
    torch.testing.assert_close(mean, relative_attention(q, q, k, v, r), atol=0.25, rtol=0)


def test_dropout_keeps_the_right_share():
    torch.manual_seed(0)
    x = torch.ones(500_001, requires_grad=True)
    y = dropout(x, 0.1, True)
    assert (y == 0).float().mean().item() == pytest.approx(0.1, abs=0.002)
    assert y.max().item() == pytest.approx(1 / 0.9)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert dropout(x, 0.1, False) is x


def test_dropout_in_training_follows_the_seed():
    ours, _ = pair(dropout=0.2)
    batch = inputs([64, 64], 64)
    torch.manual_seed(0)
    first = ours.train()(**batch)
    torch.manual_seed(0)
    assert torch.equal(ours(**batch), first)
    assert not torch.equal(ours(**batch), first)


@pytest.mark.parametrize("mem_len", [None, 20, 100])
def test_memory_matches_transformers(mem_len):
    ours, theirs = pair(mem_len=mem_len)
    mems = their_mems = None
    with torch.no_grad():
        for seed in range(3):
            batch = inputs([64, 64], 64, seed)
            expected = theirs(**batch, mems=their_mems, use_mems=True)
            found, new = ours(**batch, mems=mems, last_only=False), ours.memorize(**batch, mems=mems)
            for memory, their_memory in zip(new, expected.mems, strict=True):
                torch.testing.assert_close(memory, their_memory.transpose(0, 1), atol=1e-5, rtol=0)
            torch.testing.assert_close(found, expected.last_hidden_state, atol=1e-5, rtol=0)
            mems, their_mems = new, expected.mems


def test_clamped_distances_match_transformers():
    ours, theirs = pair(clamp_len=7)
    batch = inputs([64, 30], 64)
    torch.testing.assert_close(ours(**batch), theirs(**batch).last_hidden_state[:, -1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("activation", ["relu", "silu", "gelu_new"])
def test_activations_match_transformers(activation):
    ours, theirs = pair(ff_activation=activation)
    batch = inputs([9], 9)
    torch.testing.assert_close(ours(**batch), theirs(**batch).last_hidden_state[:, -1], atol=1e-5, rtol=0)


def test_right_padding_is_refused():
    ours, _ = pair()
    batch = inputs([5, 5], 5)
    batch["attention_mask"][1, -1] = 0
    with pytest.raises(ValueError, match="pad on the left"):
        ours(**batch)


def test_checkpointed_activations_give_the_same_gradients():
    ours, _ = pair(dropout=0.1)
    batch, weights = inputs([64, 40], 64), torch.randn(2, 48)
    results = []
    for on in (False, True):
        ours.train().checkpoint_activations = on
        torch.manual_seed(0)
        results.append(gradients(ours, batch, weights, last=False))
    for name, gradient in results[0].items():
        torch.testing.assert_close(results[1][name], gradient, msg=name)


def test_initialisation_matches_transformers():
    ours, theirs = XLNet(XLNetConfig(**SIZES)), transformers.XLNetModel(transformers.XLNetConfig(**SIZES))
    expected = theirs.state_dict()
    assert ours.state_dict().keys() == expected.keys()
    for name, tensor in ours.state_dict().items():
        assert tensor.shape == expected[name].shape
        if expected[name].unique().numel() == 1:
            assert torch.equal(tensor, expected[name]), name
        else:
            noise = 5 / tensor.numel() ** 0.5
            assert tensor.std().item() == pytest.approx(0.02, rel=noise)
            assert tensor.mean().item() == pytest.approx(0.0, abs=0.02 * noise)


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("head", [False, True])
def test_checkpoint_of_transformers_loads(tmp_path, head, shards):
    cls = transformers.XLNetLMHeadModel if head else transformers.XLNetModel
    theirs = cls(transformers.XLNetConfig(**SIZES)).eval()
    theirs.save_pretrained(tmp_path, **({"max_shard_size": "40KB"} if shards else {}))
    assert len(list(tmp_path.glob("*.safetensors"))) > 1 if shards else (tmp_path / "model.safetensors").is_file()
    ours = XLNet.from_pretrained(tmp_path).eval()
    assert (ours.unused_weights != []) == head
    batch = inputs([9, 4], 9)
    expected = (theirs.transformer if head else theirs)(**batch).last_hidden_state[:, -1]
    torch.testing.assert_close(ours(**batch), expected, atol=1e-5, rtol=0)


def test_our_checkpoint_loads_in_transformers_and_here(tmp_path):
    ours, _ = pair()
    ours.save_pretrained(tmp_path)
    theirs, info = transformers.XLNetModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    batch = inputs([9, 4], 9)
    expected = ours(**batch)
    torch.testing.assert_close(theirs.eval()(**batch).last_hidden_state[:, -1], expected, atol=1e-5, rtol=0)
    assert torch.equal(XLNet.from_pretrained(tmp_path).eval()(**batch), expected)
    assert XLNet.from_pretrained(tmp_path, dropout=0.5).config.dropout == 0.5


def test_a_checkpoint_that_can_not_be_saved_leaves_the_one_before(tmp_path, monkeypatch):
    pair()[0].save_pretrained(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()

    def half(tensors, path, **_):
        path.write_bytes(before[:100])
        raise RuntimeError("killed")

    monkeypatch.setattr("aplc.nn.xlnet.save_file", half)
    with pytest.raises(RuntimeError, match="killed"):
        pair()[0].save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_unusable_checkpoints_are_refused_by_what_is_wrong(tmp_path):
    pair()[0].save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())

    def rewrite(**changes):
        (tmp_path / "config.json").write_text(json.dumps(config | changes))

    for changes, message in (
        ({"d_model": 96}, r"word_embedding.weight has shape \(90, 48\) but config.json asks for \(90, 96\)|d_head"),
        ({"vocab_size": 91}, r"word_embedding.weight has shape \(90, 48\) .*\(91, 48\)"),
        ({"n_layer": 4}, "17 of .* tensors are missing"),
        ({"attn_type": "uni"}, "attn_type 'uni'"),
        ({"bi_data": True}, "bi_data"),
        ({"model_type": "bert"}, "model_type 'bert'"),
        ({"ff_activation": "swish2"}, "ff_activation"),
        ({"n_head": 5, "d_head": None}, "multiple of n_head"),
    ):
        rewrite(**changes)
        with pytest.raises(ModelError, match=message):
            XLNet.from_pretrained(tmp_path)
    rewrite()
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no weights in"):
        XLNet.from_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match="save_pretrained"):
        XLNet.from_pretrained(tmp_path)
    save_file(tensors, tmp_path / "model.safetensors")
    content = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match="damaged"):
        XLNet.from_pretrained(tmp_path)


def test_xlnet_exports_with_dynamic_batch_and_length():
    ours, _ = pair()
    batch = inputs([64, 30], 64)
    docs, tokens = torch.export.Dim("docs", min=1, max=64), torch.export.Dim("tokens", min=2, max=1024)
    shapes = {name: {0: docs, 1: tokens} for name in batch}
    program = torch.export.export(ours, (), batch, dynamic_shapes=shapes)
    for lengths, size in (([7], 7), ([90, 3, 50], 90)):
        other = inputs(lengths, size)
        torch.testing.assert_close(program.module()(**other), ours(**other), atol=1e-5, rtol=0)


def test_xlnet_runs_under_bfloat16_autocast():
    ours, _ = pair()
    batch = inputs([64, 30], 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = ours(**batch)
        out.sum().backward()
    torch.testing.assert_close(out.float(), ours(**batch), atol=0.1, rtol=0.1)


def test_xlnet_compiles_without_a_graph_break():
    ours, _ = pair()
    batch = inputs([64, 30], 64)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(**batch), ours(**batch), atol=1e-5, rtol=0)
