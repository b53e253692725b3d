"""Attention averaged over layers, and Token Heat Map."""

import pytest
import reduced
import torch
from tapping import PATTERN, World, hooks_left


@pytest.fixture(scope="module")
def demo(app):
    return World(app, *app.run("GBX_LoadDemoModel", weights="avatars-v2"))


@pytest.fixture(scope="module", params=["sd15", "sdxl"])
def tapped(app, request):
    """Every cross-attention map of a reduced network at 256 pixels, and the averages."""
    world = World(app, *reduced.checkpoint(request.param))
    return world.tap("*-cross-map\nattn\nattn-mean", latent=world.latent(2, 256, 192))


def images(tapped, prefix):
    """Head means of the maps whose ID begins with the prefix, in forward order: (rows, tokens, h,
    w).
    """
    for id_, value in tapped.tensors.items():
        if id_.startswith(prefix) and id_.endswith("cross-map"):
            height = round((value.shape[2] * 32 / 24) ** 0.5)
            yield value.mean(1).transpose(1, 2).unflatten(2, (height, -1))


def test_the_attention_feature_is_the_official_one(tapped):
    """AttentionStore.aggregate_attention(["up_cross"]): means over heads and layers at two sizes,
    154 channels.
    """
    by_size = {}
    for maps in images(tapped, "up-"):
        if maps.shape[2] in (8, 16):
            by_size.setdefault(maps.shape[2], []).append(maps)
    assert list(by_size) == [8, 16]
    sides = [torch.stack(maps).mean(0) for maps in by_size.values()]
    large = [torch.nn.functional.interpolate(side, size=(32, 24), mode="nearest") for side in sides]
    found = tapped.tensors["attn"]
    assert found.shape == (2, 154, 32, 24)
    assert (found - torch.cat(large, 1)).abs().max() < 1e-6


def test_the_mean_of_all_layers_counts_layers_alike(tapped):
    """Each layer's map enlarged bicubically, negative values set to 0, the middle block
    included.
    """
    all_ = [maps for stage in ("down-", "mid-", "up-") for maps in images(tapped, stage)]
    size = max(maps.shape[2:] for maps in all_)

    def enlarged(maps):
        if maps.shape[2:] == size:
            return maps
        return torch.nn.functional.interpolate(maps, size=size, mode="bicubic").clamp_min(0)

    large = [enlarged(maps) for maps in all_]
    assert (tapped.tensors["attn-mean"] - torch.stack(large).mean(0)).abs().max() < 1e-6


def daam_package(steps, side):
    """The maps (rows, tokens, side, side) of daam 0.2.0 from the raw maps of each step, by its own
    classes' formulas.

    ``RawHeatMapCollection.update`` sums the raw maps of a (factor, layer, head) over time;
    ``DiffusionHeatMapHooker.compute_global_heat_map`` enlarges each bicubically, clamps at 0, and
    takes their mean. ``UNetCrossAttentionLocator(locate_middle_block=False)`` leaves the middle
    block out, ``factor != 8`` its size.
    """
    sums = {}
    for tensors in steps:
        for id_, maps in tensors.items():
            factor = side // round(maps.shape[2] ** 0.5)
            if id_.endswith("cross-map") and not id_.startswith("mid") and factor != 8:
                for head in range(maps.shape[1]):
                    sums[id_, head] = sums.get((id_, head), 0) + maps[:, head].double()
    enlarged = []
    for maps in sums.values():
        grid = maps.transpose(1, 2).unflatten(2, (round(maps.shape[1] ** 0.5), -1))
        enlarged.append(
            torch.nn.functional.interpolate(grid, size=(side, side), mode="bicubic").clamp(min=0)
        )
    return torch.stack(enlarged).mean(0)


@pytest.mark.parametrize("mean_only", [False, True])
def test_word_heat_maps_are_those_of_the_daam_package(demo, mean_only):
    model, recording = demo.record("all", "both", "*-cross-map")
    samples = demo.sample(model, demo.latent(1))
    steps = [demo.read(recording, samples, step)[0].tensors for step in range(3)]
    expected = daam_package([{id_: maps[:1] for id_, maps in one.items()} for one in steps], 16)
    given = {
        "preset": "cross_attention",
        "ids": "",
        "recorded_steps": "all",
        "rows": "both",
        "pool_size": 1,
    }
    model, recording = demo.app.run(
        "GBX_ActivationRecorder", model=demo.model, precision="fp32", mean_only=mean_only, **given
    )
    samples = demo.sample(model, demo.latent(1))
    activations, _, report = demo.app.run(
        "GBX_ReadActivations",
        recording=recording,
        latent=samples,
        step_index=0,
        average=not mean_only,
    )
    assert not any(id_.startswith("mid") for id_ in activations.tensors)
    assert report.startswith("Recorded steps 0, 1, 2 of 3. This is their mean.")
    image = torch.zeros(1, 128, 128, 3)
    _, masks, _ = heat(
        demo, activations, image, "portrait, red hair", "hair\nred hair", normalize_per_word=False
    )
    words = torch.stack([expected[:, 4], expected[:, 3:5].mean(1)])[
        :, 0
    ].float()  # begin, portrait, comma, red, hair
    words = (words - words.amin()) / (words.amax() - words.amin())
    shown = torch.nn.functional.interpolate(words[:, None], size=(128, 128), mode="bilinear")[:, 0]
    assert (masks - shown).abs().max() < 1e-5


