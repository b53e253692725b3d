"""Every attention of a network with its queries and keys, and where text and image stand in it."""

import pytest
import torch
import toy_attention
from glassbox.nodes.common import attention, network_call
from glassbox.nodes.host.attention import reader, side_evaluation, token_layout
from toy_attention import HEADS, IMAGE, WIDTH, Network, PaddedNetwork, SilentNetwork, attend


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("is_split_after", [False, True])
@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("mask", [None, "bool", "rows", "numbers"])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_the_attention_from_its_parts(is_split, is_split_after, key_heads, mask, scale):
    """softmax(logits) v equals the output to 2e-6, for each way in which ComfyUI hands it over."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((4, 5), (key_heads, 7), (key_heads, 7))
    tensors = [torch.randn(2, heads, count, 3, generator=generator) for heads, count in shapes]
    masks = {
        None: None,
        "bool": torch.rand(5, 7, generator=generator) > 0.3,
        "rows": torch.rand(2, 1, 1, 7, generator=generator) > 0.3,
        "numbers": torch.randn(2, 1, 5, 7, generator=generator),
    }
    seen = []

    def receive(call):
        seen.append((call, call.attend()))
        return seen[-1][1]

    given = tensors if is_split else [one.transpose(1, 2).flatten(2) for one in tensors]
    override = reader.AttentionOverride(receive)
    options = {"skip_reshape": is_split, "skip_output_reshape": is_split_after}
    options |= {"scale": scale, "enable_gqa": key_heads < 4}
    options["transformer_options"] = {reader.OVERRIDE: override}
    output = attend(*given, 4, mask=masks[mask], **options)
    ((call, attended),) = seen
    assert output is attended and call.size == (5, 7)
    value = call.value.repeat_interleave(4 // key_heads, 1)
    expected = attention.logits(call, slice(1, 4)).softmax(-1) @ value
    found = output if is_split_after else output.unflatten(-1, (4, 3)).transpose(1, 2)
    assert call.token_dimension == (2 if is_split_after else 1)
    assert (found[:, :, 1:4] - expected).abs().max() < 2e-6


def test_another_override_acts_within():
    def other(attend, *args, **options):
        return 2 * attend(*args, **options)

    override = reader.AttentionOverride(lambda call: call.attend() + 1, other)
    tensors = [torch.randn(1, 3, WIDTH) for _ in range(3)]
    plain = attend(*tensors, HEADS)
    changed = attend(*tensors, HEADS, transformer_options={reader.OVERRIDE: override})
    assert torch.equal(changed, 2 * plain + 1)


def layouts(network, tokens, image=IMAGE):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, WIDTH, 2, image // 2, generator=generator)
    context = torch.randn(3, tokens, WIDTH, generator=generator)
    given = {"context": context, "transformer_options": {}}
    subset = network_call.RowSubset([0, 1, 2], 3)
    return token_layout.layout_of(network, (x, torch.ones(3)), given, subset).layouts


def test_text_and_image_in_one_sequence():
    """Also in a second list of blocks, where everything has changed with both."""
    found = layouts(Network(True, True), 4)
    assert [kind[0] for kind in found] == ["blocks0", "blocks1"]
    for layout in found.values():
        assert layout.text == slice(2, 6) and layout.image == slice(6, 12) and layout.reads_text
        assert not layout.text_keys[:2].any() and not layout.image_keys[:6].any()


@pytest.mark.parametrize(("before", "behind"), [(0, 0), (0, 5), (3, 0), (2, 4)])
def test_the_prompt_among_padding_that_has_read_it(before, behind):
    """Two registers stand in front of the text."""
    layout = layouts(PaddedNetwork(before, behind), 4)[
        ("blocks", 0, *[6 + before + behind + 6] * 2)
    ]
    assert layout.text == slice(2, 2 + before + 4 + behind)
    assert layout.prompt == slice(2 + before, 2 + before + 4)


def test_a_network_that_hands_over_no_options():
    """Its modules have their function back at the end, also where the network fails."""
    function = toy_attention.optimized_attention
    own, cross = layouts(SilentNetwork(), 4).values()
    assert own.image_keys.all() and not own.reads_text
    assert cross.reads_text and cross.prompt == slice(0, 4)
    assert toy_attention.optimized_attention is function


def test_other_options_reach_the_evaluations_and_patches_do_not():
    """Patches of others would move tokens, or count an evaluation that nobody sees."""
    seen = []

    class Noting(Network):
        def forward(self, x, timesteps, context, transformer_options):
            seen.append(set(transformer_options))
            return super().forward(x, timesteps, context, transformer_options)

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, WIDTH, 2, IMAGE // 2, generator=generator)
    context = torch.randn(3, 4, WIDTH, generator=generator)
    names = ("patches", "patches_replace", "wrappers", "sigmas", "another_pack")
    given = {"context": context, "transformer_options": dict.fromkeys(names, "value")}
    subset = network_call.RowSubset([0, 1, 2], 3)
    token_layout.layout_of(Noting(True), (x, torch.ones(3)), given, subset)
    assert seen and all(options == {"sigmas", "another_pack", reader.OVERRIDE} for options in seen)


def test_as_many_words_as_positions():
    """Self-attention and the attention to the text, whose sizes are the same."""
    own, cross = layouts(Network(False), IMAGE).values()
    assert not own.reads_text and own.image_keys.all() and own.image == slice(0, IMAGE)
    assert cross.reads_text and cross.text_keys.all() and not cross.image_keys.any()


def test_a_network_is_evaluated_once_for_each_size():
    network = Network(True)
    layouts(network, 4)
    assert network.evaluated == 3
    layouts(network, 4)
    assert network.evaluated == 3
    layouts(network, 5)
    assert network.evaluated == 6


def test_work_beside_goes_on_where_it_stopped():
    seen = []

    def work(evaluation):
        for number in range(3):
            seen.append((number, torch.is_inference_mode_enabled()))
            evaluation.pause()
        raise ValueError("at the end")

    with torch.inference_mode():
        evaluation = side_evaluation.SideEvaluation(work)
    assert not seen
    for count in range(1, 4):
        evaluation.resume()
        assert seen[-1] == (count - 1, True) and len(seen) == count
    with pytest.raises(ValueError, match="at the end"):
        evaluation.resume()
    assert evaluation.is_over
    evaluation.close()


@pytest.mark.parametrize("steps", [0, 2])
def test_work_beside_that_is_left(steps):
    ended = []

    def work(evaluation):
        try:
            while True:
                evaluation.pause()
        finally:
            ended.append(True)

    evaluation = side_evaluation.SideEvaluation(work)
    for _ in range(steps):
        evaluation.resume()
    evaluation.close()
    assert evaluation.is_over and bool(ended) == bool(steps)
