"""Neurons' gradients, examples and factors in batches, against one input after the other."""

import pytest
import tiny_transformers
import torch
from tapping import hooks_left

SHAPE = (24, 16, 16)
#: The second prompt takes two chunks of the text encoder, so its embedding is twice as long.
TEXTS = ("portrait of zorvex quill", "portrait, " + "red hair, " * 40, "portrait", "portrait, bald")
ANCHOR = 2


@pytest.fixture(scope="module")
def planted(app):
    return app.run("GBX_LoadDemoModel", weights="avatars-v2-planted")


@pytest.fixture(scope="module")
def half(app):
    return app.module("nodes.neurons.neuron_attribution_comfy")


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_near(values, reference, relative=3e-5):
    """To 3e-5 of the largest number: float32 in sums of another number of rows, which without
    AVX-512 are off by several times what they are with it.
    """
    assert values.shape == reference.shape
    assert float((values - reference).abs().max()) <= relative * float(reference.abs().max())


def _demo(app, planted):
    conditions = [app.run("CLIPTextEncode", clip=planted[1], text=text)[0] for text in TEXTS]
    assert len({condition[0][0].shape[1] for condition in conditions}) == 2
    layers = app.module("nodes.neurons.neuron_layers").value_layers(
        planted[0].model.diffusion_model
    )
    return planted[0], conditions, layers, SHAPE


def _sd3(app, planted):
    """Texts of unlike length cannot share a call of a joint attention."""
    patcher = tiny_transformers.model("SD3")
    conditions = []
    for tokens, scale in ((3, 1.0), (5, 1.0), (3, 0.5), (5, -0.7)):
        ((embedding, more),) = tiny_transformers.conditioning(tokens)
        conditions.append([[scale * embedding, more]])
    layers = app.module("nodes.neurons.neuron_layers").feed_forward_layers(
        patcher.model.diffusion_model
    )
    shape = tuple(tiny_transformers.latent(patcher, 1, 8, 8)["samples"].shape[1:])
    return patcher, conditions, layers, shape


def _one_by_one(monkeypatch, half):
    def singles(self, inputs, *, gradients):
        return [[index] for index in range(len(inputs))]

    monkeypatch.setattr(half.FactorSession, "batches", singles)


def _rows_of_calls(monkeypatch, app):
    """How many rows each call of the network has."""
    session = app.module("nodes.host.training.trainer").Session
    calls = []
    real = session._call

    def call(self, noised, sigmas, conds, cfg, **further):
        calls.append(len(noised))
        return real(self, noised, sigmas, conds, cfg, **further)

    monkeypatch.setattr(session, "_call", call)
    return calls


def _learning(app, half, world, checkpointing):
    """Targets, distances, loss and gradient of 5 memorized inputs of two prompts and 4 ordinary
    ones, at factors away from 1.
    """
    pure = app.module("nodes.neurons.learned_factors")
    cost = app.module("nodes.neurons.neuron_attribution").Cost
    patcher, conditions, layers, shape = world
    neurons = app.module("nodes.neurons.nemo_search").Neurons(tuple(layers))
    total = sum(layer.width for layer in layers)
    start = 0.2 + 0.7 * torch.rand(total, generator=torch.Generator().manual_seed(5))

    def inputs(rows, seed):
        for number, row in enumerate(rows):
            yield gaussian(1, *shape, seed=seed + number), (961, 640, 480)[number % 3], row

    def work(session):
        spent = cost()
        memorized = list(inputs((0, 0, 1, 0, 1), 10))
        ordinary = list(inputs((3, 0, 3, 3), 20))
        known = pure.make_examples(session, memorized, anchor=ANCHOR, erased=True, cost=spent)
        kept = pure.make_examples(session, ordinary, anchor=ANCHOR, erased=False, cost=spent)
        learning = pure.FactorLearning(neurons, pure.LearningSettings(erase=7.0), start)
        loss, gradient = learning.gradient(session, known, kept, spent)
        factors = half_factors(learning.factors.detach())
        removed = pure.mean_error(session, known, factors, spent)
        targets = torch.cat([example.target for example in known + kept])
        distances = torch.tensor([example.distance for example in known + kept])
        return targets, distances, torch.tensor([loss, removed]), gradient

    def half_factors(factors):
        return app.module("nodes.neurons.neuron_attribution").by_layer(factors, neurons)

    latents = [torch.zeros(1, *shape)]
    with torch.inference_mode():
        return half.run(patcher, latents, conditions, work, checkpointing=checkpointing)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("world", [_demo, _sd3])
def test_learning_in_batches_is_learning_one_by_one(
    app, planted, half, world, checkpointing, monkeypatch
):
    """Prompts of unlike length and timestep, batches of 4 with an uneven last one; to 1e-5 of the
    largest number.
    """
    made = world(app, planted)
    monkeypatch.setattr(half, "_MOST_ROWS", 4)
    calls = _rows_of_calls(monkeypatch, app)
    batched = _learning(app, half, made, checkpointing)
    rows = list(calls)
    calls.clear()
    _one_by_one(monkeypatch, half)
    expected = _learning(app, half, made, checkpointing)
    for values, reference in zip(batched, expected, strict=True):
        assert_near(values, reference)
    assert sum(rows) == sum(calls) == len(calls) == 2 * 9 + 9 + 5
    if world is _demo:
        examples = [4, 4, 2, 4, 4]
        assert rows == [*examples, *[4, 4, 1], *[4, 1]]
    assert max(rows) <= 4 and len(rows) <= 0.6 * len(calls)
    assert hooks_left(made[0]) == 0


