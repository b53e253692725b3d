"""Attentions of blocks handed to receivers while a network is called."""

from dataclasses import replace

import pytest
import torch
import toy_attention
from glassbox.nodes.common import network_call
from glassbox.nodes.host.attention.receivers import receiving_attentions
from glassbox.nodes.host.attention.token_layout import layout_of
from toy_attention import HEADS, IMAGE, WIDTH, Network, SilentNetwork

TOKENS = 4


def inputs(seed=3):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, WIDTH, 2, IMAGE // 2, generator=generator)
    context = torch.randn(2, TOKENS, WIDTH, generator=generator)
    return x, context


def evaluate(network, receivers=(), *, options=None, watches=False, seed=3):
    x, context = inputs(seed)
    with receiving_attentions(network, receivers, watches=watches):
        return network(x, torch.ones(2), context=context, transformer_options=options or {})


def test_without_receivers_nothing_is_evaluated_again():
    network = Network(True)
    evaluate(network)
    assert network.evaluated == 1


@pytest.mark.parametrize("is_joint", [True, False])
def test_a_receiver_that_changes_nothing(is_joint):
    """The output is the network's bit for bit, whether an attention is returned or not."""
    network = Network(is_joint)
    seen = []

    def receive(call):
        seen.append((call.block, call.number, call.layout.reads_text))
        return call.attend() if len(seen) % 2 else None

    paths = ["blocks0.0", "blocks0.1"]
    changed = evaluate(network, [(path, receive) for path in paths])
    assert torch.equal(changed, evaluate(network))
    reads = [True] if is_joint else [False, True]
    assert seen == [(path, number, read) for path in paths for number, read in enumerate(reads)]


def test_the_values_of_the_text_are_changed():
    """Without the text's values an attention over the text alone adds nothing."""

    def without_text(call):
        if not call.layout.reads_text:
            return None
        value = call.value.clone()
        value[:, :, call.layout.text] = 0
        return replace(call, value=value).attend()

    network = Network(False)
    paths = ["blocks0.0", "blocks0.1"]
    found = evaluate(network, [(path, without_text) for path in paths])
    image = inputs()[0].flatten(2).transpose(1, 2)
    heads = image.unflatten(2, (HEADS, -1)).transpose(1, 2)
    for _ in paths:
        heads = heads + torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
    expected = heads.transpose(1, 2).flatten(2)
    assert (found.flatten(2).transpose(1, 2) - expected).abs().max() < 1e-5
    assert (evaluate(network) - found).abs().max() > 0.1


def test_a_mask_is_changed():
    """Minus infinity at the text's keys is an attention without them."""

    def masked(call):
        mask = torch.zeros(1, 1, 1, call.size[1])
        mask[..., call.layout.text] = -torch.inf
        outputs.append(replace(call, mask=mask).attend())
        weights = (call.query @ call.key.mT * call.scale + mask).softmax(-1)
        expected.append((weights @ call.value).transpose(1, 2).flatten(2))
        return outputs[-1]

    outputs, expected = [], []
    evaluate(Network(True), [("blocks0.1", masked)])
    assert len(outputs) == 1 and (outputs[0] - expected[0]).abs().max() < 2e-6


def test_receivers_of_one_block_hand_on_what_they_change():
    """The first is outermost, also of two that another node has put on."""
    order = []

    def doubled(call):
        order.append("doubled")
        return replace(call, value=2 * call.value).attend()

    def plus_one(call):
        order.append("plus_one")
        values.append(call.value)
        return call.attend() + 1

    values = []
    network = Network(False)
    seen = []
    evaluate(network, [("blocks0.0", lambda call: seen.append(call.value))])
    evaluate(network, [("blocks0.0", doubled), ("blocks0.0", plus_one)])
    assert order == ["doubled", "plus_one"] * 2
    assert torch.equal(values[0], 2 * seen[0])
    together = evaluate(network, [("blocks0.0", doubled), ("blocks0.0", plus_one)])
    with receiving_attentions(network, [("blocks0.0", plus_one)]):
        nested = evaluate(network, [("blocks0.0", doubled)])
    assert torch.equal(nested, together) or (nested - together).abs().max() < 1e-5
    with receiving_attentions(network, [("blocks0.0", doubled)]):
        assert (evaluate(network, [("blocks0.0", plus_one)]) - together).abs().max() < 1e-5


def test_who_watches_sees_no_evaluation_of_others_and_changes_no_gradient():
    network = Network(True)
    seen = []

    def watch(call):
        seen.append(call)
        assert not torch.is_grad_enabled()
        return torch.zeros(())  # a watcher's answer does not count

    x, context = inputs()
    rows = network_call.RowSubset([0], 2)
    given = {"context": context, "transformer_options": {}}
    with receiving_attentions(network, [("blocks0.0", watch)], watches=True):
        with network_call.evaluating_again(rows):
            network(x[:1], torch.ones(1), context=context[:1], transformer_options={})
        assert not seen
        x.requires_grad_()
        output = network(x, torch.ones(2), **given)
    assert len(seen) == 1 and torch.equal(seen[0].attend(), seen[0].attend())
    (found,) = torch.autograd.grad(output.square().sum(), x)
    (expected,) = torch.autograd.grad(network(x, torch.ones(2), **given).square().sum(), x)
    assert torch.equal(found, expected)


def test_a_text_of_another_length_beside_the_call():
    """Its layout comes with its rows."""
    network = Network(True)
    x, context = inputs()
    longer = torch.randn(1, TOKENS + 3, WIDTH)
    given = {"context": longer, "transformer_options": {}}
    rows = network_call.RowSubset([1], 2)
    layout = layout_of(network, (x[:1], torch.ones(1)), given, rows)
    rows = network_call.RowSubset([1], 2, layout=layout)
    lengths = []
    options = []

    def beside(_call):
        if network_call.evaluated_again() is None:
            with network_call.evaluating_again(rows):
                network.forward(x[:1], torch.ones(1), longer, transformer_options=options[0])

    def keep_options(_network, _args, kwargs):
        options.append(kwargs["transformer_options"])

    def receive(call):
        lengths.append((len(call.query), int(call.layout.text_keys.sum())))

    with receiving_attentions(network, [("blocks0.0", beside), ("blocks0.1", receive)]):
        handle = network.register_forward_pre_hook(keep_options, with_kwargs=True)
        network(x, torch.ones(2), context=context, transformer_options={})
        handle.remove()
    assert lengths == [(1, TOKENS + 3), (2, TOKENS)]


def test_attentions_of_a_network_that_hands_over_no_options():
    """Two nodes that change one attention; another pack's override, which stock never calls, is
    not called.
    """
    network = SilentNetwork()
    function = toy_attention.optimized_attention

    def foreign(*_args, **_options):
        raise AssertionError

    def plus(amount):
        return lambda call: call.attend() + amount

    options = {"optimized_attention_override": foreign}
    with receiving_attentions(network, [("blocks.1", plus(1.0))]):
        found = evaluate(network, [("blocks.1", plus(2.0))], options=options)
    # The last block's self-attention moves what its attention to the text reads.
    assert torch.equal(evaluate(network, options=options), evaluate(network))
    once = evaluate(network, [("blocks.1", plus(3.0))])
    assert torch.allclose(found, once, atol=1e-5) and (found - evaluate(network)).abs().max() > 1
    assert toy_attention.optimized_attention is function
