"""Masks that act on the prompts that their neurons were found for, and on no other."""

import pytest
import torch
from context_windows import windows_over_images
from tapping import hooks_left

FIRST, SECOND, OTHER = "portrait of zorvex quill", "portrait of mirella thrum", "portrait, smiling"
#: The layer whose neurons were found for each prompt, all of which are silenced.
LAYERS = {FIRST: "output_blocks.4.1", SECOND: "output_blocks.5.1"}
ATTENTION = ".transformer_blocks.0.attn2"


class World:
    """The demo model, its encoded prompts, and a mask of both layers found for two prompts."""

    def __init__(self, app):
        self.app = app
        self.model, self.clip, _ = app.run("GBX_LoadDemoModel", weights="avatars-v2")
        self.network = self.model.model.diffusion_model
        self.texts = {text: self.encode(text) for text in (FIRST, SECOND, OTHER, "")}
        self.pack = app.module("nodes.neurons.mask")
        self.union = self.pack.merge_masks([self.mask(FIRST), self.mask(SECOND)])

    def encode(self, text):
        return self.app.run("CLIPTextEncode", clip=self.clip, text=text)[0]

    def mask(self, text):
        path = f"{LAYERS[text]}{ATTENTION}.to_v"
        indices = tuple(range(self.network.get_submodule(path).out_features))
        record = self.pack.SearchRecord(text, {path: indices}, True)
        return self.pack.NeuronMask(
            self.pack.uniform_scales((path, index) for index in indices), (record,)
        )

    def masked(self, mask, model=None, **changes):
        given = {
            "strength": 1.0,
            "start_percent": 0.0,
            "end_percent": 1.0,
            "apply_to": "both",
            "clip": self.clip,
        }
        given |= changes
        return self.app.run("GBX_NemoNeuronMask", model=model or self.model, mask=mask, **given)[0]

    def sample(self, model, text, cfg=3.0):
        given = {
            "seed": 7,
            "steps": 2,
            "cfg": cfg,
            "sampler_name": "euler",
            "scheduler": "normal",
            "denoise": 1.0,
        }
        latent = {"samples": torch.zeros(2, 24, 8, 8)}
        given |= {"positive": self.texts[text], "negative": self.texts[""], "latent_image": latent}
        return self.app.run("KSampler", model=model, **given)[0]["samples"]

    def silenced(self, model, sigma=5.0, node="CFGGuider", **conditionings):
        """For each row of a guider's evaluation of two images its text, and the prompts whose
        layers are silenced.
        """
        seen = {text: [] for text in LAYERS}
        handles = []
        for text, layer in LAYERS.items():
            module = self.network.get_submodule(layer + ATTENTION)

            def record(module, _args, kwargs, output, text=text):
                silent = (output == module.to_out[0].bias).flatten(1).all(1).tolist()
                names = [
                    next(
                        name
                        for name, known in self.texts.items()
                        if torch.equal(known[0][0][0].to(one), one)
                    )
                    for one in kwargs["context"]
                ]
                seen[text] += list(zip(names, silent, strict=True))

            handles.append(module.register_forward_hook(record, with_kwargs=True))
        try:
            with torch.inference_mode():
                given = (
                    {"negative": self.texts[""]}
                    | ({"cfg": 3.0} if node == "CFGGuider" else {})
                    | conditionings
                )
                guider = self.app.run(node, model=model, **given)[0]
                noise = torch.randn(2, 24, 8, 8, generator=torch.Generator().manual_seed(0))
                (sampler,) = self.app.run("KSamplerSelect", sampler_name="euler")
                guider.sample(
                    noise,
                    torch.zeros_like(noise),
                    sampler,
                    torch.tensor([sigma, 0.0]),
                    disable_pbar=True,
                )
        finally:
            for handle in handles:
                handle.remove()
        return [
            (name, {text for text in LAYERS if seen[text][row][1]})
            for row, (name, _) in enumerate(seen[FIRST])
        ]


@pytest.fixture(scope="module")
def world(app):
    return World(app)


@pytest.mark.parametrize("cfg", [1.0, 3.0])
@pytest.mark.parametrize("apply_to", ["both", "positive"])
def test_a_prompt_samples_with_its_own_mask_and_others_as_stock(world, apply_to, cfg):
    own = world.masked(world.union, masked_prompts="own", apply_to=apply_to)
    for text in (FIRST, SECOND):
        single = world.sample(world.masked(world.mask(text), apply_to=apply_to), text, cfg)
        assert torch.equal(world.sample(own, text, cfg), single)
        assert not torch.equal(
            single, world.sample(world.masked(world.union, apply_to=apply_to), text, cfg)
        )
    assert torch.equal(world.sample(own, OTHER, cfg), world.sample(world.model, OTHER, cfg))
    assert hooks_left(world.model) == 0


