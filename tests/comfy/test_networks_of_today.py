"""Training, weights, noise and positions on networks with parts, layers and names of their own."""

import math

import pytest
import torch

from studies.models import matrix, networks, worker
from studies.models.subject import PROMPT, Subject


def configured(name: str):
    configuration = networks.configurations()[name]
    if not networks.is_loaded_by_host(configuration):
        pytest.skip("This ComfyUI has no such network.")
    return configuration


@pytest.fixture(scope="module")
def model(app):
    made = {}

    def make(name: str):
        if name not in made:
            with torch.inference_mode():
                made[name] = networks.model(configured(name))
        return made[name]

    return make


def video_with_sound(seed: int = 0, count: int = 1):
    from comfy.nested_tensor import NestedTensor

    generator = torch.Generator().manual_seed(seed)
    video = torch.randn(count, 16, 2, 8, 8, generator=generator)
    return NestedTensor([video, torch.randn(count, 8, 8, 4, generator=generator)])


def test_the_noise_of_a_video_follows_a_guide_and_that_of_its_sound_stays(app):
    latent = {"samples": video_with_sound()}

    def noise(strength: float):
        made = app.run(
            "GBX_CompositionNoise",
            latent=latent,
            guide={"samples": video_with_sound(1)},
            seed=5,
            strength=strength,
            cutoff=2.0,
            low_cutoff=0.0,
        )[0]
        return made.generate_noise(latent).unbind()

    stock = app.module("nodes.noise.noise_objects_comfy").stock_noise(latent, 5).unbind()
    assert all(torch.equal(one, other) for one, other in zip(noise(0.0), stock, strict=True))
    changed = noise(0.8)
    assert not torch.equal(changed[0], stock[0]) and torch.equal(changed[1], stock[1])
    assert math.isclose(float(changed[0].norm()), float(stock[0].norm()), rel_tol=1e-5)


def test_training_data_keeps_the_sound_of_each_video(app):
    data = app.module("nodes.common.training.training_data")
    samples = video_with_sound(count=2)
    plain = data.collect_training_data(
        [{"samples": samples.unbind()[0]}], [[["text", {}]]], 0, samples=[], negative=[]
    )
    both = data.collect_training_data(
        [{"samples": samples}], [[["text", {}]]], 0, samples=[], negative=[]
    )
    assert plain.sounds == [] and len(both.sounds) == 2
    assert all(map(torch.equal, plain.latents, both.latents))
    assert torch.equal(torch.cat([sound[0] for sound in both.sounds]), samples.unbind()[1])
    with pytest.raises(ValueError, match="of one kind"):
        data.collect_training_data(
            [{"samples": samples}, {"samples": samples.unbind()[0]}],
            [[["text", {}]]],
            0,
            samples=[],
            negative=[],
        )


@pytest.mark.parametrize("name", ["LTXAV", "MiniMaxH3"])
def test_a_video_is_trained_and_its_sound_is_evaluated_with_it(app, model, name):
    """The answer is the video of what ComfyUI's sampler gives for both parts; its gradient is that
    of finite differences.
    """
    patcher = model(name)
    trainer = app.module("nodes.host.training.trainer")
    configuration = configured(name)
    positive = networks.conditioning(configuration)
    video, sound = networks.latent(configuration, patcher)["samples"].unbind()
    linear = [
        path
        for path, layer in trainer.trainable_layers(patcher).items()
        if isinstance(layer, torch.nn.Linear) and ".1." in path
    ]
    key = f"{linear[0]}.weight"
    shape = patcher.model.state_dict()[key].shape
    change = torch.randn(shape, generator=torch.Generator().manual_seed(5)) / shape[1] ** 0.5
    factor = torch.tensor(0.5, requires_grad=True)
    noise = torch.randn(video.shape, generator=torch.Generator().manual_seed(4))
    answers = []

    def work(session):
        assert session.latents[0].shape == video.shape
        sigmas = torch.tensor([0.6])
        noised = session.noised(session.latents[0], noise, sigmas)

        def loss(value: float) -> torch.Tensor:
            factor.data.fill_(value)
            answer = session.denoised(noised, sigmas, [0])
            answers.append(answer.detach())
            return answer.square().mean()

        loss(0.5).backward()
        with torch.no_grad():
            return float((loss(0.6) - loss(0.4)) / 0.2)

    with torch.inference_mode():
        expected = trainer.run(
            patcher,
            {key: lambda weight: weight + factor * change},
            [video],
            [positive],
            work,
            dtype=torch.float32,
            sounds=[[sound]],
        )
    assert answers[0].shape == video.shape
    assert expected != 0 and math.isclose(float(factor.grad), expected, rel_tol=0.05)
    again = len(answers)
    with torch.inference_mode():
        trainer.run(
            patcher,
            {key: lambda weight: weight + factor * change},
            [video],
            [positive],
            work,
            dtype=torch.float32,
            sounds=[[sound * 3]],
        )
    assert not torch.equal(answers[0], answers[again]), "the sound is not evaluated"


