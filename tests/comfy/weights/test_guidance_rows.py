"""Identity guidance with both sides of CFG in one call: the numbers of two calls, and where it must
be two.
"""

import functools

import pytest
import tapping
import torch
import weight_nodes

_LAYER = "output_blocks.4.1.transformer_blocks.0.attn2"
_GUIDED = {"identity_strength": 1.0, "edit_strength": 1.0}
#: Of the norm: sums of float32 in another order, and the first step from a sigma of 4,500 rounds
#: latents of 10,000.
_ROUNDING = 5e-4


@pytest.fixture(scope="module")
def family(app, tmp_path_factory):
    return weight_nodes.family(app, tmp_path_factory.getbasetemp())


@pytest.fixture
def calls(family, monkeypatch):
    """Rows of each call of the demo network."""
    counted, network = [], family.model.model.diffusion_model
    forward = network.forward

    def counting(x, *rest, **more):
        counted.append(len(x))
        return forward(x, *rest, **more)

    monkeypatch.setattr(network, "forward", counting)
    return counted


def guided(app, family, model=None, **changed):
    given = {"model": model or family.model, "point": family.point, **_GUIDED, **changed}
    return app.run("GBX_W2WGuidance", **given)[0]


def sample(app, family, model, positive=None, negative=None, images=1, cfg=3.0):
    given = {"seed": 3, "steps": 2, "cfg": cfg, "denoise": 1.0}
    return app.run(
        "KSampler",
        model=model,
        positive=positive or family.positive,
        negative=negative or family.negative,
        latent_image={"samples": torch.zeros(images, 24, 16, 16)},
        sampler_name="euler",
        scheduler="normal",
        **given,
    )[0]["samples"]


def both_ways(app, monkeypatch, work):
    """What ``work`` gives as it is, and with each side of CFG in calls of its own."""
    rows = work()
    module = app.module("nodes.weights.weight_guidance_comfy")
    with monkeypatch.context() as patch:
        patch.setattr(module, "_rows_are_the_call", lambda *_: False)
        return rows, work()


def assert_close(found, wanted):
    assert (found - wanted).norm() <= _ROUNDING * wanted.norm()


def area(app, family):
    given = {"width": 64, "height": 128, "x": 0, "y": 0, "strength": 1.0}
    (left,) = app.run("ConditioningSetArea", conditioning=family.positive, **given)
    return {
        "positive": app.run(
            "ConditioningCombine", conditioning_1=left, conditioning_2=family.negative
        )[0]
    }


def masked(app, family):
    mask = torch.zeros(1, 16, 16)
    mask[:, :, 4:] = 1.0
    given = {"strength": 0.8, "set_cond_area": "mask bounds", "mask": mask}
    (part,) = app.run("ConditioningSetMask", conditioning=family.positive, **given)
    return {
        "positive": app.run(
            "ConditioningCombine", conditioning_1=part, conditioning_2=family.negative
        )[0]
    }


def early(app, family):
    (first,) = app.run(
        "ConditioningSetTimestepRange", conditioning=family.positive, start=0.0, end=0.5
    )
    return {
        "positive": app.run(
            "ConditioningCombine", conditioning_1=first, conditioning_2=family.negative
        )[0]
    }


