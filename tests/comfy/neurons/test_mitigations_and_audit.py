"""The mitigation nodes and the audit inside a real ComfyUI."""

import csv
import io
from types import SimpleNamespace

import pytest
import torch
from tapping import hooks_left

PROMPT = "portrait of zorvex quill"


class World:
    def __init__(self, app):
        self.app = app
        self.model, self.clip, self.vae = app.run("GBX_LoadDemoModel", weights="avatars-v2")

    def encode(self, text):
        return self.app.run("CLIPTextEncode", clip=self.clip, text=text)[0]

    def sample(self, model=None, positive=None, cfg=3.0):
        given = {
            "seed": 7,
            "steps": 1,
            "cfg": cfg,
            "sampler_name": "euler",
            "scheduler": "normal",
            "denoise": 1.0,
        }
        return self.app.run(
            "KSampler",
            model=model or self.model,
            positive=positive or self.encode(PROMPT),
            negative=self.encode(""),
            latent_image={"samples": torch.zeros(1, 24, 8, 8)},
            **given,
        )[0]["samples"]

    def scaled(self, scale=1.25, mask_padding=True, prompt=PROMPT):
        return self.app.run(
            "GBX_AttentionScaling",
            model=self.model,
            clip=self.clip,
            prompt=prompt,
            scale=scale,
            mask_padding=mask_padding,
        )[0]

    def adjust(self, **changes):
        given = {
            "target_norm": 0.0,
            "steps": 2,
            "learning_rate": 0.05,
            "noise_samples": 2,
            "seed": 1,
            "width": 64,
            "height": 64,
        }
        return self.app.run(
            "GBX_EmbeddingAdjustment",
            model=self.model,
            positive=self.encode(PROMPT),
            negative=self.encode(""),
            **(given | changes),
        )


@pytest.fixture(scope="module")
def world(app):
    return World(app)


def call_of(network):
    """A call of the network with one row outside of a run, as far as scaling reads it."""
    return SimpleNamespace(network=network, require=lambda rows: None, parts=(), rows=1)


def test_attention_scaling_hides_the_padding_and_scales_the_first_logit(world):
    """By the definition: softmax over words and end alone, with the first logit times the scale."""
    path = "output_blocks.4.1.transformer_blocks.0.attn2"
    module = world.model.model.diffusion_model.get_submodule(path)
    generator = torch.Generator().manual_seed(0)
    context = torch.randn(1, 77, 128, generator=generator)
    x = torch.randn(1, 16, module.to_q.in_features, generator=generator)
    real = next(i for i, (t, _) in enumerate(world.clip.tokenize(PROMPT)["l"][0]) if t == 49407) + 1
    pack = world.app.module("nodes.neurons.attention_scaling_comfy")
    hidden = torch.arange(77) >= real
    with torch.inference_mode():
        with pack._changed(
            call_of(world.model.model.diffusion_model),
            [path],
            pack.Scaling(first_scale=1.25, hidden=hidden),
        ):
            found = module(x, context=context)
        q, k, v = (
            layer(value)
            for layer, value in ((module.to_q, x), (module.to_k, context), (module.to_v, context))
        )
        q, k, v = (
            part.view(1, part.shape[1], module.heads, -1).transpose(1, 2) for part in (q, k, v)
        )
        logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        logits[..., 0] *= 1.25
        weights = logits[..., :real].softmax(-1)
        expected = module.to_out((weights @ v[..., :real, :]).transpose(1, 2).flatten(2))
    assert (
        found - expected
    ).abs().max() < 1e-5 * expected.abs().max()  # another order of float32 sums
    assert hooks_left(world.model) == 0


def test_attention_scaling_beside_a_longer_negative_prompt(world):
    """ComfyUI then repeats the positive prompt; a repeated prompt is attended to as the prompt
    itself.
    """
    path = "output_blocks.4.1.transformer_blocks.0.attn2"
    network = world.model.model.diffusion_model
    module, hidden = network.get_submodule(path), torch.arange(77) >= 6
    context, x = torch.randn(1, 77, 128), torch.randn(1, 16, module.to_q.in_features)
    pack = world.app.module("nodes.neurons.attention_scaling_comfy")
    with (
        torch.inference_mode(),
        pack._changed(call_of(network), [path], pack.Scaling(first_scale=1.25, hidden=hidden)),
    ):
        once, twice = module(x, context=context), module(x, context=context.repeat(1, 2, 1))
    assert torch.allclose(once, twice, atol=1e-5)