@torch.inference_mode()
def test_a_video_alone_is_trained_beside_silence(app, model):
    """Two videos at two noise levels of a network that takes one at a time; the silence is that of
    ComfyUI's own sampler, and latents of other channels are refused.
    """
    import comfy.sample

    patcher = model("MiniMaxH3")
    trainer = app.module("nodes.host.training.trainer")
    configuration = configured("MiniMaxH3")
    positive = networks.conditioning(configuration)
    videos = [
        networks.latent(configuration, patcher, seed=seed)["samples"].unbind()[0] for seed in (1, 2)
    ]
    empty = comfy.sample.fix_empty_latent_channels(patcher, torch.zeros_like(videos[0]))

    def answers(**sounds):
        def work(session):
            sigmas = torch.tensor([0.6, 0.9])
            noised = session.noised(
                torch.cat(session.latents), torch.ones_like(torch.cat(videos)), sigmas
            )
            with torch.no_grad():
                return session.denoised(noised, sigmas, [0, 1])

        return trainer.run(
            patcher, {}, videos, [positive, positive], work, dtype=torch.float32, **sounds
        )

    alone = answers()
    silent = [[part.clone() for part in empty.unbind()[1:]] for _ in videos]
    assert alone.shape == torch.cat(videos).shape and torch.isfinite(alone).all()
    assert torch.equal(alone, answers(sounds=silent))
    assert not torch.equal(alone, answers(sounds=[[part + 1 for part in silent[0]]] * 2))
    with pytest.raises(ValueError, match="takes 24 channels"):
        trainer.run(patcher, {}, [videos[0][:, :20]], [positive], None, dtype=torch.float32)


@pytest.mark.parametrize("name", ["LTXAV", "MiniMaxH3"])
@pytest.mark.parametrize("images", ["own", "in the latent", "pairs"])
@torch.inference_mode()
def test_a_slider_of_a_video_with_sound_is_kept(app, tmp_path, monkeypatch, name, images):
    """Queued again, its checkpoint gives the same slider and the videos that were generated; a
    checkpoint of another sound is refused.
    """
    subject = Subject(app, tmp_path, configured(name))
    pair = torch.rand(2, subject.side, subject.side, 3, generator=torch.Generator().manual_seed(2))
    inputs = {
        "latent": subject.latent if images == "in the latent" else subject.empty,
        "increase": "old",
        "decrease": "young",
        "base_prompt": "a person",
        "images": 2,
        "sampling_steps": 2,
        "steps": 2,
        "rank": 2,
        "batch_size": 2,
        "cfg": 1.0,
        "learning_rate": 0.01,
        "precision": "fp32",
        "preview_interval": 0,
        "checkpoint_name": f"slider_{name}_{images}",
    }
    if images == "pairs":
        inputs |= {"before": pair[:1], "after": pair[1:]}

    def slider(**changed):
        model, clip, vae = subject.model, subject.text_encoder, subject.vae
        made = subject.run("TrainSlider", model=model, clip=clip, vae=vae, **{**inputs, **changed})
        return made[1][0]

    first = slider()
    ups = [tensor for key, tensor in first.items() if "up" in key or "lora_B" in key]
    assert ups and any(bool(up.any()) for up in ups)
    monkeypatch.setattr(app.module("nodes.weights.slider_training_comfy"), "sample_each", None)
    again = slider()
    assert all(torch.equal(first[key], again[key]) for key in first)
    if images == "pairs":
        return
    video, sound = inputs["latent"]["samples"].unbind()
    longer = type(inputs["latent"]["samples"])([video, torch.cat([sound, sound], dim=-1)])
    with pytest.raises(ValueError, match=r"another .*sound"):
        slider(latent={"samples": longer})


