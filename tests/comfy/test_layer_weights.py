"""Gradients without copies: each weight on the memory of the loaded one, or copied where that
cannot be.
"""

import pytest
import quantized
import torch

KEY = "diffusion_model.input_blocks.1.1.proj_in.weight"


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def demo(app):
    return app.run("GBX_LoadDemoModel", weights="avatars-v2")


@pytest.fixture(scope="module")
def caption(app, demo):
    return app.run("CLIPTextEncode", clip=demo[1], text="portrait, red hair")[0]


@pytest.fixture(scope="module")
def train(app):
    return app.module("nodes.host.training.trainer")


@pytest.fixture(scope="module")
def layer_weights(app):
    return app.module("nodes.host.training.layer_weights")


def leaf(value):
    with torch.inference_mode(False):
        return value.clone().requires_grad_(True)


@torch.inference_mode()
def run(train, model, caption, functions, work, **choices):
    image = gaussian(1, 24, 16, 16, seed=1)
    return train.run(
        model, functions, [image], [caption], work, **{"dtype": torch.float32, **choices}
    )


def predicted(session, side=16):
    noised = session.noised(
        session.latents[0].float()[..., :side], gaussian(1, 24, 16, side, seed=9), torch.ones(1)
    )
    return session.denoised(noised, torch.ones(1), [0])


def loss(session):
    answer = predicted(session)
    (answer.square() * gaussian(*answer.shape, seed=3)).mean().backward()
    return answer.detach().clone()


def all_copied(train, model, functions):
    """The same functions, and one that changes nothing for every other weight: ComfyUI then copies
    each of them.
    """
    names = {
        f"{name}.{kind}"
        for name, layer in train.trainable_layers(model).items()
        for kind in ("weight", "bias")
        if getattr(layer, kind, None) is not None
    }
    return {name: lambda weight: weight for name in names} | functions


def state(model):
    """Whether each parameter is an inference tensor, where it lies, and a copy of it."""
    return {
        name: (p.is_inference(), p.data_ptr(), p.clone())
        for name, p in model.model.named_parameters()
    }


