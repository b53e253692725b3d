"""Noisy Replicate Padding on ComfyUI's own text models: which slots are padding, in every
family.
"""

import pytest
import reduced
import torch

PROMPT = "a (red:1.2) house by the sea"
SETTINGS = {
    "padding": "copies",
    "strength": 0.0,
    "scale_by_copies": True,
    "seed": 3,
    "pad_empty_prompt": False,
}
FAMILIES = ("sd15", "sdxl", "sd3", "flux", "demo")


@pytest.fixture(scope="module")
def clips(app):
    made = {name: reduced.checkpoint(name)[1] for name in reduced.ARCHITECTURES}
    return {**made, "demo": app.run("GBX_LoadDemoModel", weights="avatars-v2")[1]}


@pytest.fixture(scope="module")
def padded(app, clips):
    def run(family, text=PROMPT, **changes):
        clip = clips[family] if isinstance(family, str) else family
        return app.run("GBX_NoisyReplicatePadding", clip=clip, text=text, **{**SETTINGS, **changes})

    return run


def stock(app, clip, text=PROMPT):
    return app.run("CLIPTextEncode", clip=clip, text=text)[0]


def counted(clip, key, text):
    """Tokens of a text with start and end, counted by the tokenizer without padding."""
    own = getattr(clip.tokenizer, f"clip_{key}", None) or getattr(clip.tokenizer, key)
    return len(own.tokenizer(text.replace("(", "").replace(":1.2)", ""))["input_ids"])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", [PROMPT, ""])
def test_stock_and_empty_prompts_are_clip_text_encode(app, clips, padded, family, text):
    wanted = stock(app, clips[family], text)[0]
    ours, report = padded(family, text, padding="stock" if text else "noisy_copies")
    assert torch.equal(ours[0][0], wanted[0])
    assert ours[0][1].keys() == wanted[1].keys()
    assert report.startswith("Unchanged")


@pytest.mark.parametrize("family", FAMILIES)
def test_slots_behind_the_prompt_repeat_it(app, clips, padded, family):
    wanted, ours = stock(app, clips[family])[0], padded(family)[0][0]
    key = "t5xxl" if family == "flux" else "l"
    count = counted(clips[family], key, PROMPT)
    assert ours[0].shape == wanted[0].shape
    assert torch.equal(ours[0][:, :count], wanted[0][:, :count])
    for slot in (count, count + 1, 2 * count + 3, ours[0].shape[1] - 1):
        assert torch.equal(ours[0][:, slot], wanted[0][:, slot % count])
    if wanted[1].get("pooled_output") is not None:
        assert torch.equal(ours[1]["pooled_output"], wanted[1]["pooled_output"])


def test_sdxl_s_encoders_are_filled_apart(app, clips, padded):
    """CLIP-L pads with its end token and CLIP-G with 0; an embedding of one can make their counts
    differ.
    """
    clip, report = clips["sdxl"], padded("sdxl")[1]
    count = counted(clip, "l", PROMPT)
    assert report.count(f"slots 0 to 76: {count} tokens of 77") == 2
    tokens = clip.tokenize(PROMPT)
    tokens["g"] = clip.tokenize("sea")["g"]
    prompts = app.module("nodes.host.text_encoding")
    found = prompts.chunks(clip, tokens, (1, 77, 128))
    assert [(chunk.encoder, chunk.channels, chunk.real) for chunk in found] == [
        ("l", slice(0, 64), count),
        ("g", slice(64, 128), 3),
    ]


@pytest.mark.parametrize("family", ["sd15", "sdxl", "demo"])
def test_long_prompts_are_filled_chunk_by_chunk(app, clips, padded, family):
    text = " ".join(["portrait"] * 100)
    wanted, ours = stock(app, clips[family], text)[0][0], padded(family, text)[0][0][0]
    assert ours.shape[1] == 154
    assert torch.equal(ours[:, :77], wanted[:, :77])  # the first chunk is full
    count = 100 - 75 + 2
    assert torch.equal(ours[:, 77 : 77 + count], wanted[:, 77 : 77 + count])
    assert torch.equal(ours[:, 77 + count + 4], wanted[:, 77 + 4])


def test_a_word_kept_whole_leaves_padding_in_the_middle(clips, padded):
    """ComfyUI moves a word that would be cut to the next chunk and pads the first."""
    text = " ".join(["sea"] * 74) + " (antidisestablishment:1.1)"
    report = padded("sd15", text)[1]
    assert "slots 0 to 76: 76 tokens of 77" in report


def test_a_full_chunk_stays(app, clips, padded):
    text = " ".join(["sea"] * 75)
    ours = padded("sd15", text, padding="noisy_copies", strength=5.0)[0][0][0]
    assert torch.equal(ours, stock(app, clips["sd15"], text)[0][0])