def layer_of(targets, patcher, ending: str) -> str:
    """The canonical name of a layer whose weight's key ends so."""
    found = targets.all_targets(patcher.model)
    return next(name for name, target in found.items() if target.key.endswith(ending))


def test_a_layer_that_is_no_operation_of_comfyuis_is_left_out_by_name(app, model):
    """HiDream's gates are plain parameters."""
    patcher = model("HiDream")
    targets = app.module("nodes.host.lora_targets")
    gate = layer_of(targets, patcher, "ff_i.gate.weight")
    plain = layer_of(targets, patcher, "attn1.to_q.weight")
    found = targets.all_targets(patcher.model)
    sizes = {name: tuple(found[name].shape) for name in (gate, plain)}
    assert set(targets.fit(patcher, sizes, {}).targets) == {gate, plain}
    fit = targets.fit(patcher, sizes, {}, in_use=True)
    assert set(fit.targets) == {plain} and set(fit.missing) == {gate}
    assert f"{gate} (its weight cannot change while it is used)" in fit.report("model")


def test_names_that_cut_grouped_keys_wrongly_are_no_layers(app, model):
    """ComfyUI's table cuts Lumina 2's queries, keys and values in thirds; the keys are half as
    wide.
    """
    patcher = model("Lumina2")
    targets = app.module("nodes.host.lora_targets")
    weights = patcher.model.state_dict()
    for target in targets.all_targets(patcher.model).values():
        if target.part is not None:
            dimension, first, length = target.part
            assert first + length <= weights[target.key].shape[dimension]
    queries = "layers.0.attention.to_q"
    fit = targets.fit(patcher, {queries: (96, 96), "layers.0.attention.to_v": (48, 96)}, {})
    assert set(fit.targets) == {queries}
    assert fit.missing == {"layers.0.attention.to_v": "no such layer"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ZImage", ["attention.qkv"]),
        ("QwenImage", ["to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj"]),
        ("WAN21_T2V", ["self_attn.q", "self_attn.k", "self_attn.v"]),
        ("Krea2", ["attn.wq", "attn.wk", "attn.wv"]),
        ("Flux", ["img_attn.qkv", "txt_attn.qkv", "linear1"]),
    ],
)
def test_the_layers_before_an_attention_are_found(app, model, name, expected):
    patcher = model(name)
    configuration = configured(name)
    projections = app.module("nodes.host.attention.projections")
    other = []

    def stock(attend, *args, **options):
        other.append(1)
        return attend(*args, **options)

    clone = patcher.clone()
    clone.model_options["transformer_options"] = {"optimized_attention_override": stock}
    latent = networks.latent(configuration, patcher)
    found = projections.attention_projections(clone, networks.conditioning(configuration), latent)
    assert other, "the override of another node is called"
    for ending in expected:
        assert any(layer.endswith(ending) for layer in found), (ending, found)
    assert not [
        layer for layer in found if any(word in layer for word in ("mlp.", "ffn", "feed_forward"))
    ], found
    assert len(found) == len(set(found))
    modules = patcher.model.diffusion_model.modules()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in modules)
    assert clone.model_options["transformer_options"]["optimized_attention_override"] is stock


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("ZImage", "Z-Image"),
        ("QwenImage", "Qwen-Image"),
        ("Flux2Klein", "FLUX.2"),
        ("WAN21_I2V", "Wan"),
        ("SD3", "SD3"),
        ("SD15", "SD1.x"),
        ("HunyuanVideo15", "HunyuanVideo15"),
    ],
)
def test_a_base_is_named_by_the_models_class(app, model, name, base):
    assert app.module("nodes.host.lora_targets").base_name(model(name)) == base