def test_the_cross_attention_preset_leaves_out_what_daam_does(app):
    for name in ("sd15", "sdxl"):
        world = World(app, *reduced.checkpoint(name))
        specs = app.module("nodes.activations.catalog_unet").catalog(
            world.model.model.diffusion_model
        )
        every = [spec.id for spec in specs if spec.id.endswith("cross-map")]
        kept = [
            spec.id
            for spec in app.module("nodes.activations.select_ids").select(specs, "cross_attention")
        ]
        assert kept == [id_ for id_ in every if not id_.startswith("mid")]
        assert len(kept) == 15


def heat(demo, activations, image, prompt, words="", **changes):
    given = {
        "activations": activations,
        "image": image,
        "clip": demo.clip,
        "prompt": prompt,
        "words": words,
    }
    options = {"prompt_role": "positive", "normalize_per_word": True, "opacity": 0.6, **changes}
    return demo.app.run("GBX_TokenHeatMap", **given, **options)


def test_a_heat_map_is_the_attention_to_the_words_tokens(demo):
    image = torch.rand(2, 128, 128, 3, generator=torch.Generator().manual_seed(0))
    tapped = demo.tap("attn-mean")
    sheet, masks, found = heat(demo, tapped, image, "portrait, red hair", "hair\nred hair")
    assert found == "hair\nred hair" and masks.shape == (4, 128, 128) and sheet.ndim == 4
    tokens = tapped.tensors["attn-mean"]
    hair = tokens[:, 4]  # begin, "portrait", ",", "red", "hair"
    low, high = hair.amin((1, 2), keepdim=True), hair.amax((1, 2), keepdim=True)
    hair = (hair - low) / (high - low)
    shown = torch.nn.functional.interpolate(hair[:, None], size=(128, 128), mode="bilinear")[:, 0]
    assert (masks[:2] - shown).abs().max() < 1e-5
    words = demo.app.module("nodes.activations.token_heatmap")
    assert torch.equal(words.heat_map(tokens, [3, 4], 77), tokens[:, 3:5].mean(1))


def test_every_word_of_a_recorded_run_positive_and_negative(demo):
    """Texts of unlike length: ComfyUI repeats the shorter one, and its tokens' shares are added
    up.
    """
    (long,) = demo.app.run("CLIPTextEncode", clip=demo.clip, text="portrait, smiling, " * 20)
    recording_model, recording = demo.record("all", "both", "attn-mean")
    samples = demo.sample(recording_model, demo.latent(1), negative=long)
    activations, step, report = demo.app.run(
        "GBX_ReadActivations", recording=recording, latent=samples, step_index=0, average=True
    )
    single = [demo.read(recording, samples, index)[0].tensors["attn-mean"] for index in range(3)]
    assert step == 2 and "This is their mean" in report
    assert (activations.tensors["attn-mean"] - sum(single) / 3).abs().max() < 1e-6
    image = torch.zeros(1, 128, 128, 3)
    _, masks, found = heat(demo, activations, image, "portrait, red hair")
    assert found == "portrait\nred\nhair" and len(masks) == 3
    negative = {"prompt_role": "negative", "normalize_per_word": False}
    _, masks, found = heat(demo, activations, image, "portrait, smiling, " * 20, **negative)
    assert found == "portrait\nsmiling" and masks.amax() <= 1
    assert hooks_left(demo.model) == 0


