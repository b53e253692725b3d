"""The nodes that `run.py fuzz --calls` tries: how each is made for a prompt, and how its end is
compared.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import torch

from . import call_edits
from .call_reference import HEIGHT, WIDTH, Bench, Case, Subject, Text, coupled, relative


def _mask(case: Case, draw: random.Random, generator: torch.Generator) -> torch.Tensor | None:
    """None, or fractions in 3 x 4 fields at one of three resolutions, for each image or for all."""
    if draw.random() < 0.25:
        return None
    fields = torch.rand(draw.choice((1, case.images)), 3, 4, generator=generator)
    fields = fields.round() if draw.random() < 0.3 else fields
    fine = draw.choice((1, 4, 32))
    return fields.repeat_interleave(fine, 1).repeat_interleave(fine, 2)


def _rows(draw: random.Random) -> tuple[str, tuple[int, ...]]:
    return draw.choice((("conditional", (0,)), ("unconditional", (1,)), ("both", (0, 1))))


def _steering(bench: Bench, case: Case, draw, generator) -> Subject:
    ids = draw.sample(
        ("up-level0-repeat1-res-out", "mid-vit-block0-out", "up-level1-repeat0-vit-block0-cross-q"),
        2,
    )
    steering = bench.app.module("nodes.activations.steering")
    direction = {id_: torch.randn(bench.channels[id_], generator=generator) for id_ in ids}
    rows, sides = _rows(draw)
    given = {"direction": steering.SteeringDirection(direction, "test"), "rows": rows}
    given |= {"strength": draw.choice((0.5, 3.0)), "preserve_norm": draw.random() < 0.3}
    given |= {"start_percent": draw.choice((0.0, 0.0, 0.4)), "end_percent": 1.0}

    def model_for(model, mask, sigma):
        return bench.app.run("GBX_ActivationSteering", model=model, mask=mask, **given)[0]

    return Subject(model_for, sides, _mask(case, draw, generator))


def _sparse_features(bench: Bench, case: Case, draw, generator) -> Subject:
    id_, count = "up-level1-repeat0-vit-block0-out", 32
    channels = bench.channels[id_]
    normal = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    decoder = torch.nn.functional.normalize(normal(count, channels), dim=1)
    usual = normal(count).abs() + 1
    module = bench.app.module("nodes.activations.sparse_autoencoder")
    autoencoder = module.SparseAutoencoder(
        id_, 8, normal(count, channels), decoder, normal(channels), normal(count), usual
    )
    rows, sides = _rows(draw)
    given = {
        "autoencoder": autoencoder,
        "strengths": "3 = 4\n5 = -4",
        "mode": draw.choice(("add", "scale")),
    }
    given |= {"rows": rows, "start_percent": 0.0, "end_percent": 1.0}

    def model_for(model, mask, sigma):
        return bench.app.run("GBX_SparseFeatureSteering", model=model, mask=mask, **given)[0]

    return Subject(model_for, sides, _mask(case, draw, generator))


def _patching(bench: Bench, case: Case, draw, generator) -> Subject:
    """The recording is of another prompt at the same size, of as many images or of one."""
    ids = draw.choice(("up-level1-repeat0-res-out", "mid-vit-block0-out"))
    rows, sides = draw.choice((("conditional", (0,)), ("both", (0, 1))))
    model, recording = bench.world.record(rows=rows, ids=ids)
    other = Case(
        case.number, (Text("a yellow house"),), (Text(""),), draw.choice((1, case.images)), 3.0
    )
    latent, _ = bench.sample(other, model)
    given = {"recording": recording, "latent": {"samples": latent}, "ids": "*"}
    given |= {"patched_steps": draw.choice(("all", "last")), "strength": draw.choice((0.5, 1.0))}

    def model_for(model, mask, sigma):
        return bench.app.run("GBX_ActivationPatching", model=model, mask=mask, **given)[0]

    return Subject(model_for, sides, _mask(case, draw, generator))


def _neuron_mask(bench: Bench, case: Case, draw, generator) -> Subject:
    rows, sides = draw.choice((("positive", (0,)), ("both", (0, 1))))
    mask, given = (
        _silenced(bench, draw),
        {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0},
    )

    def model_for(model, _mask, sigma):
        return bench.app.run("GBX_NemoNeuronMask", model=model, mask=mask, apply_to=rows, **given)[
            0
        ]

    return Subject(model_for, sides)


def _neuron_mask_of_prompts(bench: Bench, case: Case, draw, generator) -> Subject:
    """The neurons of a prompt act in all positive rows while one of the positive texts is that
    prompt.
    """
    prompt = draw.choice([one.text for one in case.positive] + ["another prompt"])
    mask = _silenced(bench, draw, prompt)
    given = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0, "apply_to": "positive"}
    own = bench.encoded(prompt)[0][0]
    made = {True: "all", False: None}
    conds: list = []

    def model_for(model, _mask, sigma):
        if sigma is None:
            given_more = {"masked_prompts": "own", "clip": bench.world.clip}
            return bench.app.run(
                "GBX_NemoNeuronMask", model=model, mask=mask, **given, **given_more
            )[0]
        acts = made[any(torch.equal(text, own) for text in bench.active(conds[0][0], sigma))]
        return (
            model
            if acts is None
            else bench.app.run("GBX_NemoNeuronMask", model=model, mask=mask, **given)[0]
        )

    def check(found):
        conds[:] = [found]
        plain, _ = bench.sample(case, bench.on(case, bench.world.model))
        return bench.compare(case, Subject(model_for, (0,)), plain, found)

    return Subject(check=check)


def _silenced(bench: Bench, draw: random.Random, prompt: str = ""):
    """A neuron mask of half of the neurons of some layers."""
    module = bench.app.module("nodes.neurons.mask")
    layers = bench.app.module("nodes.neurons.neuron_layers").value_layers(bench.network)
    chosen = draw.sample(layers, 4)
    neurons = {layer.path: tuple(range(0, layer.width, 2)) for layer in chosen}
    searches = (module.SearchRecord(prompt, neurons, True),) if prompt else ()
    return module.NeuronMask(
        {path: dict.fromkeys(of, 0.0) for path, of in neurons.items()}, searches
    )


def _attention_scaling(bench: Bench, case: Case, draw, generator) -> Subject:
    given = {
        "clip": bench.world.clip,
        "prompt": draw.choice(case.positive).text,
        "scale": draw.choice((1.25, 3.0)),
    }
    given["mask_padding"] = draw.random() < 0.5

    def model_for(model, _mask, sigma):
        return bench.app.run("GBX_AttentionScaling", model=model, **given)[0]

    return Subject(model_for, (0,))


def _weight_guidance(bench: Bench, case: Case, draw, generator) -> Subject:
    """W2W Guidance, with a change of some layers in place of a point."""
    paths = draw.sample(call_edits.attention_paths(bench), 3)
    tensors = call_edits.low_rank(bench, paths, generator)
    guide = bench.app.module("nodes.weights.weight_guidance_comfy").guide
    base = draw.choice((0.0, 1.0, -0.5))
    return Subject(
        lambda model, _mask, _sigma: guide(model, base, [(1.0 - base or 0.5, tensors)]), (0,)
    )


def _layers(bench: Bench) -> list:
    return bench.app.module("nodes.neurons.neuron_layers").value_layers(bench.network)


def _recorder(bench: Bench, case: Case, draw, generator, ids: str = "") -> Subject:
    every = (
        "up-level1-repeat0-res-out, mid-vit-block0-out, attn-mean, "
        "up-level1-repeat0-vit-block0-cross-map"
    )
    ids = ids or draw.choice((every, every.split(", attn")[0]))
    recordings: list = []

    def model_for(model, _mask, sigma):
        made, recording = bench.world.record(rows="conditional", ids=ids, model=model)
        recordings[:] = [recording]
        return made

    def read(_model, latent):
        run = recordings[0].run_of(latent)
        run.require_recorded("Select other steps.")
        return {one.step: one.activations.tensors for one in run.snapshots}

    return Subject(model_for, read=read)


def _tap(bench: Bench, case: Case, draw, generator) -> Subject:
    """Layer Activation Tap, against its own of the one text that acts at that noise level, over the
    whole image.
    """
    sigma, ids = 2.0, draw.choice(("up-level1-repeat0-res-out", "mid-vit-block0-out", "attn-mean"))
    how = {
        "noise_unit": "sigma",
        "level": sigma,
        "latent": bench.world.latent(case.images, HEIGHT, WIDTH),
    }

    def check(_conds):
        behind = bench.on(case, bench.world.model)
        found = bench.world.tap(
            ids, model=behind, positive=bench.conditioning(case.positive), **how
        )
        texts = bench.active(bench.prepared(case.positive), sigma)
        if len(texts) != 1:
            return "wrong", f"Read one activation, where {len(texts)} parts act."
        couple = (
            coupled(bench.world.model, bench.region, (0,))
            if 0 in case.couple
            else bench.world.model
        )
        alone = bench.world.tap(ids, model=couple, positive=[[texts[0], {}]], **how)
        error = relative(found.tensors[ids], alone.tensors[ids])
        return ("right" if error <= 1e-4 else "wrong"), f"off by {error:.1e}"

    return Subject(check=check)


def _word_maps(bench: Bench, case: Case, draw, generator) -> Subject:
    """Seed Scout's words, averaged over steps, against the maps of that text alone in the steps in
    which it acts.
    """
    prompt = case.positive[0].text

    def check(conds):
        scout = bench.app.module("nodes.activations.seed_scout_comfy")
        heat_map = bench.app.module("nodes.activations.token_heatmap").heat_map
        maps = scout.WordMaps(bench.world.model, bench.world.clip, prompt, "")
        latent, _ = bench.sample(case, bench.on(case, maps.model))
        maps.read(latent)
        recorder = _recorder(bench, case, draw, generator, "attn-mean")
        _, seen = bench.reference(case, Subject(recorder.model_for, read=recorder.read), conds)
        if any(len(parts) > 1 for parts in seen):
            return "wrong", "Maps of words where several parts act."
        sigmas = bench.sigmas()
        own = bench.encoded(prompt)[0][0]
        steps = [
            parts[0]["attn-mean"]
            for parts, sigma in zip(seen, sigmas, strict=False)
            if parts and torch.equal(bench.active(conds[0], float(sigma))[0], own)
        ]
        read = bench.app.module("nodes.host.text_encoding").read_prompt(bench.world.clip, prompt)
        mean = torch.stack([one.float() for one in steps]).mean(0)
        worst = max(
            relative(maps._maps[word], heat_map(mean, places, read.length))
            for word, places in read.find("").items()
        )
        return ("right" if worst <= 1e-3 else "wrong"), f"off by {worst:.1e}"

    return Subject(check=check)


def _bright_ending(bench: Bench, case: Case, draw, generator) -> Subject:
    """Bright Ending of the first text, which it samples itself on the MODEL, against calls of its
    own for each side.
    """
    layers = [one.path.removesuffix(".to_v") for one in _layers(bench)][:2]
    positive, negative = bench.encoded(case.positive[0].text), bench.encoded("")
    noise = torch.randn(case.images, 4, HEIGHT // 8, WIDTH // 8, generator=generator)

    def check(_conds):
        import comfy.samplers

        sample = bench.app.module("nodes.neurons.end_attention_comfy").sample_with_attention
        with torch.inference_mode():
            behind = bench.on(case, bench.world.model)
            differences, attention = sample(behind, positive, negative, noise, 2, 3.0, layers, 2)
        sampling = bench.world.model.get_model_object("model_sampling")
        sigmas = comfy.samplers.calculate_sigmas(sampling, "ddim_uniform", 2)
        x, subject = (
            sampling.noise_scaling(sigmas[0], noise, torch.zeros_like(noise), False),
            Subject(lambda *_: None),
        )
        expected, seen = [], {}
        for sigma, after in itertools.pairwise(sigmas):
            sides = []
            for side, text in enumerate((positive, negative)):
                hooks = [
                    bench.network.get_submodule(f"{layer}.{name}").register_forward_hook(
                        lambda _, _args, output, key=(layer, name): seen.update(
                            {key: output.clone()}
                        )
                    )
                    for layer in layers
                    for name in ("to_q", "to_k")
                    if side == 0
                ]
                try:
                    sides.append(
                        bench.alone(case, subject, side, text[0][0], x, (0, 0), sigma, sigmas)[0]
                    )
                finally:
                    for hook in hooks:
                        hook.remove()
            expected.append((sides[1] - sides[0]) / sigma)
            x = x + (x - sides[1] - 3.0 * (sides[0] - sides[1])) / sigma * (after - sigma)
        error = relative(differences, torch.stack(expected))
        if case.tiles:
            return "wrong", "A map of tiles."
        most = max(seen[layer, "to_q"].shape[1] for layer in layers)
        maps = []
        for layer in layers:
            query, key = seen[layer, "to_q"], seen[layer, "to_k"]
            if query.shape[1] == most:
                heads = bench.network.get_submodule(layer).heads
                query, key = (one.unflatten(2, (heads, -1)).transpose(1, 2) for one in (query, key))
                logits = query @ key.transpose(2, 3) / query.shape[-1] ** 0.5
                maps.append(logits.softmax(-1).mean(1)[..., 2 :: positive[0][0].shape[1]].sum(-1))
        error = max(error, relative(attention.flatten(1), torch.stack(maps).mean(0)))
        return ("right" if error <= 1e-3 else "wrong"), f"off by {error:.1e}"

    return Subject(check=check)


def _first_step(bench: Bench, case: Case, draw, generator) -> Subject:
    """What NeMo's searches evaluate: one step with neurons scaled, for all rows or each its own,
    three times over.
    """
    layer = draw.choice(_layers(bench))
    factors = [
        torch.ones(layer.width),
        torch.ones(layer.width),
        torch.ones(case.images, layer.width),
    ]
    factors[1][::2], factors[2][-1, ::3] = 0, 0
    noise = torch.randn(case.images, 4, HEIGHT // 8, WIDTH // 8, generator=generator)

    def check(_conds):
        first_step = bench.app.module("nodes.neurons.first_step_comfy")
        baked = bench.app.module("nodes.neurons.neuron_factors_comfy").bake_factors
        entries = bench.prepared(case.positive)
        behind, shape, found = bench.on(case, bench.world.model), noise.shape[1:], []

        def work(predict):
            found.extend(predict(noise, {layer.path: factor}) for factor in factors)

        with torch.inference_mode():
            positive = bench.conditioning(case.positive)
            first_step.at_first_step(behind, positive, shape, 981, work, len(noise))
        sampling = bench.world.model.get_model_object("model_sampling")
        sigma = sampling.sigma(torch.tensor(981.0))
        x, sigmas = noise * (1 + sigma**2).sqrt(), torch.tensor([float(sigma), 0.0])
        worst = 0.0
        for made, factor in zip(found, factors, strict=True):
            rows = []
            for number, image in enumerate(x):
                own = factor if factor.ndim == 1 else factor[number]
                subject = Subject(lambda model, *_, own=own: baked(model, {layer.path: own}), (0,))
                rows.append(bench.predicted(case, subject, entries, image[None], sigma, sigmas))
            worst = max(worst, relative(made, (x - torch.cat(rows)) / sigma))
        return ("right" if worst <= 1e-4 else "wrong"), f"off by {worst:.1e}"

    return Subject(check=check)


SUBJECTS: dict[str, Callable[..., Subject]] = {
    "Activation Steering": _steering,
    "Sparse Feature Steering": _sparse_features,
    "Activation Patching": _patching,
    "NeMo Neuron Mask": _neuron_mask,
    "NeMo Neuron Mask, own prompts": _neuron_mask_of_prompts,
    "Attention Scaling": _attention_scaling,
    "W2W Guidance": _weight_guidance,
    "Activation Recorder": _recorder,
    "Layer Activation Tap": _tap,
    "Seed Scout": _word_maps,
    "Bright Ending": _bright_ending,
    "NeMo's first step": _first_step,
    "Edit by Words": call_edits.words,
    "W2W Apply in an interval": call_edits.interval,
    "Optimize Neuron Mask": call_edits.learned_factors,
    "Optimize Neuron Mask, its mask": call_edits.learned_mask,
}
#: Nodes that change a MODEL, by themselves and two of them on one MODEL; those that sample by
#: themselves are left out.
CHANGES = {
    name: SUBJECTS[name]
    for name in (
        "Activation Steering",
        "Sparse Feature Steering",
        "NeMo Neuron Mask",
        "Attention Scaling",
        "W2W Guidance",
        "Edit by Words",
        "W2W Apply in an interval",
        "Optimize Neuron Mask, its mask",
    )
}
PAIRS = call_edits.pairs(CHANGES)