@pytest.mark.parametrize("name", ["Flux2Klein", "HiDream", "Omnigen2", "QwenImage"])
def test_larger_images_have_other_positions_and_the_trained_size_its_own(app, tmp_path, name):
    with torch.inference_mode():
        subject = Subject(app, tmp_path, configured(name))
        cell = matrix.cells(["PositionalResample"])["PositionalResample"]
        outcome = worker.outcome(subject, cell)
        assert outcome[0] == "works", outcome


@pytest.mark.parametrize("name", ["LTXAV", "MiniMaxH3"])
@pytest.mark.parametrize(
    "cell",
    [
        "LayerActivationTap",
        "ActivationSteering",
        "PromptSteeringDirection",
        "PatchingMap",
        "ScoreActivations (quality)",
        "TrainSparseAutoencoder, SparseFeatureSteering",
        "EditByWords",
    ],
)
def test_activations_of_a_video_with_sound(app, tmp_path, name, cell):
    if name == "MiniMaxH3" and "quality" in cell:
        pytest.skip("ComfyUI's MiniMax H3 takes one video at a time, and quality needs a batch.")
    with torch.inference_mode():
        subject = Subject(app, tmp_path, configured(name))
        outcome = worker.outcome(subject, matrix.cells([cell])[cell])
        assert outcome[0] == "works", outcome


@pytest.mark.parametrize("name", ["LTXAV", "MiniMaxH3"])
@pytest.mark.parametrize(
    "cell",
    [
        "NeuronStatistics (feed_forward)",
        "NemoLocalize (value)",
        "NemoLocalize (attribution)",
        "OptimizeNeuronMask (feed_forward)",
        "ConceptNeurons (value)",
        "MemorizationScore (bright ending)",
        "CompositionNoise",
        "FlowEdit",
        "TrainSlider",
    ],
)
def test_neurons_weights_and_noise_of_a_video_with_sound(app, tmp_path, name, cell):
    with torch.inference_mode():
        subject = Subject(app, tmp_path, configured(name))
        outcome = worker.outcome(subject, matrix.cells([cell])[cell])
        assert outcome[0] == "works", outcome


@torch.inference_mode()
def test_a_slider_reaches_the_layers_that_read_a_text_in_one_row(app, tmp_path):
    """PixArt lays the texts of a batch behind each other. Strengths that differ between rows act as
    the LoRA of each strength does.
    """
    subject = Subject(app, tmp_path, configured("PixArtSigma"))
    half = app.module("nodes.weights.slider_training_comfy")
    learned = app.module("nodes.weights.learned_space_comfy")
    training = app.module("nodes.weights.slider_training")
    trainer = app.module("nodes.host.training.trainer")
    layers = half.trained_layers(subject.model, "kv_linear")
    layout, _ = learned.layout_of(subject.model, layers, 2)
    factors = training.SliderFactors(layout, 1, 3)
    generator = torch.Generator().manual_seed(5)
    factors.flat.data = 0.3 * torch.randn(factors.flat.shape, generator=generator)
    noise = torch.randn(2, *subject.latent["samples"].shape[1:], generator=generator)
    strengths = (0.5, -1.0)

    def work(session):
        sigmas = torch.full((1,), 0.7)
        answers = []
        with torch.no_grad():
            together = session.rows_at_once(2, noise.shape[1:])
            for first in range(0, 2, together):
                some = slice(first, first + together)
                factors.select([0] * len(noise[some]), strengths[some])
                rows = [0] * len(noise[some])
                answers.append(session.denoised(noise[some], sigmas.expand(len(rows)), rows))
            factors.off()
            stock = session.denoised(noise[:1], sigmas, [0])
        return torch.cat(answers), stock

    def answered(patcher):
        return trainer.run(
            patcher,
            {},
            [subject.latent["samples"]],
            [subject.positive],
            work,
            dtype=torch.float32,
        )

    with learned.changed(layers, factors):
        both, stock = answered(subject.model)
    lora = half._lora(subject.model, factors, 0)
    for row, strength in enumerate(strengths):
        loaded = comfy_lora(subject.model, lora, strength)
        alone = trainer.run(
            loaded,
            {},
            [subject.latent["samples"]],
            [subject.positive],
            lambda session, row=row: session.denoised(noise[[row]], torch.full((1,), 0.7), [0]),
            dtype=torch.float32,
        )
        torch.testing.assert_close(both[[row]], alone.detach(), rtol=1e-4, atol=1e-4)
    assert float((both[:1] - stock).abs().max()) > 1e-3