@pytest.mark.parametrize("typed", ["portrait, red hair", "portrait, blue hoodie"])
def test_of_joined_prompts_each_word_has_its_own_map(demo, typed):
    """ConditioningConcat, ComfyUI's BREAK: the tokens of the typed prompt's own part, not a sum
    over both.
    """
    run = demo.app.run
    texts = ["portrait, red hair", "portrait, blue hoodie"]
    parts = [run("CLIPTextEncode", clip=demo.clip, text=text)[0] for text in texts]
    (joined,) = run("ConditioningConcat", conditioning_to=parts[0], conditioning_from=parts[1])
    tapped = demo.tap("attn-mean", positive=joined)
    image = torch.zeros(2, 128, 128, 3)
    _, masks, _ = heat(demo, tapped, image, typed, typed.split()[-1], normalize_per_word=False)
    own = tapped.tensors["attn-mean"][:, texts.index(typed) * 77 + 4]
    own = (own - own.amin()) / (own.amax() - own.amin())
    shown = torch.nn.functional.interpolate(own[:, None], size=(128, 128), mode="bilinear")[:, 0]
    assert (masks - shown).abs().max() < 1e-5


@pytest.mark.parametrize(
    "ids", ["attn-mean, up-level1-repeat0-res-out", "*-cross-map, mid-vit-out"]
)
def test_words_are_found_beside_other_activations(demo, ids):
    """What they are recognized by is recorded where any activation is read by words."""
    run = demo.app.run
    texts = [
        run("CLIPTextEncode", clip=demo.clip, text=text)[0]
        for text in ("portrait, red hair", "portrait, blue hoodie")
    ]
    (joined,) = run("ConditioningConcat", conditioning_to=texts[0], conditioning_from=texts[1])
    alone = demo.tap(ids.split(", ")[0], positive=joined)
    beside = demo.tap(ids, positive=joined)
    assert len(beside.tensors) == len(alone.tensors) + 1
    assert len(alone.settings["text_marks"]["True"]) == 2 * 77
    assert beside.settings["text_marks"] == alone.settings["text_marks"]


def test_joined_prompts_typed_as_one_are_a_sentence(demo):
    run = demo.app.run
    parts = [
        run("CLIPTextEncode", clip=demo.clip, text=text)[0]
        for text in ("portrait, red hair", "blue hoodie")
    ]
    (joined,) = run("ConditioningConcat", conditioning_to=parts[0], conditioning_from=parts[1])
    tapped = demo.tap("attn-mean", positive=joined)
    with pytest.raises(ValueError, match=r"of texts that were joined .* enter one"):
        heat(demo, tapped, torch.zeros(2, 128, 128, 3), "portrait, red hair blue hoodie", "hoodie")


def scheduled(demo, *texts):
    """Prompts one after the other, each in its part of the run (noise, then image)."""
    run, joined = demo.app.run, []
    for number, text in enumerate(texts):
        (made,) = run("CLIPTextEncode", clip=demo.clip, text=text)
        start, end = number / len(texts), (number + 1) / len(texts) - 1e-3
        joined += run("ConditioningSetTimestepRange", conditioning=made, start=start, end=end)[0]
    return joined


@pytest.mark.parametrize("mean_only", [False, True])
def test_words_of_a_prompt_schedule_are_those_of_their_own_steps(demo, mean_only):
    """Each prompt's words in its steps as if it were alone there; what would mix them is a
    sentence.
    """
    texts = "portrait, red hair", "portrait, blue hoodie"
    given = {
        **PATTERN,
        "ids": "attn-mean",
        "recorded_steps": "all",
        "rows": "conditional",
        "mean_only": mean_only,
    }
    model, recording = demo.app.run("GBX_ActivationRecorder", model=demo.model, **given)
    latent, how = demo.latent(1), {"steps": 4, "scheduler": "simple"}
    samples = demo.sample(model, latent, positive=scheduled(demo, *texts), **how)
    read = {"recording": recording, "latent": samples}
    image, masks = torch.zeros(1, 128, 128, 3), []
    if not mean_only:
        with pytest.raises(ValueError, match="of different prompts"):
            demo.app.run("GBX_ReadActivations", **read, step_index=0, average=True)
    else:
        report = demo.app.run("GBX_ReadActivations", **read, step_index=0)[2]
        assert "Not recorded: steps 2, 3. Its prompt is another one" in report
    for step, own, other in ((0, *texts), (-1, *texts[::-1])):
        activations = demo.app.run("GBX_ReadActivations", **read, step_index=step)[0]
        if mean_only and step:
            continue
        masks.append(heat(demo, activations, image, own, own.split()[-1])[1])
        with pytest.raises(
            ValueError, match="not the text that these activations were encoded from"
        ):
            heat(demo, activations, image, other, other.split()[-1])
    alone, record = demo.app.run("GBX_ActivationRecorder", model=demo.model, **given)
    (first,) = demo.app.run("CLIPTextEncode", clip=demo.clip, text=texts[0])
    run = demo.sample(alone, latent, positive=first, **how)
    own = demo.app.run("GBX_ReadActivations", recording=record, latent=run, step_index=0)[0]
    if not mean_only:
        assert torch.equal(masks[0], heat(demo, own, image, texts[0], "hair")[1])


