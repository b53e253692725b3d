"""Norms and rotary positions through which gradients pass, in place of kernels that have none."""

import math
import re
import sys
import types

import pytest
import torch

from studies.models import networks


@pytest.fixture(scope="module")
def plain(app):
    return app.module("nodes.host.training.plain_kernels")


def rotations(tokens: int, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Angles (tokens, channels / 2), and ComfyUI's matrices of them (1, 1, tokens, ..., 2, 2)."""
    angles = torch.rand(tokens, channels // 2, generator=torch.Generator().manual_seed(0)) * 3
    cosine, sine = angles.cos(), angles.sin()
    matrices = torch.stack([cosine, -sine, sine, cosine], -1).unflatten(-1, (2, 2))
    return angles, matrices[None, None]


def turned(x: torch.Tensor, angles: torch.Tensor, halves: bool) -> torch.Tensor:
    """By complex numbers, in float64: pairs of neighbors, or of a channel of each half."""
    x = x.double()
    half = x.shape[-1] // 2
    real, imaginary = (x[..., :half], x[..., half:]) if halves else (x[..., ::2], x[..., 1::2])
    result = torch.complex(real, imaginary) * torch.exp(1j * angles.double())
    if halves:
        return torch.cat([result.real, result.imag], -1)
    return torch.stack([result.real, result.imag], -1).flatten(-2)


def normed(x: torch.Tensor, scale: torch.Tensor, epsilon: float) -> torch.Tensor:
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * scale.double()


@pytest.mark.parametrize("halves", [False, True])
def test_norm_and_rotation_are_their_formulas(plain, halves):
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 2, 3, 5, 8, generator=generator)
    scales = torch.rand(2, 8, generator=generator) + 0.5
    angles, matrices = rotations(5, 8)
    name = "rms_rope_split_half" if halves else "rms_rope"
    both = getattr(plain, name)(q, k, matrices, scales[0], scales[1], 1e-3)
    expected = [
        turned(normed(x, scale, 1e-3), angles, halves)
        for x, scale in zip((q, k), scales, strict=True)
    ]
    for result, formula in zip(both, expected, strict=True):
        assert torch.allclose(result.double(), formula, atol=1e-5)
    alone = getattr(plain, f"{name}1")(q, matrices, scales[0], 1e-3)
    assert torch.equal(alone, both[0])
    bare = getattr(plain, name.replace("rms", "apply"))(q, k, matrices)
    assert torch.allclose(bare[1].double(), turned(k, angles, halves), atol=1e-5)


def test_a_part_of_the_channels_is_turned(plain):
    q, k = torch.randn(2, 1, 1, 4, 12, generator=torch.Generator().manual_seed(2))
    scale = torch.linspace(0.5, 2, 12)
    angles, matrices = rotations(4, 8)
    result, _ = plain.rms_rope_split_half(q, k, matrices, scale, None, 1e-6, rot_dim=8)
    norm = normed(q, scale, 1e-6)
    assert torch.allclose(result[..., 8:].double(), norm[..., 8:], atol=1e-5)
    assert torch.allclose(result[..., :8].double(), turned(norm[..., :8], angles, True), atol=1e-5)


def test_adaptive_norms_are_their_formulas(plain):
    x, scale, shift = torch.randn(3, 2, 5, 6, generator=torch.Generator().manual_seed(3))
    rms = normed(x, torch.ones(6), 1e-6) * (1 + scale) + shift
    assert torch.allclose(plain.rms_adaln(x, scale, shift).double(), rms, atol=1e-5)
    centered = x - x.mean(-1, keepdim=True)
    assert torch.allclose(
        plain.adaln(x, scale, shift).double(),
        normed(centered, torch.ones(6), 1e-6) * (1 + scale) + shift,
        atol=1e-5,
    )


def test_kernels_are_replaced_while_gradients_run(app, plain, monkeypatch):
    """A package whose kernels have no backward, as comfy_kitchen is."""

    def without_backward(*_args):
        raise RuntimeError("Trying to backward through x but no autograd formula was registered.")

    package = types.ModuleType("comfy_kitchen")
    package.rms_rope1 = package.rms_rope1_ = package.another = without_backward
    monkeypatch.setitem(sys.modules, "comfy_kitchen", package)
    gradients = app.module("nodes.host.training.gradients")
    x = torch.randn(1, 2, 3, 4, requires_grad=True)
    _, matrices = rotations(3, 4)
    with gradients.kernels_with_gradients():
        result = package.rms_rope1(x, matrices, torch.ones(4))
        result.square().sum().backward()
        written = x.detach().clone()
        assert package.rms_rope1_(written, matrices, torch.ones(4)) is written
    assert torch.equal(written, result.detach()) and bool(torch.isfinite(x.grad).all())
    assert package.rms_rope1 is package.rms_rope1_ is without_backward
    with (
        pytest.raises(ValueError, match="kernels without gradients"),
        gradients.kernels_with_gradients(),
    ):
        package.another()
    assert package.rms_rope1 is without_backward


@pytest.mark.parametrize("name", ["Anima", "CosmosPredict2", "ErnieImage", "JoyImage"])
def test_networks_of_such_kernels_train(app, name):
    """The gradient of a low-rank change is that of finite differences."""
    configuration = networks.configurations()[name]
    if not networks.is_loaded_by_host(configuration):
        pytest.skip("This ComfyUI has no such network.")
    trainer = app.module("nodes.host.training.trainer")
    with torch.inference_mode():
        model = networks.model(configuration)
        latent = networks.latent(configuration, model)["samples"]
        positive = networks.conditioning(configuration)
    layers = [
        path
        for path, layer in trainer.trainable_layers(model).items()
        if isinstance(layer, torch.nn.Linear) and re.search(r"attn.*q|attention.*q", path)
    ]
    key = f"{layers[0]}.weight"
    factor = torch.tensor(0.5, requires_grad=True)
    shape = model.model.state_dict()[key].shape
    change = torch.randn(shape, generator=torch.Generator().manual_seed(5)) / shape[1] ** 0.5
    noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(4))

    def work(session):
        def loss(value: torch.Tensor) -> torch.Tensor:
            factor.data.fill_(value)
            sigmas = torch.tensor([0.6])
            noised = session.noised(session.latents[0], noise, sigmas)
            answer = session.denoised(noised, sigmas, [0]).double()
            return (answer * noise.double()).sum()  # moves by more than rounding

        loss(0.5).backward()
        with torch.no_grad():
            difference = (loss(0.6) - loss(0.4)) / 0.2
        return float(difference)

    expected = trainer.run(
        model, {key: lambda weight: weight + factor * change}, [latent], [positive], work,
        dtype=torch.float32,
    )  # fmt: skip
    assert math.isclose(float(factor.grad), expected, rel_tol=0.02), (factor.grad, expected)
    assert expected != 0