def comfy_lora(model, lora, strength: float):
    """A MODEL with a LoRA as Load LoRA loads it."""
    import comfy.sd

    return comfy.sd.load_lora_for_models(model, None, lora, strength, 0.0)[0]


@pytest.mark.parametrize("name", ["PixArtSigma", "HunyuanDiT", "LTXAV", "MiniMaxH3"])
def test_a_space_is_trained_on_a_network_of_another_kind(app, tmp_path, name):
    """Two that hand no attention over, a video alone, and a video beside silence."""
    with torch.inference_mode():
        subject = Subject(app, tmp_path, configured(name))
        cell = matrix.cells(["W2WTrainSpace"])["W2WTrainSpace"]
        outcome = worker.outcome(subject, cell)
        assert outcome[0] == "works", outcome


@pytest.mark.parametrize(
    "cell",
    [
        "W2WTrainSpace",
        "TokenHeatMap",
        "EditByWords",
        "OptimizeNeuronMask (feed_forward)",
        "MemorizationAudit",
    ],
)
def test_a_text_in_float16_whose_empty_prompt_has_no_tokens(app, tmp_path, cell):
    """Lens cuts a chat template away, and renders none around an empty prompt."""
    with torch.inference_mode():
        subject = Subject(app, tmp_path, configured("Lens"))
        assert subject.negative[0][0].shape[1] == 0
        outcome = worker.outcome(subject, matrix.cells([cell])[cell])
        assert outcome[0] == "works", outcome


@torch.inference_mode()
def test_texts_in_float16_are_trained_in_bf16(app, model):
    """Autocast joins no rows of two 16-bit types; the answers are those of the same texts in
    float32.
    """
    patcher = model("SD3")
    trainer = app.module("nodes.host.training.trainer")
    configuration = configured("SD3")
    images = [networks.latent(configuration, patcher, seed=seed)["samples"] for seed in (1, 2)]
    answers = []
    for dtype in (torch.float16, torch.float32):
        positives = [
            [
                [text.half().to(dtype), {"pooled_output": values["pooled_output"].half().to(dtype)}]
                for text, values in networks.conditioning(configuration, seed=seed)
            ]
            for seed in (1, 2)
        ]

        def work(session):
            sigmas = torch.tensor([0.6, 0.9])
            noised = session.noised(
                torch.cat(session.latents), torch.ones_like(torch.cat(images)), sigmas
            )
            with torch.no_grad():
                answers.append(session.denoised(noised, sigmas, [0, 1]))

        trainer.run(patcher, {}, images, positives, work, dtype=torch.bfloat16)
    assert torch.isfinite(answers[0]).all() and torch.equal(*answers)


@torch.inference_mode()
def test_the_first_step_of_an_image_has_a_sound_of_its_own(app, model):
    """Rows of noise are evaluated as each alone, and as ComfyUI's sampler does with that sound."""
    import comfy.sample

    patcher = model("MiniMaxH3")
    first_step = app.module("nodes.neurons.first_step_comfy")
    positive = networks.conditioning(configured("MiniMaxH3"))
    shape = first_step.latent_shape(patcher, 128, 96)
    assert shape == (24, 1, 6, 8)
    noise = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))

    def predicted(rows):
        return first_step.at_first_step(
            patcher, positive, shape, 999, lambda predict: predict(rows), rows=len(rows)
        )

    both = predicted(noise)
    assert both.shape == noise.shape and torch.isfinite(both).all()
    assert torch.equal(both, torch.cat([predicted(row) for row in noise.split(1)]))
    blank = comfy.sample.fix_empty_latent_channels(patcher, torch.zeros(1, *shape))
    sound = torch.randn(blank.unbind()[1].shape, generator=torch.Generator().manual_seed(0))
    begun = type(blank)([noise[:1], sound])
    sigmas = torch.tensor([float(patcher.get_model_object("model_sampling").sigma_max), 0.0])
    image = comfy.sample.sample_custom(
        patcher,
        begun,
        1.0,
        comfy.samplers.ksampler("euler"),
        sigmas,
        positive,
        positive,
        blank,
        disable_pbar=True,
        seed=0,
    ).unbind()[0]
    torch.testing.assert_close(noise[:1] - both[:1], image, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["WAN21_T2V", "LTXAV"])