def test_other_strengths_and_a_range_of_steps(world):
    given = {"strength": 2.0, "start_percent": 0.3, "end_percent": 0.9}
    own = world.masked(world.union, masked_prompts="own", **given)
    assert torch.equal(
        world.sample(own, FIRST), world.sample(world.masked(world.mask(FIRST), **given), FIRST)
    )


def test_masks_of_prompts_stack(world):
    first, second = (world.mask(text) for text in (FIRST, SECOND))
    both = world.masked(
        second, model=world.masked(first, masked_prompts="own"), masked_prompts="own"
    )
    for text in (FIRST, OTHER):
        expected = world.sample(world.masked(world.union, masked_prompts="own"), text)
        assert torch.equal(world.sample(both, text), expected)


def test_each_image_of_a_batch_has_the_mask_of_its_prompt(world):
    """A CONDITIONING of two prompts: one for each image, and for its row of the negative prompt."""

    def rows(found):
        return sorted(found, key=str)

    pair = [
        [
            torch.cat([world.texts[text][0][0] for text in (SECOND, FIRST)]),
            dict(world.texts[FIRST][0][1]),
        ]
    ]
    found = world.silenced(world.masked(world.union, masked_prompts="own"), positive=pair)
    assert rows(found) == rows(
        [(SECOND, {SECOND}), (FIRST, {FIRST}), ("", {SECOND}), ("", {FIRST})]
    )
    found = world.silenced(
        world.masked(world.union, masked_prompts="own", apply_to="positive"), positive=pair
    )
    assert rows(found) == rows([(SECOND, {SECOND}), (FIRST, {FIRST}), ("", set()), ("", set())])


def test_regions_of_an_image_have_the_masks_of_all_its_prompts(world):
    own = world.masked(world.union, masked_prompts="own", apply_to="positive")
    area = {"width": 32, "height": 64, "x": 0, "y": 0, "strength": 1.0}
    regional = world.app.run("ConditioningSetArea", conditioning=world.texts[SECOND], **area)[0]
    found = world.silenced(own, positive=world.texts[FIRST] + regional)
    assert {name for name, _ in found} == {FIRST, SECOND, ""}
    assert all(silent == ({FIRST, SECOND} if name else set()) for name, silent in found)


def test_a_region_of_the_negative_prompt_switches_no_mask_on(world):
    own = world.masked(world.union, masked_prompts="own")
    area = {"width": 32, "height": 64, "x": 0, "y": 0, "strength": 1.0}
    regional = world.app.run("ConditioningSetArea", conditioning=world.texts[FIRST], **area)[0]
    found = world.silenced(own, positive=world.texts[OTHER], negative=world.texts[""] + regional)
    assert {name for name, _ in found} == {OTHER, FIRST, ""}
    assert all(silent == set() for _, silent in found)


def test_scheduled_prompts_have_their_masks_while_they_are_sampled(world):
    own = world.masked(world.union, masked_prompts="own")
    parts = [
        world.app.run(
            "ConditioningSetTimestepRange", conditioning=world.texts[text], start=start, end=end
        )[0]
        for text, start, end in ((FIRST, 0.0, 0.5), (SECOND, 0.5, 1.0))
    ]
    early, late = (
        dict(world.silenced(own, sigma, positive=parts[0] + parts[1])) for sigma in (12.0, 0.3)
    )
    assert (early, late) == ({FIRST: {FIRST}, "": {FIRST}}, {SECOND: {SECOND}, "": {SECOND}})


@pytest.mark.parametrize("style", ["regular", "nested"])
def test_the_second_prompt_of_a_guider_switches_no_mask_on(world, style):
    own = world.masked(world.union, masked_prompts="own", apply_to="positive")
    given = {"cond1": world.texts[FIRST], "cond2": world.texts[SECOND]}
    given |= {"cfg_conds": 3.0, "cfg_cond2_negative": 2.0, "style": style}
    found = dict(world.silenced(own, node="DualCFGGuider", **given))
    assert found == {FIRST: {FIRST}, SECOND: set(), "": set()}