def test_sdxl_s_two_unlike_texts_are_a_sentence(app):
    world = World(app, *reduced.checkpoint("sdxl"))
    size = {
        "width": 128,
        "height": 128,
        "crop_w": 0,
        "crop_h": 0,
        "target_width": 128,
        "target_height": 128,
    }
    same, unlike = (
        app.run("CLIPTextEncodeSDXL", clip=world.clip, text_g="a smiling cat", text_l=text, **size)[
            0
        ]
        for text in ("a smiling cat", "a blue dog")
    )
    image = torch.zeros(2, 128, 128, 3)
    assert (
        heat(world, world.tap("attn-mean", positive=same), image, "a smiling cat", "cat")[2]
        == "cat"
    )
    for typed in ("a smiling cat", "a blue dog"):
        with pytest.raises(ValueError, match="SDXL"):
            heat(world, world.tap("attn-mean", positive=unlike), image, typed)


@pytest.mark.parametrize(
    ("architecture", "positions", "length"),
    [
        ("sd3", [3, 4], 77),  # begin, "a", "smiling", "red", "hat" of CLIP; T5 is not loaded
        ("flux", [3, 5], 256),  # a space and "a" of T5, then "smiling", "red", a space and "hat"
    ],
)
def test_heat_maps_of_joint_attention(app, architecture, positions, length):
    """Text and image attend together; the text's tokens are those of the encoders that the model
    attends to.
    """
    world = World(app, *reduced.checkpoint(architecture))
    (text,) = app.run("CLIPTextEncode", clip=world.clip, text="a smiling red hat")
    tapped = world.tap(
        "attn-mean", positive=text, latent=world.latent(1, 64, 96), noise_unit="sigma", level=0.5
    )
    attention = tapped.tensors["attn-mean"]
    assert attention.shape == (1, length, 4, 6)
    _, masks, found = heat(world, tapped, torch.zeros(1, 64, 96, 3), "a smiling red hat", "red hat")
    wanted = attention[:, positions].mean(1)
    wanted = (wanted - wanted.amin()) / (wanted.amax() - wanted.amin())
    shown = torch.nn.functional.interpolate(wanted[:, None], size=(64, 96), mode="bilinear")[:, 0]
    assert found == "red hat" and (masks - shown).abs().max() < 1e-4


def test_tokens_of_clip_and_t5_follow_each_other(app):
    """As SD3's text encoder joins them: word by word the positions in both."""
    import types

    read = app.module("nodes.host.text_encoding").read_prompt
    clip = reduced.checkpoint("sd3")[1]
    whole = types.SimpleNamespace(clip_l=object(), clip_g=object(), t5xxl=object())
    with_t5 = types.SimpleNamespace(
        tokenize=clip.tokenize, tokenizer=clip.tokenizer, cond_stage_model=whole
    )
    assert read(clip, "a red hat").find("red") == {"red": [2]}
    assert read(with_t5, "a red hat").find("red") == {"red": [2, 77 + 2]}  # T5: a space, "a", "red"


@pytest.mark.parametrize(
    ("prompt", "words", "changes", "reason"),
    [
        ("portrait, red hair", "hat", {}, "'hat' is not in the prompt"),
        (
            "portrait, red hair",
            "hair",
            {"prompt_role": "negative"},
            "There are no rows of the negative prompt",
        ),
        (", , ", "", {}, "The prompt has no words"),
        (
            "portrait, " * 60,
            "portrait",
            {},
            "not the text that these activations were encoded from",
        ),
        (
            "portrait, blue hair",
            "hair",
            {},
            "not the text that these activations were encoded from",
        ),
    ],
)
def test_words_and_prompts_that_do_not_fit_are_refused(demo, prompt, words, changes, reason):
    with pytest.raises(ValueError, match=reason):
        heat(
            demo,
            demo.tap("attn-mean", latent=demo.latent(1)),
            torch.zeros(1, 128, 128, 3),
            prompt,
            words,
            **changes,
        )


def test_a_heat_map_needs_attention(demo):
    with pytest.raises(
        ValueError,
        match=r"hold no cross-attention\. Tap or record with the preset 'cross_attention'",
    ):
        heat(demo, demo.tap("unet-out"), torch.zeros(2, 128, 128, 3), "portrait")
