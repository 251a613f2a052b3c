"""Guards the two streams: equal to `transformers.XLNetLMHeadModel` and to the equations, and no target sees itself."""

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional as F

import reference
from aplc.data.batches import NO_LABEL
from aplc.errors import ModelError
from aplc.nn.xlnet import XLNet, XLNetConfig
from aplc.pretrain import objective
from aplc.pretrain.config import ObjectiveConfig
from aplc.pretrain.objective import PermutationLM, tied_cross_entropy
from aplc.pretrain.permutation import make_batch, perm_mask

SIZES = {"vocab_size": 90, "d_model": 48, "n_layer": 3, "n_head": 4, "d_inner": 96}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tiny products gain nothing from a second thread, and wait for it when the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pair(seed=0, **changes):
    """(ours, theirs) in eval mode with the same weights, larger than those of a new model so that every term counts."""
    sizes = {**SIZES, **changes}
    torch.manual_seed(seed)
    theirs = transformers.XLNetLMHeadModel(transformers.XLNetConfig(**sizes)).eval()
    for name, parameter in theirs.named_parameters():
        torch.nn.init.normal_(parameter, float(name.endswith("layer_norm.weight")), 0.2)
    ours = PermutationLM(XLNet(XLNetConfig(**sizes))).eval()
    ours.load_state_dict({name: t for name, t in theirs.state_dict().items() if name != "lm_loss.weight"})
    return ours, theirs


def batch_of(tokens, rows=3, seed=0, one_in=6):
    rng = np.random.default_rng(seed)
    ids = [rng.integers(0, 90, tokens) for _ in range(rows)]
    types = [np.sort(rng.integers(0, 4, tokens)) for _ in range(rows)]
    special = [rng.random(tokens) < 0.05 for _ in range(rows)]
    return make_batch(ids, types, special, rng.random(90) < 0.6, ObjectiveConfig(one_in=one_in), rng)


def given_to_transformers(batch):
    return {
        "input_ids": batch.input_ids,
        "token_type_ids": batch.token_type_ids,
        "perm_mask": perm_mask(batch.order).float(),
        "target_mapping": F.one_hot(batch.places, batch.input_ids.shape[1]).float(),
        "labels": batch.labels,
    }


@pytest.mark.parametrize("tokens", [2, 7, 48, 130, 257])
def test_two_streams_and_loss_match_transformers(tokens):
    ours, theirs = pair(seed=tokens)
    batch = batch_of(tokens)
    with torch.no_grad():
        loss, _ = ours(batch)
        query, _ = ours.two_streams(batch.input_ids, batch.token_type_ids, perm_mask(batch.order), batch.places)
        expected = theirs(**given_to_transformers(batch), output_hidden_states=True)
    real = batch.labels != NO_LABEL
    torch.testing.assert_close(query[real], expected.hidden_states[-1][real], atol=1e-5, rtol=0)
    torch.testing.assert_close(ours.logits(query)[real], expected.logits[real], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loss, expected.loss, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("mem_len", "reuse_len"), [(40, None), (20, 10), (200, None)])
def test_memory_over_segments_matches_transformers(mem_len, reuse_len):
    ours, theirs = pair(mem_len=mem_len, reuse_len=reuse_len)
    mems = their_mems = None
    for seed in range(4):
        batch = batch_of(50, seed=seed)
        with torch.no_grad():
            loss, new = ours(batch, mems)
            expected = theirs(**given_to_transformers(batch), mems=their_mems, use_mems=True)
        torch.testing.assert_close(loss, expected.loss, atol=1e-5, rtol=0)
        assert len(new) == len(expected.mems)
        for mine, their in zip(new, expected.mems, strict=True):
            torch.testing.assert_close(mine, their.transpose(0, 1), atol=1e-5, rtol=0)
        mems, their_mems = new, expected.mems


@pytest.mark.parametrize("memory", [False, True])
def test_gradients_match_transformers(memory):
    """transformers runs two streams in float32 only, where the segment term's gradients are good to some 1e-3."""
    ours, theirs = pair(mem_len=30)
    batch, their_mems, mems = batch_of(60), None, None
    if memory:
        before = batch_of(60, seed=9)
        mems = ours(before)[1]
        their_mems = theirs(**given_to_transformers(before), use_mems=True).mems
    ours(batch, mems)[0].backward()
    theirs(**given_to_transformers(batch), mems=their_mems, use_mems=True).loss.backward()
    expected = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        bound = 3e-3 if "seg_embed" in name or "r_s_bias" in name else 1e-4
        assert (parameter.grad - expected[name].grad).norm() <= bound * expected[name].grad.norm(), name


