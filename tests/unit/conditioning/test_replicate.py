"""Noisy replicate padding on plain tensors: what stays, the noise on the copies, and its effect on
attention.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from glassbox.nodes.conditioning.replicate_padding import (
    Padding,
    PaddingSettings,
    PromptChunk,
    describe_padding,
    replace_padding,
)

SLOTS, CHANNELS = 77, 16


def chunk(real, rows=slice(0, SLOTS), channels=slice(0, CHANNELS)):
    return PromptChunk("l", rows, channels, real)


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("padding", ["noisy_copies", "copies", "zeros", "stock"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shape_dtype_and_the_prompt_itself_stay(padding, dtype):
    given = gaussian(1, SLOTS, CHANNELS).to(dtype)
    result = replace_padding(
        given, [chunk(7)], PaddingSettings(padding=padding, strength=0.5, scale_by_copies=True), 3
    )
    assert result.shape == given.shape and result.dtype == dtype
    assert torch.equal(result[:, :7], given[:, :7])
    assert torch.equal(result, given) == (padding == "stock")


@pytest.mark.parametrize(
    "settings",
    [
        PaddingSettings(padding="copies", strength=1.0, scale_by_copies=True),
        PaddingSettings(padding="noisy_copies", strength=0.0, scale_by_copies=True),
    ],
)
def test_without_noise_a_slot_is_its_token(settings):
    given = gaussian(1, SLOTS, CHANNELS)
    result = replace_padding(given, [chunk(7)], settings, 3)
    for slot in range(SLOTS):
        assert torch.equal(result[:, slot], given[:, slot % 7])


def test_zeros_fill_the_padding():
    result = replace_padding(
        gaussian(1, SLOTS, CHANNELS),
        [chunk(7)],
        PaddingSettings(padding="zeros", strength=1.0, scale_by_copies=True),
        3,
    )
    assert not result[:, 7:].any()


@pytest.mark.parametrize("padding", ["noisy_copies", "copies", "zeros"])
def test_a_full_prompt_stays(padding):
    given = gaussian(1, SLOTS, CHANNELS)
    assert torch.equal(
        replace_padding(
            given,
            [chunk(SLOTS)],
            PaddingSettings(padding=padding, strength=9.0, scale_by_copies=True),
            3,
        ),
        given,
    )


@pytest.mark.parametrize(("scale_by_copies", "factor"), [(True, 3.1622777), (False, 1.0)])
def test_deviation_of_the_noise(scale_by_copies, factor):
    """n = 7, L = 77: m = 11, sqrt(m - 1) = 3.1623."""
    given, settings = (
        gaussian(1, SLOTS, CHANNELS) * torch.arange(1, CHANNELS + 1),
        PaddingSettings(padding="noisy_copies", strength=0.1, scale_by_copies=scale_by_copies),
    )
    assert chunk(7).replications == 11
    noise = torch.cat(
        [
            replace_padding(given, [chunk(7)], settings, seed)[:, 7:]
            - given[:, torch.arange(7, SLOTS) % 7]
            for seed in range(60)
        ]
    )
    wanted = 0.1 * factor * given[0, :7].std(dim=0, correction=0)
    assert torch.allclose(noise.std(dim=(0, 1)), wanted, rtol=0.05)
    assert (noise.mean(dim=(0, 1)).abs() < 4 * wanted / math.sqrt(60 * 70)).all()


def test_seeds_and_the_global_generator():
    given, settings = (
        gaussian(1, SLOTS, CHANNELS),
        PaddingSettings(padding="noisy_copies", strength=0.1, scale_by_copies=True),
    )
    before = torch.get_rng_state()
    one = replace_padding(given, [chunk(7)], settings, 3)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(one, replace_padding(given, [chunk(7)], settings, 3))
    assert not torch.equal(one, replace_padding(given, [chunk(7)], settings, 4))


def test_chunks_are_filled_separately():
    """Two encoders beside each other with other counts, and a second chunk (SDXL, a long
    prompt).
    """
    given = gaussian(1, 2 * SLOTS, 24)
    chunks = [
        chunk(9, slice(0, 77), slice(0, 8)),
        chunk(5, slice(77, 154), slice(0, 8)),
        chunk(10, slice(0, 77), slice(8, 24)),
        chunk(77, slice(77, 154), slice(8, 24)),
    ]
    result = replace_padding(
        given,
        chunks,
        PaddingSettings(padding=Padding.COPIES, strength=0.0, scale_by_copies=False),
        0,
    )
    assert torch.equal(result[:, 9 + 3, :8], given[:, 3, :8])
    assert torch.equal(result[:, 77 + 5 + 2, :8], given[:, 77 + 2, :8])
    assert torch.equal(result[:, 10 + 4, 8:], given[:, 4, 8:])
    assert torch.equal(result[:, 77:, 8:], given[:, 77:, 8:])


def test_padding_report():
    text = describe_padding(
        [chunk(7), chunk(77)],
        PaddingSettings(padding="noisy_copies", strength=0.02, scale_by_copies=True),
        None,
    )
    assert (
        "7 tokens of 77, m = 11, noise 0.06325 deviations" in text and "m = 1, noise 0 dev" in text
    )
    assert (
        describe_padding(
            [],
            PaddingSettings(padding="copies", strength=0, scale_by_copies=True),
            "the prompt is empty",
        )
        == "Unchanged: the prompt is empty."
    )


# What padding does to attention, in double precision


def attended(tokens, bias=None):
    query = gaussian(1, 2, 5, 8, seed=1).double()
    key, value = (gaussian(16, 16, seed=seed).double() for seed in (2, 3))
    keys, values = (
        (tokens.double() @ weights).unflatten(-1, (2, 8)).transpose(1, 2)
        for weights in (key, value)
    )
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=bias)


def test_whole_copies_leave_attention_as_it_was():
    given = gaussian(1, SLOTS, CHANNELS)
    result = replace_padding(
        given,
        [chunk(11)],
        PaddingSettings(padding=Padding.COPIES, strength=0.0, scale_by_copies=False),
        0,
    )
    assert torch.allclose(attended(result), attended(given[:, :11]), atol=1e-13, rtol=0)


def test_uneven_copies_weigh_by_the_logarithm_of_their_count():
    given = gaussian(1, SLOTS, CHANNELS)
    result = replace_padding(
        given,
        [chunk(9)],
        PaddingSettings(padding=Padding.COPIES, strength=0.0, scale_by_copies=False),
        0,
    )
    counts = torch.bincount(torch.arange(SLOTS) % 9).double()
    assert torch.allclose(
        attended(result), attended(given[:, :9], counts.log()[None, None, None]), atol=1e-13, rtol=0
    )
    assert not torch.allclose(attended(result), attended(given[:, :9]), atol=1e-4)


def test_zeros_only_shrink_what_is_attended():
    given = gaussian(1, SLOTS, CHANNELS)
    result = replace_padding(
        given, [chunk(9)], PaddingSettings(padding="zeros", strength=0.0, scale_by_copies=False), 0
    )
    query = gaussian(1, 2, 5, 8, seed=1).double()
    keys = (
        (result.double() @ gaussian(16, 16, seed=2).double()).unflatten(-1, (2, 8)).transpose(1, 2)
    )
    fraction = (
        (query @ keys.transpose(-1, -2) / math.sqrt(8)).softmax(-1)[..., 9:].sum(-1, keepdim=True)
    )
    assert torch.allclose(
        attended(result), (1 - fraction) * attended(given[:, :9]), atol=1e-13, rtol=0
    )


def test_an_encoder_that_pads_nothing_is_named():
    chunks = [PromptChunk("qwen3_4b", slice(0, 11), slice(0, 64), 11)]
    settings = PaddingSettings(padding=Padding.COPIES, strength=0.0, scale_by_copies=False)
    report = describe_padding(chunks, settings, None)
    assert report.startswith("This text encoder pads nothing here: the node has no effect.")
    chunks.append(PromptChunk("t5xxl", slice(0, 20), slice(0, 64), 11))
    assert "t5xxl" in describe_padding(chunks, settings, None)
