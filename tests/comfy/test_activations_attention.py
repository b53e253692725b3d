"""Attention averaged over layers, and Token Heat Map."""

import pytest
import reduced
import torch
from tapping import World, hooks_left


@pytest.fixture(scope="module")
def demo(comfy):
    return World(comfy, *comfy.run("GBX_LoadDemoModel", weights="avatars-v1"))


@pytest.fixture(scope="module", params=["sd15", "sdxl"])
def tapped(comfy, request):
    """Every cross-attention map of a reduced network at 256 pixels, and the averages."""
    world = World(comfy, *reduced.checkpoint(request.param))
    return world.tap("*-cross-map\nattn\nattn-mean", latent=world.latent(2, 256, 192))


def pictures(tapped, prefix):
    """Head means of the maps whose ID begins with the prefix, in forward order: (rows, tokens, h, w)."""
    for id_, value in tapped.tensors.items():
        if id_.startswith(prefix) and id_.endswith("cross-map"):
            height = round((value.shape[2] * 32 / 24) ** 0.5)
            yield value.mean(1).transpose(1, 2).unflatten(2, (height, -1))


def test_the_attention_feature_is_the_official_one(tapped):
    """Oracle O4: means over heads and layers of the up-stage at two sizes, joined: 154 channels, at an eighth."""
    by_size = {}
    for maps in pictures(tapped, "up-"):
        if maps.shape[2] in (8, 16):
            by_size.setdefault(maps.shape[2], []).append(maps)
    assert list(by_size) == [8, 16]
    sides = [torch.stack(maps).mean(0) for maps in by_size.values()]
    large = [torch.nn.functional.interpolate(side, size=(32, 24), mode="nearest") for side in sides]
    found = tapped.tensors["attn"]
    assert found.shape == (2, 154, 32, 24)
    assert (found - torch.cat(large, 1)).abs().max() < 1e-6


def test_the_mean_over_all_layers_is_daams(tapped):
    """Each layer's map enlarged bicubically and clamped at 0; DAAM, section 3."""
    all_ = [maps for stage in ("down-", "mid-", "up-") for maps in pictures(tapped, stage)]
    size = max(maps.shape[2:] for maps in all_)

    def enlarged(maps):
        if maps.shape[2:] == size:
            return maps
        return torch.nn.functional.interpolate(maps, size=size, mode="bicubic").clamp_min(0)

    large = [enlarged(maps) for maps in all_]
    assert (tapped.tensors["attn-mean"] - torch.stack(large).mean(0)).abs().max() < 1e-6


def heat(demo, activations, image, prompt, words="", **changes):
    given = {"activations": activations, "image": image, "clip": demo.clip, "prompt": prompt, "words": words}
    options = {"prompt_is": "positive prompt", "relative": True, "opacity": 0.6, **changes}
    return demo.comfy.run("GBX_TokenHeatMap", **given, **options)


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
    words = demo.comfy.module("nodes.activations.words")
    assert torch.equal(words.heat_map(tokens, [3, 4], 77), tokens[:, 3:5].mean(1))
    words_of = demo.comfy.module("nodes.host.words").words_of
    assert words_of("a (red:1.2) \\(big\\) house, red") == ["a", "red", "big", "house"]


def test_every_word_of_a_recorded_run_positive_and_negative(demo):
    """Texts of unlike length: ComfyUI repeats the shorter one, and its tokens' shares are added up."""
    (long,) = demo.comfy.run("CLIPTextEncode", clip=demo.clip, text="portrait, smiling, " * 20)
    recording_model, recording = demo.record("all", "both", "attn-mean")
    samples = demo.sample(recording_model, demo.latent(1), negative=long)
    activations, step, report = demo.comfy.run("GBX_ReadActivations", recording=recording, samples=samples, index=0,
                                               average=True)  # fmt: skip
    single = [demo.read(recording, samples, index)[0].tensors["attn-mean"] for index in range(3)]
    assert step == 2 and "this is their mean" in report
    assert (activations.tensors["attn-mean"] - sum(single) / 3).abs().max() < 1e-6
    image = torch.zeros(1, 128, 128, 3)
    _, masks, found = heat(demo, activations, image, "portrait, red hair")
    assert found == "portrait\nred\nhair" and len(masks) == 3
    negative = {"prompt_is": "negative prompt", "relative": False}
    _, masks, found = heat(demo, activations, image, "portrait, smiling, " * 20, **negative)
    assert found == "portrait\nsmiling" and masks.amax() <= 1
    assert hooks_left(demo.model) == 0


@pytest.mark.parametrize(("architecture", "positions", "length"), [
    ("sd3", [3, 4], 77),  # begin, "a", "smiling", "red", "hat" of CLIP; T5 is not loaded
    ("flux", [3, 4, 5], 256),  # two of T5 for "a", then "smiling", "red", and two for "hat"
])  # fmt: skip
def test_heat_maps_of_joint_attention(comfy, architecture, positions, length):
    """Text and picture attend together; the text's tokens are those of the encoders that the model attends to."""
    world = World(comfy, *reduced.checkpoint(architecture))
    (text,) = comfy.run("CLIPTextEncode", clip=world.clip, text="a smiling red hat")
    tapped = world.tap("attn-mean", positive=text, latent=world.latent(1, 64, 96), noise_level="sigma", level=0.5)
    attention = tapped.tensors["attn-mean"]
    assert attention.shape == (1, length, 4, 6)
    _, masks, found = heat(world, tapped, torch.zeros(1, 64, 96, 3), "a smiling red hat", "red hat")
    wanted = attention[:, positions].mean(1)
    wanted = (wanted - wanted.amin()) / (wanted.amax() - wanted.amin())
    shown = torch.nn.functional.interpolate(wanted[:, None], size=(64, 96), mode="bilinear")[:, 0]
    assert found == "red hat" and (masks - shown).abs().max() < 1e-4


def test_tokens_of_clip_and_t5_follow_each_other(comfy):
    """As SD3's text encoder joins them: word by word the positions in both."""
    import types

    module = comfy.module("nodes.host.words")
    clip = reduced.checkpoint("sd3")[1]
    whole = types.SimpleNamespace(clip_l=object(), clip_g=object(), t5xxl=object())
    with_t5 = types.SimpleNamespace(tokenize=clip.tokenize, cond_stage_model=whole)
    by_clip, by_t5 = module.tokens_of(with_t5, "a red hat")
    assert module.tokens_of(clip, "a red hat") == [by_clip]
    places = comfy.module("nodes.activations.wording.nodes")._places
    assert places([by_clip, by_t5], module.tokens_of(with_t5, "red")) == [2, 77 + 2]


@pytest.mark.parametrize(("prompt", "words", "changes", "reason"), [
    ("portrait, red hair", "hat", {}, "'hat' is not in the prompt"),
    ("portrait, red hair", "hair", {"prompt_is": "negative prompt"}, "There are no rows of the negative prompt"),
    ("1 2 3", "", {}, "The prompt has no words"),
    ("portrait, " * 60, "portrait", {}, "The prompt has 154 tokens and the attention 77"),
])  # fmt: skip
def test_what_a_heat_map_cannot_show(demo, prompt, words, changes, reason):
    with pytest.raises(ValueError, match=reason):
        heat(demo, demo.tap("attn-mean", latent=demo.latent(1)), torch.zeros(1, 128, 128, 3), prompt, words, **changes)


def test_a_heat_map_needs_attention(demo):
    with pytest.raises(ValueError, match="hold no attn-mean: tap or record with the preset 'attention to words'"):
        heat(demo, demo.tap("unet-out"), torch.zeros(2, 128, 128, 3), "portrait")