@pytest.mark.parametrize("memory", [False, True])
def test_two_streams_match_reference(memory):
    ours, _ = pair(seed=5, d_model=16, n_head=2, d_inner=24, n_layer=2, mem_len=6)
    batch, mems = batch_of(14, rows=2, one_in=3), None
    with torch.no_grad():
        if memory:
            mems = ours(batch_of(14, rows=2, one_in=3, seed=8))[1]
        found, _ = ours.two_streams(batch.input_ids, batch.token_type_ids, perm_mask(batch.order), batch.places, mems)
        for row in range(2):
            columns = [x[row].tolist() for x in (batch.input_ids, batch.token_type_ids, batch.order)]
            own = None if mems is None else [layer[row] for layer in mems]
            expected = reference.two_streams(ours, *columns, own)
            assert sorted(expected) == sorted(batch.places[row].tolist())
            for n, place in enumerate(batch.places[row].tolist()):
                torch.testing.assert_close(found[row, n], expected[place], atol=1e-5, rtol=0)


@pytest.mark.parametrize("tokens", [24, 60])
def test_no_target_sees_itself_or_later_ones(tokens):
    """Each input token is changed in turn; exactly the targets that come later in the order than it move."""
    ours, _ = pair(seed=1)
    batch = batch_of(tokens, rows=2, one_in=3)
    args = (batch.token_type_ids, perm_mask(batch.order), batch.places)
    with torch.no_grad():
        before, _ = ours.two_streams(batch.input_ids, *args)
        for j in range(tokens):
            changed = batch.input_ids.clone()
            changed[:, j] = (changed[:, j] + 1) % 90
            moved = (ours.two_streams(changed, *args)[0] != before).any(-1)
            for row in range(2):
                own, place = batch.order[row], batch.places[row]
                may = torch.tensor([bool(own[j] < own[p]) for p in place])  # context is -1, before all
                assert torch.equal(moved[row], may), (row, j)


def test_memory_helps_every_target_and_gets_no_gradient():
    ours, _ = pair(mem_len=20)
    batch = batch_of(30)
    _, mems = ours(batch_of(30, seed=3))
    assert not any(memory.requires_grad for memory in mems)
    args = (batch.input_ids, batch.token_type_ids, perm_mask(batch.order), batch.places)
    with torch.no_grad():
        with_memory, without = ours.two_streams(*args, mems)[0], ours.two_streams(*args)[0]
    assert ((with_memory - without).abs().amax(-1) > 1e-6).all()


@pytest.mark.parametrize("chunk", [1, 200, 1 << 22])
def test_tied_cross_entropy_matches_torch(monkeypatch, chunk):
    monkeypatch.setattr(objective, "CHUNK", chunk)
    torch.manual_seed(0)
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((17, 8), (50, 8), (50,))]
    labels = torch.randint(0, 50, (17,))
    labels[[3, 9]] = NO_LABEL
    found = tied_cross_entropy(*tensors, labels)
    expected = F.cross_entropy(F.linear(*tensors), labels, ignore_index=NO_LABEL)
    torch.testing.assert_close(found, expected)
    gradients = zip(torch.autograd.grad(3 * found, tensors), torch.autograd.grad(3 * expected, tensors), strict=True)
    for mine, their in gradients:
        torch.testing.assert_close(mine, their)
    assert tied_cross_entropy(*tensors, torch.full((17,), NO_LABEL)) == 0


def test_checkpointing_gives_the_same_gradients():
    ours, _ = pair(dropout=0.1)
    batch, results = batch_of(60), []
    for on in (False, True):
        ours.train().transformer.checkpoint_activations = on
        torch.manual_seed(0)
        ours.zero_grad()
        ours(batch)[0].backward()
        results.append({name: p.grad.clone() for name, p in ours.named_parameters() if p.grad is not None})
    for name, gradient in results[0].items():
        torch.testing.assert_close(results[1][name], gradient, msg=name)


def test_saved_model_loads_in_transformers_and_here(tmp_path):
    ours, _ = pair(mem_len=20)
    ours.save_pretrained(tmp_path)
    theirs, info = transformers.XLNetLMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    batch = batch_of(20)
    with torch.no_grad():
        loss, _ = ours(batch)
        torch.testing.assert_close(theirs.eval()(**given_to_transformers(batch)).loss, loss, atol=1e-5, rtol=0)
        assert torch.equal(PermutationLM.from_pretrained(tmp_path).eval()(batch)[0], loss)
    ours.save_pretrained(tmp_path, dtype=torch.float16)
    with torch.no_grad():
        half, _ = PermutationLM.from_pretrained(tmp_path).eval()(batch)
    torch.testing.assert_close(half, loss, atol=0.02, rtol=0)


@pytest.mark.parametrize("head", [False, True])
def test_checkpoint_of_transformers_loads(tmp_path, head):
    _, theirs = pair()
    (theirs if head else theirs.transformer).save_pretrained(tmp_path)
    ours = PermutationLM.from_pretrained(tmp_path).eval()
    if not head:
        theirs.lm_loss.bias.data.zero_()
    batch = batch_of(20)
    with torch.no_grad():
        torch.testing.assert_close(ours(batch)[0], theirs(**given_to_transformers(batch)).loss, atol=1e-5, rtol=0)


def test_output_bias_of_another_model_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    pair()[0].save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"lm_loss.bias": torch.zeros(7)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"lm_loss.bias has shape \(7,\)"):
        PermutationLM.from_pretrained(tmp_path)