def test_attention_scaling_of_nothing_is_stock(world):
    plain = world.sample()
    assert torch.equal(world.sample(world.scaled(scale=1.0, mask_padding=False)), plain)
    assert not torch.equal(world.sample(world.scaled()), plain)
    assert hooks_left(world.model) == 0


def test_attention_scaling_leaves_the_negative_prompt(world):
    """With the empty prompt as positive too, CFG's difference is what the scaling did."""
    empty = world.encode("")
    assert not torch.equal(world.sample(world.scaled(prompt=""), empty), world.sample(None, empty))


def test_embedding_adjustment_lowers_the_norm_and_keeps_the_first_token(world):
    adjusted, report = world.adjust()
    norms = [float(value) for value in report.split("Text norm ")[1].split(" after")[0].split(", ")]
    assert len(norms) == 3 and norms[-1] < norms[0]
    before, after = world.encode(PROMPT)[0][0], adjusted[0][0]
    assert torch.equal(before[:, 0], after[:, 0]) and not torch.equal(before[:, 1:], after[:, 1:])
    assert "not reached" in report
    world.sample(None, adjusted)


def test_embedding_adjustment_stops_at_its_target(world):
    adjusted, report = world.adjust(target_norm=1000.0)
    assert torch.equal(adjusted[0][0], world.encode(PROMPT)[0][0])
    assert "after 0 step(s)" in report


def test_the_norm_to_lower_is_that_of_memorization_score(world):
    """Also where the schedule ends in pure noise, at which no text changes the noise."""
    outputs = world.app.run(
        "GBX_MemorizationScore",
        model=world.model,
        clip=world.clip,
        prompts=PROMPT,
        prompts_file="",
        threshold=0.0,
        text_norm=True,
        filename_prefix="",
        noise_samples=2,
        seed=1,
        timestep="official_961",
        width=64,
        height=64,
    )
    (row,) = csv.DictReader(
        io.StringIO(next(text for text in outputs if str(text).startswith("prompt,score")))
    )
    norm, report = float(row["text_norm"]), world.adjust(target_norm=1000.0)[1]
    assert float(report.split()[2]) == pytest.approx(norm, rel=0.01) and norm > 0.1


def test_random_tokens_are_inserted_by_seed(world):
    def run(**changes):
        given = {"clip": world.clip, "prompt": PROMPT, "count": 4, "seed": 3, "words": ""} | changes
        return world.app.run("GBX_RandomTokens", **given)

    conditioning, text = run()
    assert len(text.split()) == len(PROMPT.split()) + 4
    assert run()[1] == text and run(seed=4)[1] != text
    assert run(count=0)[1] == PROMPT
    assert set(run(words="cat dog")[1].split()) - set(PROMPT.split()) <= {"cat", "dog"}
    assert torch.equal(conditioning[0][0], world.encode(text)[0][0])


def test_the_audit_runs_through_a_mask(world):
    """On a masked model, through whose mask the gradient must run."""
    pack = world.app.module("nodes.neurons.mask")
    mask = pack.NeuronMask({"output_blocks.5.1.transformer_blocks.0.attn2.to_v": {1: 0.0}})
    masked = world.app.run(
        "GBX_NemoNeuronMask",
        model=world.model,
        mask=mask,
        strength=1.0,
        start_percent=0.0,
        end_percent=1.0,
        apply_to="positive",
    )[0]
    targets = world.app.run("GBX_DemoPicture", image_index=0, count=2, part="face")[0][:, ::2, ::2]
    images, before, after, figure, report = world.app.run(
        "GBX_MemorizationAudit",
        model=masked,
        vae=world.vae,
        positive=world.encode(PROMPT),
        negative=world.encode(""),
        image=targets[:1],
        control_image=targets[1:],
        steps=2,
        learning_rate=0.1,
        noise_samples=2,
        batch_size=1,
        sampling_steps=1,
        cfg=3.0,
        seed=1,
    )
    assert images.shape == (3, 64, 64, 3) and figure.shape[0] == 1
    assert -1 <= before <= 1 and -1 <= after <= 1
    assert "control: median similarity" in report and "does not remove" in report
    assert hooks_left(world.model) == 0


