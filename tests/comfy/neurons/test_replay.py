"""A search computes again only what a changed neuron can change, and gets the bits of whole
evaluations.
"""

import pytest
import reduced
import torch

SHAPE = (4, 8, 8)
PART = {
    "down": "input_blocks.4.1.transformer_blocks.0.attn2.to_v",
    "middle": "middle_block.1.transformer_blocks.0.attn2.to_v",
}


@pytest.fixture(scope="module")
def sd15(app):
    model, clip, _ = reduced.checkpoint("sd15")
    return model, app.run("CLIPTextEncode", clip=clip, text="a red hat")[0]


def at_first_step(app, sd15, work, model=None):
    with torch.inference_mode():
        return app.module("nodes.neurons.first_step_comfy").at_first_step(
            model or sd15[0], sd15[1], SHAPE, 961, work, 3
        )


def silenced(sd15, rows, **neurons):
    """Factors of the parts' layers that silence so many neurons."""
    factors = {}
    for part, count in neurons.items():
        width = sd15[0].model.diffusion_model.get_submodule(PART[part]).out_features
        factors[PART[part]] = torch.cat([torch.zeros(count), torch.ones(width - count)]).expand(
            rows, -1
        )
    return factors


def counted(sd15, calls):
    """Handles that note which blocks compute."""
    network = sd15[0].model.diffusion_model
    blocks = {
        "first": network.input_blocks[1][0],
        "middle": network.middle_block[1],
        "last": network.output_blocks[11],
    }
    inner = {
        name: next(module for module in block.modules() if not [*module.children()])
        for name, block in blocks.items()
    }
    return [
        module.register_forward_hook(lambda *_, name=name: calls.append(name))
        for name, module in inner.items()
    ]


def test_only_what_follows_the_changed_layer_is_computed(app, sd15):
    noise, calls = torch.randn(3, *SHAPE, generator=torch.Generator().manual_seed(0)), []
    sets = [
        silenced(sd15, 3, down=4, middle=4),
        silenced(sd15, 3, down=4, middle=3),
        silenced(sd15, 3, down=4),
    ]
    one_row = [{path: factor[:1] for path, factor in factors.items()} for factors in sets]

    def work(predict):
        found = []
        for factors in sets:
            calls.clear()
            found.append((predict(noise, factors), [*calls], predict(noise, factors, replay=False)))
        calls.clear()
        alone = predict(noise[1:2], one_row[0])
        return found, (alone, [*calls], predict(noise[1:2], one_row[0], replay=False))

    handles = counted(sd15, calls)
    try:
        found, (alone, of_alone, whole_alone) = at_first_step(app, sd15, work)
    finally:
        for handle in handles:
            handle.remove()
    assert all(torch.equal(predicted, whole) for predicted, _, whole in found)
    assert not torch.equal(found[0][0], found[1][0]) and not torch.equal(found[1][0], found[2][0])
    # The first replay is compared with a whole evaluation; the one after it is trusted.
    assert [called.count("first") for _, called, _ in found] == [1, 1, 0]
    assert [called.count("middle") for _, called, _ in found] == [1, 2, 1]
    assert all(called.count("last") == called.count("middle") for _, called, _ in found)
    assert of_alone.count("first") == 0 and of_alone.count("middle") == 1
    assert (alone - whole_alone).abs().max() < 1e-5 * (whole_alone - noise[1:2]).abs().max()


def searched(app, sd15, calls, patch):
    """Predictions of four sets behind a patch of the input blocks, and the blocks that computed for
    them.
    """
    noise, model = (
        torch.randn(3, *SHAPE, generator=torch.Generator().manual_seed(1)),
        sd15[0].clone(),
    )
    model.set_model_input_block_patch(patch)
    sets = [silenced(sd15, 3, down=4, middle=count) for count in (4, 3, 2, 1)]

    def work(predict):
        found = [predict(noise, factors) for factors in sets]
        computed = [*calls]
        return found, computed, [predict(noise, factors, replay=False) for factors in sets]

    handles = counted(sd15, calls)
    try:
        return at_first_step(app, sd15, work, model)
    finally:
        for handle in handles:
            handle.remove()