def same(before, after):
    return before.keys() == after.keys() and all(
        before[name][:2] == after[name][:2] and torch.equal(before[name][2], after[name][2])
        for name in before
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_predictions_are_those_of_copies_bit_for_bit(train, demo, caption, dtype, checkpointing):
    """And the gradient of a whole weight, to 1e-6 of its norm."""
    changes = [leaf(gaussian(64, 64, 1, 1, seed=4) * 0.01) for _ in range(2)]
    functions = [
        {KEY: lambda weight, change=change: weight + change.to(weight)} for change in changes
    ]
    how = {"dtype": dtype, "checkpointing": checkpointing}
    shared = run(train, demo[0], caption, functions[0], loss, **how)
    copied = run(train, demo[0], caption, all_copied(train, demo[0], functions[1]), loss, **how)
    assert torch.equal(shared, copied)
    assert (changes[0].grad - changes[1].grad).norm() <= 1e-6 * changes[1].grad.norm()
    assert changes[0].grad.norm() > 0


def test_plain_weights_are_on_the_memory_of_the_loaded_ones(train, demo, caption):
    train.load(demo[0])
    before = state(demo[0])

    def work(session):
        return {
            name: (p.is_inference(), p.data_ptr()) for name, p in demo[0].model.named_parameters()
        }

    during = run(train, demo[0], caption, {}, work)
    assert all(before[name][0] for name in before)
    assert {name: pointer for name, (_, pointer) in during.items()} == {
        name: s[1] for name, s in before.items()
    }
    assert not any(inference for inference, _ in during.values())
    assert same(before, state(demo[0]))


@pytest.mark.parametrize("ends_by", ["error", "stop"])
def test_all_is_put_back_when_the_work_does_not_end(train, demo, caption, ends_by):
    import comfy.model_management as management

    train.load(demo[0])
    before = state(demo[0])

    def work(session):
        if ends_by == "error":
            raise RuntimeError("no")
        management.interrupt_current_processing()
        return predicted(session)

    with pytest.raises(
        RuntimeError if ends_by == "error" else management.InterruptProcessingException
    ):
        run(train, demo[0], caption, {KEY: lambda weight: weight * 0.5}, work)
    management.interrupt_current_processing(False)
    assert same(before, state(demo[0]))
    layers = train.trainable_layers(demo[0]).values()
    assert not any(
        layer.weight_function or layer.bias_function or layer._forward_hooks for layer in layers
    )


def test_a_model_that_was_moved_in_between_is_shared_again(train, demo, caption):
    """As ComfyUI moves it to make room for a VAE: under inference mode, and back."""
    change = leaf(gaussian(64, 64, 1, 1, seed=4) * 0.01)

    def work(session):
        with torch.inference_mode():
            demo[0].model.to(torch.float64)
            demo[0].model.to(torch.float32)
        session.reload()
        return loss(session)

    functions = {KEY: lambda weight: weight + change}
    expected = run(train, demo[0], caption, functions, loss)
    gradient, change.grad = change.grad, None
    assert torch.equal(run(train, demo[0], caption, functions, work), expected)
    assert torch.equal(change.grad, gradient)
    assert all(parameter.is_inference() for parameter in demo[0].model.parameters())


@pytest.mark.parametrize("kind", ["plain fp8", "scaled fp8", "mixed precision"])
def test_only_quantized_layers_are_copied(train, demo, caption, kind):
    if not quantized.known(kind):
        pytest.skip("This ComfyUI does not read the form.")
    small, _ = quantized.pair(demo[0], kind)
    change = leaf(torch.tensor(0.5))

    def work(session):
        loss(session)
        return {
            name for name, layer in train.trainable_layers(small).items() if layer.weight_function
        }

    copied = run(train, small, caption, {KEY: lambda weight: weight * change}, work)
    layers = train.trainable_layers(demo[0])
    linear = {name for name, layer in layers.items() if isinstance(layer, torch.nn.Linear)}
    assert copied == linear | {KEY.removesuffix(".weight")} and len(linear) < len(layers)
    assert change.grad.isfinite() and change.grad != 0


def test_layers_with_functions_of_others_keep_them(train, layer_weights, demo, caption):
    """A LoRA on a partly loaded model is a weight function of ComfyUI's; such a layer gets its
    change as another.
    """
    model = demo[0].clone()
    name = "diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2.to_v"
    low_rank = Change(64, 128)
    weights = layer_weights.LayerWeights(model, {f"{name}.weight": low_rank})
    train.load(model)
    layer = model.model.get_submodule(name)
    calls = []

    def other(weight):
        calls.append(weight)
        return weight

    layer.weight_function = [other]
    try:
        with weights.crossed():
            assert layer.weight_function == [other, low_rank] and not layer._forward_hooks
            layer(torch.ones(1, 128)).sum().backward()
        assert calls and low_rank.up.grad.norm() > 0
    finally:
        weights.remove()
    assert not layer.weight_function


class Change(torch.nn.Module):
    """up @ down, and the same as a function of the weight."""

    def __init__(self, out, inner, rank=3, seed=0):
        super().__init__()
        with torch.inference_mode(False):
            self.up = torch.nn.Parameter(gaussian(out, rank, seed=seed) * 0.1)
            self.down = torch.nn.Parameter(gaussian(rank, inner, seed=seed + 1) * 0.1)

    def factors(self):
        return self.up, self.down, 1.0

    def forward(self, weight):
        return weight + (self.up @ self.down).view(weight.shape).to(weight.dtype)

    def move_to(self, device):
        return 0


def changed_layers(demo):
    """A linear layer that is not square, a 3 x 3 convolution of stride 2, and one of kernel 1."""
    import torch.nn as nn

    modules = dict(demo[0].model.named_modules())
    wanted = [
        next(
            n
            for n, m in modules.items()
            if isinstance(m, nn.Linear) and m.in_features != m.out_features
        ),
        next(n for n, m in modules.items() if isinstance(m, nn.Conv2d) and m.stride == (2, 2)),
        next(n for n, m in modules.items() if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)),
    ]
    return {name: modules[name].weight for name in wanted if name.startswith("diffusion_model.")}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_low_rank_change_has_the_gradients_of_whole_weights(train, demo, caption, checkpointing):
    layers = changed_layers(demo)
    assert len(layers) == 3
    both, answers, seen = [], [], []
    for whole in (False, True):
        changes = {
            f"{name}.weight": Change(len(weight), weight[0].numel(), seed=5 + 2 * place)
            for place, (name, weight) in enumerate(layers.items())
        }
        functions = {
            name: (lambda w, c=change: c(w)) if whole else change
            for name, change in changes.items()
        }

        def work(session):
            answer = loss(session)
            seen.append(
                [bool(demo[0].model.get_submodule(name).weight_function) for name in layers]
            )
            return answer

        answers.append(run(train, demo[0], caption, functions, work, checkpointing=checkpointing))
        both.append(
            [parameter.grad for change in changes.values() for parameter in change.parameters()]
        )
    assert seen == [[False] * 3, [True] * 3]
    assert torch.allclose(*answers, rtol=1e-4, atol=1e-5)
    for found, expected in zip(*both, strict=True):
        assert expected.norm() > 0 and (found - expected).norm() <= 1e-4 * expected.norm()


def test_adapters_of_rank_and_alpha_apart_are_added_at_their_strength(
    app, train, demo, caption, monkeypatch
):
    """LoRA of Train LoRA with alpha / rank = 3 / 8, its first factors not zero: gradients to
    1e-4.
    """
    adapters = app.module("nodes.host.training.adapters")
    module = app.module("nodes.host.training.layer_weights")
    results = []
    for whole in (False, True):
        made = adapters.create(demo[0], "LoRA", 8, torch.float32, 3, {}, 3.0, "attn2,op")
        with torch.no_grad():
            for place, parameter in enumerate(made.parameters.values()):
                if parameter.requires_grad:
                    parameter.add_(gaussian(*parameter.shape, seed=place) * 0.02)
        if whole:
            monkeypatch.setattr(module, "low_rank", lambda function: None)
        answer = run(train, demo[0], caption, made.functions, loss)
        results.append((answer, {n: p.grad for n, p in made.parameters.items() if p.requires_grad}))
    (first, gradients), (second, expected) = results
    assert not torch.equal(first, second)  # the two ways round differently
    assert torch.allclose(first, second, rtol=1e-4, atol=1e-5)
    for name, gradient in expected.items():
        assert (gradients[name] - gradient).norm() <= 1e-4 * gradient.norm().clamp(min=1e-6), name