def test_the_score_of_a_prompt_is_that_under_its_own_mask(world):
    given = {
        "clip": world.clip,
        "prompts": FIRST,
        "prompts_file": "",
        "threshold": 0.5,
        "text_norm": False,
    }
    given |= {"noise_samples": 2, "seed": 1, "timestep": "official_961", "width": 64, "height": 64}
    given |= {"filename_prefix": ""}
    models = (
        world.masked(world.union, masked_prompts="own"),
        world.masked(world.mask(FIRST)),
        world.model,
    )
    own, single, plain = (
        world.app.run("GBX_MemorizationScore", model=model, **given)[1] for model in models
    )
    assert own == single != plain


def test_bad_input_raises_a_readable_error(world):
    with pytest.raises(ValueError, match="connect the model's clip"):
        world.masked(world.union, masked_prompts="own", clip=None)
    unknown = world.pack.NeuronMask(world.union.scales)
    with pytest.raises(ValueError, match="does not say which prompts"):
        world.masked(unknown, masked_prompts="own")


def test_a_prompt_encoded_on_another_device_keeps_its_mask(world):
    """Rounding of a tenth of a permille of the largest component is the same prompt; of a tenth it
    is another one.
    """
    own = world.masked(world.union, masked_prompts="own", apply_to="positive")
    (embedding, options), *_ = world.texts[FIRST]
    for size, expected in ((1e-4, {FIRST}), (0.1, set())):
        world.texts["rounded"] = [[embedding + size * embedding.abs().max(), options]]
        try:
            found = world.silenced(own, positive=world.texts["rounded"])
        finally:
            del world.texts["rounded"]
        assert dict(found)["rounded"] == expected


def test_windows_over_images_with_a_prompt_each_are_refused(world):
    """Stock context windows of one image each: a row does not say of which image it is."""
    texts = torch.cat([world.texts[text][0][0] for text in (SECOND, FIRST, OTHER)])
    own = world.masked(world.union, masked_prompts="own")
    windows = windows_over_images(world.app, own, 1)

    def sample(
        model,
    ):  # as many images as noise levels, without which the stock windows do not run in 0.3.75
        settings = {
            "seed": 7,
            "steps": 2,
            "cfg": 3.0,
            "sampler_name": "euler",
            "scheduler": "normal",
            "denoise": 1.0,
        }
        settings |= {"positive": [[texts, {}]], "negative": world.texts[""]}
        latent = {"samples": torch.zeros(3, 24, 8, 8)}
        return world.app.run("KSampler", model=model, latent_image=latent, **settings)[0]["samples"]

    expected = sample(own)
    changed = (expected - sample(world.model)).flatten(1).abs().amax(1)
    assert (changed[:2] > 0).all() and changed[2] == 0
    with pytest.raises(
        ValueError, match=r"context windows, .*: it is not known which image a row belongs to"
    ):
        sample(windows)


def test_a_strength_is_that_of_the_mask_on_all_prompts(world):
    """At cfg 1 the prompt of the mask is the only one."""
    half = {"strength": 0.5}
    own = world.sample(world.masked(world.mask(FIRST), masked_prompts="own", **half), FIRST, cfg=1)
    everywhere = world.sample(world.masked(world.mask(FIRST), **half), FIRST, cfg=1)
    whole = world.sample(world.masked(world.mask(FIRST)), FIRST, cfg=1)
    assert torch.allclose(own, everywhere, atol=1e-5)
    assert not torch.allclose(own, whole, atol=1e-2)


@pytest.mark.parametrize("first", ["mask", "variety"])
def test_a_prompt_is_known_behind_and_before_seed_variety(app, world, first):
    """Noise on the embedding makes it no other prompt, whichever node comes first."""

    def varied(model):
        settings = {"method": "annealed", "noise_scale": 0.5, "tau1": 0.05, "tau2": 0.9, "seed": 3}
        return app.run("GBX_SeedVariety", model=model, **settings)[0]

    def own(model=None):
        return world.masked(world.union, model, masked_prompts="own")

    both = varied(own()) if first == "mask" else own(varied(world.model))
    of_prompt = varied(world.masked(world.mask(FIRST)))
    assert torch.allclose(
        world.sample(both, FIRST, cfg=1.0), world.sample(of_prompt, FIRST, cfg=1.0), atol=1e-5
    )
    untouched = world.sample(varied(world.model), FIRST, cfg=1.0)
    assert not torch.allclose(world.sample(both, FIRST, cfg=1.0), untouched, atol=1e-2)
