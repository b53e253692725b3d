"""What W2W Style Merge says of two changes, and a LoRA at a strength, against dense matrices."""

import re

import members
import pytest
import torch
from glassbox.nodes.common import lora_reader
from glassbox.nodes.weights import style_merge
from safetensors.torch import save_file

_BIAS = "lora_unet_mid_block_attentions_0_proj_in.diff_b"


@pytest.fixture
def style(tmp_path):
    """A LoRA of rank 2 with alpha 3, a layer of a text encoder, and a bias, which a merge leaves
    out.
    """
    tensors = members.kohya(members.factors(5, 2), 3.0)
    generator = torch.Generator().manual_seed(1)
    text = "lora_te_text_model_encoder_layers_0_mlp_fc1"
    tensors[f"{text}.lora_down.weight"] = torch.randn(2, 12, generator=generator)
    tensors[f"{text}.lora_up.weight"] = torch.randn(20, 2, generator=generator)
    tensors[f"{text}.alpha"] = torch.tensor(1.0)
    tensors[_BIAS] = torch.randn(30, generator=generator)
    path = tmp_path / "style.safetensors"
    save_file(tensors, path)
    text_change = (
        tensors[f"{text}.lora_up.weight"].double()
        @ tensors[f"{text}.lora_down.weight"].double()
        / 2
    )
    return (
        lora_reader.read(path),
        float(text_change.square().sum()),
        float(tensors[_BIAS].double().square().sum()),
    )


def dense(layers):
    """The change of each layer in float64, in the order of the first one's layers."""
    return {
        name: part.scale * (part.up.double().flatten(1) @ part.down.double().flatten(1))
        for name, part in layers.items()
    }


def test_norms_cosine_and_fractions_left_out(style):
    lora, of_text, of_bias = style
    identity = {
        name: lora_reader.Factors(down, up, 0.7)
        for name, (down, up) in zip(lora.layers, members.factors(6, 3).values(), strict=True)
    }
    del identity[next(iter(identity))]  # so that a layer is the style's alone
    report = style_merge.describe(identity, lora)
    first, second = dense(identity), dense(lora.layers)
    sizes = [
        sum(float(change.square().sum()) for change in changes.values()) ** 0.5
        for changes in (first, second)
    ]
    inner = sum(float((first[name] * second[name]).sum()) for name in first)
    assert (
        f"|dW| {sizes[0]:.3f} in {len(first)} layers, style |dW| {sizes[1]:.3f} in {len(second)}."
        in report
    )
    assert f"{inner / (sizes[0] * sizes[1]):+.4f} ({len(first)} layers in common)" in report
    assert abs(inner / (sizes[0] * sizes[1])) > 5e-4
    whole = sizes[1] ** 2 + of_text + of_bias
    left_out = dict(re.findall(r"Left out of the style: ([\w ]+), ([\d.]+) %", report))
    assert left_out == {
        "biases and norms": f"{100 * of_bias / whole:.1f}",
        "text encoder": f"{100 * of_text / whole:.1f}",
    }
    assert all(0.1 < float(percent) < 99.9 for percent in left_out.values())


@pytest.mark.parametrize("strength", [0.5, -1.5, 2.0])
def test_a_lora_at_a_strength(style, strength):
    """Changes are linear in it, what is left out counts by its square; twice is the square of the
    strength.
    """
    lora, of_text, of_bias = style
    for scaled, factor in (
        (lora.scaled(strength), strength),
        (lora.scaled(strength).scaled(strength), strength**2),
    ):
        for before, after in ((lora.layers, scaled.layers), (lora.text, scaled.text)):
            for name, change in dense(before).items():
                torch.testing.assert_close(dense(after)[name], factor * change)
        assert scaled.dropped == pytest.approx({"biases and norms": factor**2 * of_bias})
        assert scaled.without_text().dropped["text encoder"] == pytest.approx(factor**2 * of_text)


def test_a_merge_is_the_sum_at_both_strengths(style):
    lora, *_ = style
    identity = {
        name: lora_reader.Factors(down, up, 0.7)
        for name, (down, up) in zip(lora.layers, members.factors(6, 3).values(), strict=True)
    }
    only = next(iter(identity))
    del identity[only]
    merged = dense(style_merge.merge(identity, lora.layers, (0.8, -1.3)))
    first, second = dense(identity), dense(lora.layers)
    assert merged.keys() == second.keys()
    for name, change in merged.items():
        expected = -1.3 * second[name] + (0.8 * first[name] if name != only else 0)
        torch.testing.assert_close(change, expected, atol=1e-5, rtol=1e-5)