def test_embeddings_count_as_tokens(app, clips):
    clip, prompts = clips["sd15"], app.module("nodes.host.text_encoding")
    tokens = clip.tokenize("sea")
    vectors = [(torch.ones(64), 1.0)] * 5
    tokens["l"][0][2:7] = vectors
    tokens["l"][0][7] = (49407, 1.0)
    assert prompts.chunks(clip, tokens, (1, 77, 64))[0].real == 8
    encoded = clip.encode_from_tokens(tokens)
    assert encoded.shape == (1, 77, 64)


def test_flux_and_sd3_by_layout(app, clips):
    """Flux has T5 alone in its slots; SD3 CLIP-L beside CLIP-G, then T5, in 4,096 channels."""
    prompts, clip = app.module("nodes.host.text_encoding"), clips["flux"]
    tokens = clip.tokenize(PROMPT)
    (only,) = prompts.chunks(clip, tokens, (1, 256, 64))
    assert (only.encoder, only.rows, only.real) == (
        "t5xxl",
        slice(0, 256),
        counted(clip, "t5xxl", PROMPT),
    )
    tokenizer = sd3_tokenizer()
    every = tokenizer.tokenize_with_weights(PROMPT)
    whole = fake_clip(tokenizer, l=768, g=1280, t5xxl=4096)
    found = prompts.chunks(whole, every, (1, 154, 4096))
    count, t5 = counted(whole, "l", PROMPT), counted(whole, "t5xxl", PROMPT)
    assert [(chunk.encoder, chunk.rows, chunk.channels, chunk.real) for chunk in found] == [
        ("l", slice(0, 77), slice(0, 768), count),
        ("g", slice(0, 77), slice(768, 2048), count),
        ("t5xxl", slice(77, 154), slice(0, 4096), t5),
    ]
    without = prompts.chunks(fake_clip(tokenizer, g=1280), every, (1, 77, 4096))
    assert [(chunk.encoder, chunk.channels) for chunk in without] == [("g", slice(768, 2048))]
    alone = prompts.chunks(fake_clip(tokenizer, t5xxl=4096), every, (1, 77, 4096))
    assert [(chunk.encoder, chunk.rows) for chunk in alone] == [("t5xxl", slice(0, 77))]


def test_the_refiner_has_clip_g_in_all_its_channels(app, clips):
    """Its tokenizer is SDXL's, which makes CLIP-L's tokens, too."""
    prompts, tokenizer = app.module("nodes.host.text_encoding"), clips["sdxl"].tokenizer
    tokens = tokenizer.tokenize_with_weights(PROMPT)
    (only,) = prompts.chunks(fake_clip(tokenizer, g=1280), tokens, (1, 77, 1280))
    assert (only.encoder, only.rows, only.channels) == ("g", slice(0, 77), slice(0, 1280))


def sd3_tokenizer():
    from comfy.text_encoders.sd3_clip import SD3Tokenizer

    return SD3Tokenizer()


def fake_clip(tokenizer, **widths):
    """As much of an SD3 CLIP as the layout asks about: which encoders are loaded, and how wide they
    are.
    """
    from types import SimpleNamespace

    def encoder(width):
        embeddings = torch.nn.Embedding(1, width)
        return SimpleNamespace(transformer=SimpleNamespace(get_input_embeddings=lambda: embeddings))

    names = {"l": "clip_l", "g": "clip_g", "t5xxl": "t5xxl"}
    loaded = {names[key]: encoder(width) for key, width in widths.items()}
    model = SimpleNamespace(**{**dict.fromkeys(names.values()), **loaded})
    return SimpleNamespace(tokenizer=tokenizer, cond_stage_model=model)


def test_noise_seeds_and_strength(clips, padded):
    noisy = {"padding": "noisy_copies", "strength": 0.1}
    one, again, other = (padded("sdxl", **noisy, seed=seed)[0][0][0] for seed in (3, 3, 4))
    assert torch.equal(one, again) and not torch.equal(one, other)
    copies = padded("sdxl")[0][0][0]
    assert torch.equal(padded("sdxl", padding="noisy_copies", strength=0.0)[0][0][0], copies)
    count = counted(clips["sdxl"], "l", PROMPT)
    assert torch.equal(one[:, :count], copies[:, :count])
    assert not (one[:, count:] == copies[:, count:]).any()


def test_masks_are_opened(app):
    prompts = app.module("nodes.host.text_encoding")
    entry = [
        torch.zeros(1, 4, 2),
        {"attention_mask": torch.tensor([[1, 1, 0, 0]]), "pooled_output": None},
    ]
    assert prompts.unmasked(entry, entry[0])[1]["attention_mask"].tolist() == [[1, 1, 1, 1]]
    assert entry[1]["attention_mask"].tolist() == [[1, 1, 0, 0]]


def test_an_empty_prompt_on_request(clips, padded):
    ours, report = padded("sd15", "", pad_empty_prompt=True)
    assert "2 tokens of 77" in report
    assert torch.equal(ours[0][0][:, 2::2], ours[0][0][:, :1].expand(-1, 38, -1))