CONDITIONS = {
    "plain": lambda app, family: {},
    "area": area,
    "mask": masked,
    "two prompts, one of them early": early,
    "three images": lambda app, family: {"images": 3},
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_one_call_gives_what_two_give(app, family, calls, monkeypatch, name):
    """Linear layers and a convolution, in fewer calls of as many rows."""
    model, changed = guided(app, family), CONDITIONS[name](app, family)
    one, two = both_ways(app, monkeypatch, lambda: sample(app, family, model, **changed))
    assert_close(one, two)
    assert not torch.allclose(one, sample(app, family, family.model, **changed), atol=1e-2)
    calls.clear()
    sample(app, family, family.model, **changed)
    plain = list(calls)
    calls.clear()
    sample(app, family, model, **changed)
    assert calls == plain


@pytest.mark.parametrize("changed", [{"end_percent": 0.6}, {"edit_strength": 0.4}])
def test_an_end_and_two_points(app, family, monkeypatch, changed):
    edited = family.edit(family.draw(family.directed[0])[0], "beard: 1")[0]
    point = family.draw(family.directed[0])[0]
    model = guided(app, family, point=point, edited_point=edited, **changed)
    assert_close(*both_ways(app, monkeypatch, lambda: sample(app, family, model)))


def test_a_space_on_weight_updates(app, family, calls, monkeypatch):
    space = family.build(form="weight_updates", rank=0, filename="updates")[0]
    model = guided(app, family, point=family.draw(space)[0])
    assert_close(*both_ways(app, monkeypatch, lambda: sample(app, family, model)))
    assert calls == [2, 2, 1, 1, 1, 1]


def test_the_negative_side_keeps_its_bits(app, family):
    assert torch.equal(
        sample(app, family, guided(app, family), cfg=0.0),
        sample(app, family, family.model, cfg=0.0),
    )


def neuron_mask(app, family, model):
    mask = app.module("nodes.neurons.mask")
    catalog = app.module("nodes.neurons.neuron_layers")
    layer = catalog.value_layers(family.model.model.diffusion_model)[0]
    scales = mask.NeuronMask({layer.path: dict.fromkeys(range(0, layer.width, 2), 0.0)})
    given = {"mask": scales, "strength": 1.0, "start_percent": 0.0, "end_percent": 1.0}
    return app.run("GBX_NemoNeuronMask", model=model, apply_to="positive", **given)[0]


def words(app, family, model):
    given = {
        "edits": "portrait -> beard: 2",
        "prompt": "",
        "start_percent": 0.0,
        "end_percent": 1.0,
    }
    clip = app.run("GBX_LoadDemoModel", weights="avatars-v2")[1]
    return app.run("GBX_EditByWords", model=model, clip=clip, **given)[0]


def interval(app, family, model):
    return family.apply(family.draw(family.space, seed=5)[0], model, end_percent=0.7)


def whole_run(app, family, model):
    return family.apply(family.draw(family.space, seed=5)[0], model)


def guidance(app, family, model):
    return guided(app, family, model, point=family.draw(family.space, seed=5)[0])


OTHERS = {work.__name__: work for work in (neuron_mask, words, interval, whole_run, guidance)}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("first", [True, False])
def test_other_nodes_on_the_model_act_as_with_two_calls(
    app, family, calls, monkeypatch, name, first
):
    """In both orders; edits by words evaluate layers by themselves, so that there it is two
    calls.
    """
    other = functools.partial(OTHERS[name], app, family)
    model = guided(app, family, other(family.model)) if first else other(guided(app, family))
    one, two = both_ways(app, monkeypatch, lambda: sample(app, family, model))
    assert_close(one, two)
    assert not torch.allclose(one, sample(app, family, guided(app, family)), atol=1e-2)
    calls.clear()
    sample(app, family, model)
    assert set(calls) == ({1} if name == "words" else {2})


@pytest.mark.parametrize("first", [True, False])
def test_a_recording_holds_the_rows_of_both_sides(app, family, monkeypatch, first):
    """Of a layer that the guidance changes: the same rows and numbers as with two calls."""
    given = {
        "preset": "custom_ids",
        "ids": "up-level1-*-res-out",
        "recorded_steps": "all",
        "rows": "both",
    }

    def record(before: bool):
        model = family.model if before else guided(app, family)
        recorded, recording = app.run(
            "GBX_ActivationRecorder",
            model=model,
            pool_size=1,
            precision="fp32",
            mean_only=False,
            **given,
        )
        samples = sample(app, family, guided(app, family, recorded) if before else recorded)
        return app.run(
            "GBX_ReadActivations", recording=recording, latent={"samples": samples}, step_index=0
        )[0]

    found = record(first)
    wanted = both_ways(app, monkeypatch, lambda: record(before=True))[1]
    assert sorted(map(str, found.rows)) == sorted(map(str, wanted.rows)) and len(found.rows) == 2
    for id_, tensor in found.tensors.items():
        for row, values in zip(found.rows, tensor, strict=True):
            assert_close(values, wanted.tensors[id_][wanted.rows.index(row)])


def test_a_controlnet_makes_it_two_calls(app, family, calls):
    control = functools.partial(tapping.controlled, app, family.model, value=0.02)
    sides = {"positive": control(family.positive), "negative": control(family.negative)}
    sample(app, family, guided(app, family), **sides)
    assert set(calls) == {1}


@pytest.mark.parametrize("kind", ["a second time", "on other rows"])
def test_layers_that_another_pack_evaluates_make_it_two_calls(
    app, family, calls, monkeypatch, kind
):
    """Noticed inside the call, which is made again in two; the next step does not try."""
    model, layer = guided(app, family), "up_blocks.2.attentions.1.transformer_blocks.0.attn2.to_q"
    (target,) = (
        app.module("nodes.host.lora_targets").targets(family.model.model, {layer: ""}).values()
    )
    attention = family.model.model.get_submodule(target.key.removesuffix(".to_q.weight"))

    def again(module, args):
        text = torch.zeros(
            len(args[0]) if kind == "a second time" else 1, 3, module.to_q.in_features
        )
        module.to_q(text)

    handle = attention.register_forward_pre_hook(again)
    try:
        found = sample(app, family, model)
        noticed = list(calls)
        wanted = both_ways(app, monkeypatch, lambda: sample(app, family, model))[1]
    finally:
        handle.remove()
    assert noticed == [2, 1, 1, 1, 1]
    assert_close(found, wanted)


def test_changes_of_a_high_rank_are_calls_of_their_own(app, family, calls, monkeypatch):
    monkeypatch.setattr(app.module("nodes.weights.row_changes_comfy"), "_MOST_ADDED", 1e-6)
    sample(app, family, guided(app, family))
    assert set(calls) == {1}


def test_nothing_stays_on_the_layers(app, family, monkeypatch):
    """After a run, a run in two calls, and one that fails midway."""
    network = family.model.model.diffusion_model
    before = {id(module): dict(vars(module)) for module in network.modules()}
    model = guided(app, family)
    both_ways(app, monkeypatch, lambda: sample(app, family, model))
    layer = network.get_submodule(f"{_LAYER}.to_out")
    handle = layer.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sample(app, family, model)
    handle.remove()
    names = ("forward", "weight_function")
    for module in network.modules():
        for name in names:
            assert vars(module).get(name, []) == before[id(module)].get(name, [])