@pytest.mark.parametrize("ranking", ["multi", "dot"])
def test_attribution_in_batches_is_attribution_one_by_one(app, planted, half, ranking, monkeypatch):
    """For two prompts of unlike length; the anchor is evaluated for the first alone."""
    patcher, conditions, layers, shape = _demo(app, planted)
    pure = app.module("nodes.neurons.neuron_attribution")
    neurons = app.module("nodes.neurons.nemo_search").Neurons(tuple(layers))
    monkeypatch.setattr(half, "_MOST_ROWS", 3)
    calls = _rows_of_calls(monkeypatch, app)

    def attributed():
        kept = half.AnchorPredictions()
        costs = [pure.Cost(), pure.Cost()]
        found = [
            half.attribution(
                patcher,
                pure.Ranking(ranking),
                conditions[prompt],
                anchor=conditions[ANCHOR],
                kept=kept,
                latents=[gaussian(1, *shape, seed=1)],
                noise=gaussian(4, *shape, seed=2),
                timestep=961,
                neurons=neurons,
                seed=3,
                cost=costs[prompt],
            )
            for prompt in (0, 1)
        ]
        return found, costs

    with torch.inference_mode():
        batched, costs = attributed()
        rows = list(calls)
        calls.clear()
        _one_by_one(monkeypatch, half)
        expected, of_singles = attributed()
    for values, reference in zip(batched, expected, strict=True):
        assert_near(values, reference)
    assert costs == of_singles and sum(rows) == len(calls)
    assert [cost.forward for cost in costs] == ([8, 4] if ranking == "multi" else [4, 4])
    assert rows == [3, 1] * (5 if ranking == "multi" else 4)


def test_rows_follow_free_memory(app, planted, half, monkeypatch):
    import comfy.model_management as management

    patcher, conditions, _, shape = _demo(app, planted)
    inputs = [(torch.zeros(1, *shape), 961, 0)] * 20
    found = {}

    def work(session):
        for free in (1e15, 0.0):
            monkeypatch.setattr(management, "get_free_memory", lambda *_args, free=free: free)
            found[free] = [len(batch) for batch in session.batches(inputs, gradients=True)]
        one = patcher.model.memory_required([1, *shape])
        monkeypatch.setattr(management, "get_free_memory", lambda *_args: 10 * one)
        found["gradients"] = len(session.batches(inputs, gradients=True))
        found["alone"] = len(session.batches(inputs, gradients=False))

    half.run(patcher, [torch.zeros(1, *shape)], conditions, work)
    assert found[1e15] == [16, 4] and found[0.0] == [1] * 20
    assert found["alone"] < found["gradients"] == 20


def test_a_patch_of_a_part_of_the_run_is_given_one_noise_level_a_call(
    app, planted, half, monkeypatch
):
    """A neuron mask that acts above a level: inputs of both sides of it, as one by one."""
    patcher, conditions, layers, shape = _demo(app, planted)
    layer = layers[-1]
    sampling = patcher.get_model_object("model_sampling")
    middle = float(sampling.sigma(torch.tensor(700.0)))
    masked = app.module("nodes.neurons.neuron_factors_comfy").with_scaled(
        patcher, {layer.path: torch.full((layer.width,), -3.0)}, (float("inf"), middle), False
    )
    pure = app.module("nodes.neurons.neuron_attribution")
    inputs = [(gaussian(1, *shape, seed=n), (961, 480)[n % 2], 0) for n in range(5)]
    calls = _rows_of_calls(monkeypatch, app)

    def predicted(model):
        with torch.inference_mode():
            return half.run(
                model,
                [torch.zeros(1, *shape)],
                conditions,
                lambda session: pure.predict_all(session, inputs, pure.Cost()),
            )

    together = predicted(masked)
    assert calls == [3, 2]
    plain = predicted(patcher)
    assert calls == [3, 2, 5]
    _one_by_one(monkeypatch, half)
    assert_near(together, predicted(masked))
    changed = [
        not torch.allclose(one, other, atol=1e-4)
        for one, other in zip(together, plain, strict=True)
    ]
    assert changed == [True, False, True, False, True]


def test_latents_sampled_together_are_those_of_each_seed(app, planted, monkeypatch):
    """Five prompts, one of them longer: three calls a step instead of five. Euler's first step
    from pure noise is fourteen times the prediction, so to 1e-4.
    """
    evaluate = app.module("nodes.host.evaluate")
    patcher, conditions, _, shape = _demo(app, planted)
    conditions = [conditions[n] for n in (0, 2, 1, 3, 2)]
    seeds = [4, 5, 6, 7, 7]
    rows = []
    real = evaluate.sample_seeds

    def sample(*args, seeds, **more):
        rows.append(len(seeds))
        return real(*args, seeds=seeds, **more)

    monkeypatch.setattr(evaluate, "sample_seeds", sample)
    blank = {"samples": torch.zeros(1, *shape)}
    with torch.inference_mode():
        found = list(evaluate.sample_each(patcher, conditions, blank, seeds, steps=3))
        for latent, condition, seed in zip(found, conditions, seeds, strict=True):
            alone = evaluate.sample_latents(
                patcher,
                condition,
                negative=condition,
                latent=blank["samples"],
                steps=3,
                cfg=1.0,
                seed=seed,
            )
            assert_near(latent, alone, 1e-4)
    assert rows == [2, 1, 2]