def test_whole_copies_leave_cross_attention_alone(app, clips, padded):
    """75 of 77 would be uneven; 7 tokens go 11 times into 77: a real layer of SD1.5's U-Net sees no
    difference.
    """
    text = "one two three four five"
    assert counted(clips["sd15"], "l", text) == 7
    network = reduced.checkpoint("sd15")[0].model.diffusion_model
    attention = next(module for name, module in network.named_modules() if name.endswith("attn2"))
    x = torch.randn(1, 16, attention.to_q.in_features, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        full = attention(x, context=padded("sd15", text)[0][0][0])
        alone = attention(x, context=stock(app, clips["sd15"], text)[0][0][:, :7])
        padding = attention(x, context=stock(app, clips["sd15"], text)[0][0])
    assert torch.allclose(full, alone, atol=1e-5)
    assert not torch.allclose(padding, alone, atol=1e-3)


def test_other_fillings_on_a_real_cross_attention_layer(clips, padded):
    """Uneven copies weigh by the logarithm of their count, zeros only shrink what is attended."""
    text = "one two three four five six seven"
    count = counted(clips["sd15"], "l", text)
    assert count == 9
    network = reduced.checkpoint("sd15")[0].model.diffusion_model
    layer = next(module for name, module in network.named_modules() if name.endswith("attn2"))
    x = torch.randn(1, 16, layer.to_q.in_features, generator=torch.Generator().manual_seed(0))

    def heads(values):
        return values.unflatten(-1, (layer.heads, -1)).transpose(1, 2)

    with torch.inference_mode():
        copies, zeros = (padded("sd15", text, padding=how)[0][0][0] for how in ("copies", "zeros"))
        query, key, value = (
            heads(layer.to_q(x)),
            heads(layer.to_k(copies[:, :9])),
            heads(layer.to_v(copies[:, :9])),
        )
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5

        def out(weights):
            return layer.to_out((weights @ value).transpose(1, 2).flatten(2))

        weighed = out((scores + torch.bincount(torch.arange(77) % 9).log()).softmax(-1))
        assert torch.allclose(layer(x, context=copies), weighed, atol=1e-5)
        assert not torch.allclose(weighed, out(scores.softmax(-1)), atol=1e-5)
        kept = scores.exp() / (scores.exp().sum(-1, keepdim=True) + 77 - 9)
        assert torch.allclose(layer(x, context=zeros), out(kept), atol=1e-5)


def test_sd2_s_encoder_pads_with_nought(app):
    """SD2's tokenizer: one encoder "h", whose padding 0 is the token of "!" as well."""
    from types import SimpleNamespace

    from comfy.text_encoders.sd2_clip import SD2Tokenizer

    prompts, tokenizer = app.module("nodes.host.text_encoding"), SD2Tokenizer()
    encoder = SimpleNamespace(
        transformer=SimpleNamespace(get_input_embeddings=lambda: torch.nn.Embedding(1, 1024))
    )
    clip = SimpleNamespace(tokenizer=tokenizer, cond_stage_model=SimpleNamespace(clip_h=encoder))
    tokens = tokenizer.tokenize_with_weights("a red house !")
    (only,) = prompts.chunks(clip, tokens, (1, 77, 1024))
    assert (only.rows, only.channels, only.real) == (slice(0, 77), slice(0, 1024), 6)


@pytest.mark.parametrize(
    ("tokens", "shape", "sentence"),
    [
        ({"a": [[]], "b": [[]]}, (1, 1, 1), "of a, b is not known"),
        ({"l": [[(49406, 1.0), (49407, 1.0)]]}, (1, 9, 1), "makes 9 slots of 2 tokens"),
    ],
)
def test_other_text_models_are_refused(app, clips, tokens, shape, sentence):
    with pytest.raises(ValueError, match=sentence):
        app.module("nodes.host.text_encoding").chunks(clips["sd15"], tokens, shape)


def test_without_a_clip(padded, app):
    with pytest.raises(ValueError, match="clip is None: connect"):
        app.run("GBX_NoisyReplicatePadding", clip=None, text="x", **SETTINGS)


def test_noise_has_the_strength_in_deviations_of_each_channel(clips, padded):
    """Over the prompt: noise on the copies is independent, and none is on the prompt."""
    exact = padded("sd15", PROMPT)[0][0][0][0]
    count = counted(clips["sd15"], "l", PROMPT)
    given = {"padding": "noisy_copies", "strength": 0.15, "scale_by_copies": False}
    noised = padded("sd15", PROMPT, **given)[0][0][0][0]
    assert torch.equal(noised[:count], exact[:count])
    scaled = (noised - exact)[count:] / exact[:count].std(dim=0, correction=0)
    assert float(scaled.square().mean().sqrt()) == pytest.approx(0.15, rel=0.05)