@torch.inference_mode()
def test_seeds_of_videos_are_scouted_as_one_by_one(app, tmp_path, name):
    """The middle frame of what KSampler makes of the seed; words count in all frames of a video."""
    subject = Subject(app, tmp_path, configured(name))

    def scouted(ranking, **changed):
        return subject.run(
            "SeedScout",
            model=subject.model,
            positive=subject.positive,
            negative=subject.negative,
            vae=subject.vae,
            latent=subject.empty,
            clip=subject.text_encoder,
            prompt=PROMPT,
            words="cat",
            reference=torch.rand(1, 8, 8, 3, generator=torch.Generator().manual_seed(1)),
            count=3,
            keep=3,
            steps=2,
            cfg=1.0,
            seed=4,
            ranking=ranking,
            **changed,
        )

    for ranking in ("layout_likeness", "word_coverage"):
        seeds, images, _, report, _ = scouted(ranking, batch_size=3)
        alone = scouted(ranking, batch_size=1)
        assert seeds == alone[0] and len(images) == 3
        torch.testing.assert_close(images, alone[1], rtol=1e-4, atol=1e-4)
        sampled = subject.sampled(
            subject.model, seed=seeds[0], cfg=1.0, scheduler="normal", steps=2
        )["samples"]
        video = sampled.unbind()[0] if name == "LTXAV" else sampled
        frames = subject.vae.decode(video).reshape(-1, *images.shape[1:])
        torch.testing.assert_close(images[0], frames[len(frames) // 2], rtol=1e-4, atol=1e-4)
        assert all(f"{seed}" in report for seed in seeds)


#: The pixels that one step of the positions stands for, in each network with rotary positions of
#: its own layout.
UNITS = {
    "CosmosPredict2": 16,
    "Anima": 16,
    "HunyuanImage21": 32,
    "ErnieImage": 16,
    "JoyImage": 16,
    "LTXV": 1024,
    "LTXAV": 1024,
}


@pytest.mark.parametrize("name", UNITS)
@torch.inference_mode()
def test_rotary_positions_are_those_of_the_network(app, tmp_path, name):
    """Rows and columns of a larger, non-square image, turned in float64 at the frequencies of
    training, give stock's result; at other frequencies they do not.
    """
    rotary = app.module("nodes.conditioning.rotary_positions_comfy")
    subject = Subject(app, tmp_path, configured(name))
    if not rotary.sources(subject.model.model.diffusion_model):
        pytest.skip(f"{name} of this ComfyUI turns its positions elsewhere.")
    empty = subject.empty["samples"]
    empty = empty.unbind()[0] if empty.is_nested else empty
    wider = torch.randn(*empty.shape[:-2], 12, 20, generator=torch.Generator().manual_seed(3))
    latent = {"samples": app.module("nodes.host.latent_shapes").with_silence(wider, subject.model)}
    pixels = app.module("nodes.host.latent_shapes").pixels_a_position(subject.model)
    seen = []

    def turned(factor: float):
        def lower(frequencies, *, side, noise, unit):
            assert bool((frequencies.diff() < 0).all()) and 0 < noise <= 1
            seen.append((side, unit))
            return factor * frequencies

        return rotary.rotated(subject.model, lower)

    stock = subject.sample(subject.model, latent)
    same = subject.sample(turned(1.0), latent)
    torch.testing.assert_close(same, stock, rtol=1e-4, atol=1e-4)
    assert set(seen) == {(12 * pixels, UNITS[name]), (20 * pixels, UNITS[name])}
    other = subject.sample(turned(0.5), latent)
    assert float((other - stock).abs().max()) > 1e-3