def unlearned(world, **changes):
    """The outputs of a very short training at a quarter of the model's size."""
    faces = world.app.run("GBX_DemoPicture", image_index=0, count=3, part="face")[0][:, ::2, ::2]
    given = {
        "model": world.model,
        "vae": world.vae,
        "clip": world.clip,
        "positive": world.encode(PROMPT),
        "image": faces[:1],
        "surrogates": faces[1:],
        "prompts": "portrait, bald\nportrait, brown bob",
        "steps": 3,
        "learning_rate": 0.01,
        "batch_size": 1,
        "keep": 1.0,
        "attack_steps": 1,
        "noise_samples": 1,
        "restart": 2,
        "rank": 2,
        "layers": "attn2",
        "sampling_steps": 1,
        "cfg": 3.0,
        "seed": 1,
        "gradient_checkpointing": False,
        "precision": "fp32",
    }
    return world.app.run("GBX_AdversarialUnlearning", **(given | changes))


def test_unlearning_gives_a_lora_and_leaves_the_model(world):
    plain = world.sample()
    model, lora, figure, report = unlearned(world)
    assert lora and all("attn2" in name for name in lora)
    assert not torch.equal(world.sample(model), plain) and torch.equal(world.sample(), plain)
    assert hooks_left(world.model) == 0 and figure.shape[0] == 1
    assert (
        "9 rows of the network with gradients, 3 without" in report
        and "Memorization Audit" in report
    )
    loaded = {strength: world.app.run("LoraModelLoader", model=world.model, lora=lora,
    strength_model=strength)[0]
              for strength in (0.0, 1.0)}  # fmt: skip
    assert torch.equal(world.sample(loaded[0.0]), plain)
    assert torch.equal(world.sample(loaded[1.0]), world.sample(model))


def test_the_defaults_of_unlearning_are_those_of_its_settings(world):
    schema = world.app.module(
        "nodes.neurons.nodes_mitigations"
    ).AdversarialUnlearning.define_schema()
    given = {one.id: getattr(one, "default", None) for one in schema.inputs}
    settings = world.app.module("nodes.neurons.unlearning").UnlearningSettings()
    for name in ("steps", "learning_rate", "batch_size", "keep", "attack_steps", "restart"):
        assert given[name] == getattr(settings, name)
    assert given["noise_samples"] == settings.attack.noise_samples and given["layers"] == "attn2"


def test_unlearning_is_repeated_by_its_seed_and_by_checkpointing(world):
    first, again, other = (unlearned(world, seed=seed)[1] for seed in (1, 1, 2))
    again_computed = unlearned(world, gradient_checkpointing=True)[1]
    assert all(torch.equal(first[name], again[name]) for name in first)
    gaps = torch.cat([(first[name] - again_computed[name]).abs().flatten() for name in first])
    # Adam divides a gradient by its size: where it is little but rounding, an entry moves by part
    # of a step (.01).
    assert float(gaps.mean()) < 1e-7 and float(gaps.max()) < 1e-4
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_the_ordinary_target_is_the_model_without_the_lora(world):
    """In the first step the LoRA is nothing yet, so ordinary prompts differ by nothing; later they
    do.
    """
    session = world.app.module("nodes.neurons.embedding_session_comfy")
    seen = []

    def work(s):
        noise = torch.ones(1, 24, 8, 8)
        timestep = torch.tensor([500])
        x = s.noised(s.latents[1], noise, timestep)
        with s.untouched():
            seen.append(s.predicted(x, timestep, rows=[1]))
        seen.append(s.predicted(x, timestep, rows=[1]))
        assert (
            s.weight(timestep).shape == (1, 1, 1, 1) and float(s.weight(timestep)) > 1
        )  # the demo model predicts v

    latent = torch.zeros(1, 24, 8, 8)
    name = "diffusion_model.out.2.weight"
    for change in (lambda weight: weight, lambda weight: 1.5 * weight):
        session.run(
            world.model,
            latent,
            world.encode(PROMPT),
            work,
            more=[(latent, world.encode("portrait, bald"))],
            functions={name: change},
        )
    untouched, same, again, changed = (one.detach() for one in seen)
    assert (
        torch.equal(untouched, same)
        and torch.equal(untouched, again)
        and not torch.equal(untouched, changed)
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prompts": " \n"}, "prompts needs 1 or more prompts and has 0"),
        ({"surrogates": torch.zeros(1, 128, 128, 3)}, "different sizes: scale the surrogates"),
        ({"layers": "attn9"}, "No layer of this MODEL has a name with one of attn9"),
    ],
)
def test_unlearning_says_what_is_missing(world, change, sentence):
    with pytest.raises(ValueError, match=sentence):
        unlearned(world, **change)