def test_outputs_that_are_changed_in_place_are_replayed_as_they_were(app, sd15):
    found, computed, whole = searched(app, sd15, [], lambda h, _options: h.add_(0.1))
    assert all(map(torch.equal, found, whole))
    assert computed.count("first") == 2  # of the first set, and to compare


def test_a_network_that_counts_its_calls_is_not_replayed(app, sd15):
    calls = []
    found, computed, _ = searched(
        app, sd15, calls, lambda h, _options: h + 0.1 * calls.count("last")
    )
    assert computed.count("first") == 4 and not torch.equal(found[0], found[1])


@pytest.mark.parametrize("architecture", ["sd3", "flux"])
def test_transformers_are_replayed(app, architecture):
    model, clip, _ = reduced.checkpoint(architecture)
    layers = app.module("nodes.neurons.neuron_layers").feed_forward_layers(
        model.model.diffusion_model
    )
    first_step, positive = (
        app.module("nodes.neurons.first_step_comfy"),
        app.run("CLIPTextEncode", clip=clip, text="a hat")[0],
    )
    shape = first_step.latent_shape(model, 64, 64)
    noise = torch.randn(2, *shape, generator=torch.Generator().manual_seed(3))
    ran = []
    handle = model.model.diffusion_model.get_submodule(layers[0].path).register_forward_hook(
        lambda *_: ran.append(1)
    )

    def work(predict):
        found = []
        for count in (9, 6, 3):
            factors = {layers[0].path: torch.zeros(2, layers[0].width)}
            factors[layers[-1].path] = (
                (torch.arange(layers[-1].width) >= count).float().expand(2, -1)
            )
            ran.clear()
            found.append((predict(noise, factors), len(ran), predict(noise, factors, replay=False)))
        return found

    try:
        with torch.inference_mode():
            found = first_step.at_first_step(model, positive, shape, 961, work, 2)
    finally:
        handle.remove()
    assert all(torch.equal(predicted, whole) for predicted, _, whole in found)
    assert not torch.equal(found[0][0], found[2][0])
    assert [count for _, count, _ in found] == [1, 1, 0]


def test_what_wraps_the_network_sees_every_layer(app, sd15):
    noise, calls = torch.randn(3, *SHAPE, generator=torch.Generator().manual_seed(2)), []
    model = sd15[0].clone()
    model.add_wrapper_with_key(
        "diffusion_model", "watching", lambda executor, *args, **kwargs: executor(*args, **kwargs)
    )
    handles = counted(sd15, calls)
    try:
        at_first_step(
            app,
            sd15,
            lambda predict: [
                predict(noise, silenced(sd15, 3, down=4, middle=n)) for n in (3, 2, 1)
            ],
            model,
        )
    finally:
        for handle in handles:
            handle.remove()
    assert calls.count("first") == 3


class Stages(torch.nn.Module):
    """Three stages, the first of which puts out no tensor; ``factors`` scale what they read."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Wrapping(), torch.nn.Identity(), torch.nn.Identity()])
        self.factors = {}

    def forward(self, x):
        scaled = lambda at, value: value * self.factors.get(f"blocks.{at}", torch.ones(1))  # noqa: E731
        return self.blocks[2](scaled(2, self.blocks[1](self.blocks[0](scaled(0, x))["x"])))


class Wrapping(torch.nn.Module):
    def forward(self, x):
        return {"x": x}


def test_a_changed_stage_whose_output_is_no_tensor_ends_the_replay(app):
    network, noise = Stages(), torch.randn(2, 1, 1, 1, generator=torch.Generator().manual_seed(4))
    replay, found = app.module("nodes.neurons.replay").Replay(network), []
    replay.trusted = True  # else the comparison with a whole evaluation would find it
    for first, last in ((2.0, 5.0), (3.0, 5.0), (3.0, 7.0)):
        network.factors = {
            "blocks.0": torch.full((2, 1, 1, 1), first),
            "blocks.2": torch.full((2, 1, 1, 1), last),
        }
        replayed = replay.unchanged(noise, network.factors)
        with replay.running(noise, network.factors, replayed):
            assert torch.equal(network(noise), noise * first * last)
        found.append([*replayed])
    assert found == [[], [], ["blocks.1"]]
