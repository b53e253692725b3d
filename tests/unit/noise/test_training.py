"""The training method on a small network of its own: which noise a step gets, and that threads
change nothing.
"""

import itertools
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from glassbox.nodes.common.resume import digest
from glassbox.nodes.common.training.batch_sampler import BatchPrefetcher, BatchSampler, LengthUnit
from glassbox.nodes.common.training.training_data import (
    TrainingData,
    TrainingImages,
    collect_training_data,
)
from glassbox.nodes.common.training.training_evaluation import Validation
from glassbox.nodes.common.training.training_loop import (
    OPTIMIZERS,
    DivergedError,
    Plan,
    Training,
    WeightAverage,
    keeps_state,
    learning_rate,
    make_optimizer,
)
from glassbox.nodes.common.training.training_loss import (
    logit_normal_percent,
    make_objective,
    signal_to_noise,
)
from glassbox.nodes.noise.pairing import PairingSettings
from glassbox.nodes.noise.training_noise import TrainingNoise

COUNT, SHAPE = 6, (2, 4, 4)


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def images(count=COUNT, shape=SHAPE, labels=None):
    return TrainingImages(
        [gaussian(1, *shape, seed=seed) for seed in range(count)], labels or [""] * count
    )


def pair(data, draw, **options):
    """The pairing of one draw."""
    return TrainingNoise(PairingSettings(**options), data, 1).pair(draw, data.batch(draw.images))


def pair_next(noise, sampler, data):
    draw = sampler.draw()
    return noise.pair(draw, data.batch(draw.images))


class Linear:
    """A session whose model answers with its input times one trainable number."""

    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, latents):
        self.latents, self.factor, self.seen = latents, torch.nn.Parameter(torch.tensor(0.5)), []

    def sigma(self, percent):
        return 10 * (1 - percent)

    def noised(self, latent, noise, sigmas):
        return latent + sigmas[:, None, None, None] * noise

    def clean(self, latent):
        return latent

    def denoised(self, noised, sigmas, rows, against=None, cfg=1.0, images=None):
        self.seen.append((noised.detach(), sigmas, list(rows)))
        return noised * self.factor


def trained(mode="off", ahead=True, batch_size=2, steps=5, unit="steps", **plan):
    data = images()
    session = Linear(data.latents)
    sampler = BatchSampler(data, batch_size, 3, unit)
    server = TrainingNoise(PairingSettings(pairing=mode, pool_size=12), data, 3) if mode else None
    parameters = {"factor": session.factor}
    run = Training(
        parameters,
        torch.optim.SGD([session.factor], lr=1e-4),
        Plan(steps=steps, learning_rate=1e-4, **plan),
        make_objective("MSE", "plain", 5.0),
    )
    run.run(session, BatchPrefetcher(data, sampler, server, ahead))
    return run, session


@pytest.mark.parametrize("mode", ["off", "assign", "pool", "nearest"])
def test_prefetching_changes_no_batch(mode):
    (ahead, a), (at_once, b) = (trained(mode, ahead) for ahead in (True, False))
    assert ahead.history.losses == at_once.history.losses
    assert ahead.history.gain == at_once.history.gain
    assert torch.equal(a.factor, b.factor)
    for (x, _, rows), (y, _, same) in zip(a.seen, b.seen, strict=True):
        assert torch.equal(x, y) and rows == same


def test_training_without_a_pairing_is_training_with_pairing_off():
    (plain, a), (off, b) = trained(None), trained("off")
    assert plain.history.losses == off.history.losses and torch.equal(a.factor, b.factor)
    assert plain.history.gain == 0


def test_prefetcher_runs_ahead_and_stops_with_its_consumer():
    """A pool that takes several steps to assign is then begun several steps before it is needed."""
    data = images()
    noise, made, enough = (
        TrainingNoise(PairingSettings(pairing="off"), data, 3),
        [],
        threading.Event(),
    )
    real = noise.pair

    def counted(draw, latents):
        made.append(draw)
        if len(made) == 9:
            enough.set()
        return real(draw, latents)

    noise.pair = counted
    batches = BatchPrefetcher(data, BatchSampler(data, 2, 3), noise).batches(100_000)
    next(batches)
    assert enough.wait(20), "no batch was made while the first was in use"
    batches.close()
    at_stop = len(made)
    assert at_stop < 30
    time.sleep(0.05)
    assert len(made) == at_stop


@pytest.mark.parametrize("mode", ["off", "assign", "pool", "nearest"])
def test_training_sees_the_paired_noise(mode):
    """What the model sees less the clean image is sigma times the paired noise."""
    data = images()
    session = Linear(data.latents)
    noise, sampler = (
        TrainingNoise(PairingSettings(pairing=mode, pool_size=12), data, 3),
        BatchSampler(data, 2, 3),
    )
    served = []
    real = noise.pair
    noise.pair = lambda draw, latents: served.append(real(draw, latents)) or served[-1]
    Training(
        {"factor": session.factor},
        torch.optim.SGD([session.factor], lr=1e-4),
        Plan(steps=4, learning_rate=1e-4),
        make_objective("MSE", "plain", 5.0),
    ).run(session, BatchPrefetcher(data, sampler, noise, ahead=False))
    for (noised, sigmas, rows), batch in zip(session.seen, served, strict=True):
        expected = data.batch(rows) + sigmas[:, None, None, None] * batch.noise[0]
        assert torch.equal(noised, expected)


def test_pairing_off_returns_the_drawn_noise_itself():
    draw = BatchSampler(images(), 3, 1).draw()
    assert pair(images(), draw, pairing="off").noise[0] is draw.noise


def test_assign_permutes_the_drawn_noise():
    data = images()
    draw = BatchSampler(data, 6, 1).draw()
    served = pair(data, draw, pairing="assign")
    assert sorted(map(digest, served.noise[0])) == sorted(map(digest, draw.noise))
    assert served.after.sum() < served.before.sum()


@pytest.mark.parametrize(
    ("pool_size", "turns", "pools"), [(12, 2, 1), (6, 1, 1), (4, 1, 2), (1, 1, 6)]
)
def test_a_pool_serves_each_noise_sample_once(pool_size, turns, pools):
    data = images()
    server = TrainingNoise(PairingSettings(pairing="pool", pool_size=pool_size), data, 5)
    sampler = BatchSampler(data, 1, 5, LengthUnit.EPOCHS)
    rounds = [[pair_next(server, sampler, data) for _ in range(COUNT * turns)] for _ in range(2)]
    keys = [digest(batch.noise) for batches in rounds for batch in batches]
    assert len(set(keys)) == 2 * COUNT * turns
    assert len(server._pools) == 2 * pools
    if pool_size == 12:
        assert sum(float(b.after.sum()) for b in rounds[0]) < sum(
            float(b.before.sum()) for b in rounds[0]
        )


def test_the_noise_of_pools_is_gaussian():
    data = images(8, (4, 8, 8))
    server = TrainingNoise(PairingSettings(pairing="pool", pool_size=64), data, 5)
    sampler = BatchSampler(data, 8, 5, LengthUnit.EPOCHS)
    noise = torch.cat(
        [pair_next(server, sampler, data).noise[0] for _ in range(8)]
    )  # all turns of one pool
    count = noise.numel()
    assert abs(float(noise.mean())) < 4 / count**0.5
    assert float(noise.var()) == pytest.approx(1, abs=4 * (2 / count) ** 0.5)
    assert float((noise**4).mean()) == pytest.approx(3, abs=4 * (96 / count) ** 0.5)


def test_noise_stays_within_captions():
    data = images(labels=["a", "b"] * 3)
    draw = BatchSampler(data, 6, 1).draw()
    served = pair(data, draw, pairing="assign", grouping="within_groups")
    label_of = {
        digest(noise): data.labels[image]
        for noise, image in zip(draw.noise, draw.images, strict=True)
    }
    pairs = zip(served.noise[0], draw.images, strict=True)
    assert all(label_of[digest(noise)] == data.labels[image] for noise, image in pairs)


@pytest.mark.parametrize("form", ["closed_form", "dot_product", "official"])
def test_nearest_is_nearer_and_k_1_is_the_drawn_noise(form):
    data = images()
    draw = BatchSampler(data, 6, 1).draw()
    one, many = (pair(data, draw, pairing="nearest", nearest_form=form, k=k) for k in (1, 16))
    assert torch.equal(one.noise[0], draw.noise)
    assert many.after.sum() < many.before.sum()


def test_epochs_show_every_image_once_in_batches_of_one_size():
    sizes = [(2, 4, 4)] * 5 + [(2, 4, 6)] * 3
    data = TrainingImages(
        [gaussian(1, *shape, seed=seed) for seed, shape in enumerate(sizes)], [""] * 8
    )
    sampler = BatchSampler(data, 2, 1, LengthUnit.EPOCHS)
    assert sampler.batches_per_epoch == 5
    epochs = [[sampler.draw().images for _ in range(5)] for _ in range(2)]
    for epoch in epochs:
        assert sorted(itertools.chain(*epoch)) == list(range(8))
        assert all(len({sizes[image] for image in batch}) == 1 for batch in epoch)
    assert epochs[0] != epochs[1]
    by_steps = BatchSampler(data, 4, 1)
    assert all(len({sizes[image] for image in by_steps.draw().images}) == 1 for _ in range(10))


@pytest.mark.parametrize("unit", ["steps", "epochs"])
def test_sampler_restores_its_state(unit):
    sampler = BatchSampler(images(), 2, 9, unit)
    for _ in range(3):
        sampler.draw()
    again = BatchSampler(images(), 2, 9, unit)
    again.restore(*sampler.state())
    for _ in range(3):
        a, b = sampler.draw(), again.draw()
        assert (a.number, a.images, a.percents) == (b.number, b.images, b.percents)
        assert torch.equal(a.noise, b.noise)


def test_accumulation_uses_several_batches_per_step():
    run, session = trained(batch_size=2, steps=2, accumulation=3)
    assert len(run.history.losses) == len(session.seen) == 6 and run.steps_done == 2


def test_weights_of_noise_levels():
    answer, clean = gaussian(3, 2, 4, 4), torch.zeros(3, 2, 4, 4)
    ratio = torch.tensor([0.1, 4.0, 100.0])
    errors = answer.square().flatten(1).mean(dim=1)
    for weighting, weight in (
        ("plain", torch.ones(3)),
        ("epsilon", ratio),
        ("min_snr", ratio.clamp(max=5.0)),
    ):
        loss = make_objective("MSE", weighting, 5.0)(answer, clean, ratio)
        assert float(loss) == pytest.approx(float((errors * weight).mean()), rel=1e-5)
    session = Linear([])
    assert signal_to_noise(session, torch.tensor([0.5, 2.0])).tolist() == pytest.approx([4.0, 0.25])
    with pytest.raises(KeyError):
        make_objective("L3", "plain", 5.0)


def test_min_snr_is_the_papers_for_epsilon_prediction():
    """Their weight of the noise's error is min(SNR, gamma) / SNR, and that error is SNR times the
    clean image's.
    """
    clean, sigma = gaussian(1, 2, 4, 4), 3.0
    noise, wrong = gaussian(1, 2, 4, 4, seed=1), gaussian(1, 2, 4, 4, seed=2)
    answer = clean + sigma * noise - sigma * wrong
    ratio = 1 / sigma**2
    theirs = min(ratio, 5) / ratio * (wrong - noise).square().mean()
    ours = make_objective("MSE", "min_snr", 5.0)(answer, clean, torch.tensor([ratio]))
    assert float(ours) == pytest.approx(float(theirs), rel=1e-4)


def test_learning_rate_schedules():
    rates = {
        kind: [learning_rate(1.0, kind, 2, step, 6) for step in range(6)]
        for kind in ("constant", "linear", "cosine")
    }
    assert rates["constant"] == [0.5, 1, 1, 1, 1, 1]
    assert rates["linear"] == [0.5, 1, 1, 0.75, 0.5, 0.25]
    assert rates["cosine"] == pytest.approx([0.5, 1, 1, 0.854, 0.5, 0.146], abs=1e-3)
    with pytest.raises(ValueError, match="step"):
        learning_rate(1.0, "step", 0, 0, 1)


def test_validation_loss_is_deterministic():
    session = Linear(images().latents)
    plain = make_objective("MSE", "plain", 5.0)
    validation = Validation([4, 5], seed=1)
    assert validation.loss(session, plain) == validation.loss(session, plain)
    assert {tuple(rows) for _, _, rows in session.seen} == {(4,) * 5, (5,) * 5}


def test_nan_loss_stops_the_run_without_a_checkpoint():
    data = images()
    session = Linear(data.latents)
    session.factor.data.fill_(float("nan"))
    saved = []
    run = Training(
        {},
        torch.optim.SGD([session.factor], lr=1.0),
        Plan(steps=3, learning_rate=1.0),
        make_objective("MSE", "plain", 5.0),
        checkpoint=SimpleNamespace(save=lambda *state: saved.append(state)),
    )
    with pytest.raises(DivergedError, match="no longer a finite number after 0 steps"):
        run.run(
            session,
            BatchPrefetcher(
                data,
                BatchSampler(data, 1, 0),
                TrainingNoise(PairingSettings(pairing="off"), data, 0),
            ),
        )
    assert not saved


def test_equal_captions_have_equal_labels():
    first, same, other = (
        [[torch.full((1, 2), value), {"pooled_output": torch.ones(1)}]] for value in (1.0, 1.0, 2.0)
    )
    labels = TrainingData(
        latents=[], conditions=[first, same, other], held_out=0, sample_rows=[], negative_row=None
    ).labels
    assert labels[0] == labels[1] != labels[2]


def test_logit_normal_levels_have_their_law():
    """t = 1 - percent: its logit is normal with the mean and deviation (SD3, section 3.1), by the
    quantiles of 19.
    """
    uniform = [(number + 0.5) / 1999 for number in range(1999)]
    percents = torch.tensor(
        [logit_normal_percent(value, 0.5, 0.8) for value in uniform], dtype=torch.float64
    )
    logits = torch.special.logit(1 - percents)
    assert float(logits.mean()) == pytest.approx(0.5, abs=1e-9) and float(
        logits.std()
    ) == pytest.approx(0.8, rel=2e-3)
    assert (percents.diff() > 0).all()
    assert logit_normal_percent(0.5, 0.0, 1.0) == 0.5
    assert (logit_normal_percent(0.0, 0.0, 1.0), logit_normal_percent(1.0, 0.0, 1.0)) == (0.0, 1.0)


@pytest.mark.parametrize("unit", list(LengthUnit))
def test_levels_and_dropout_leave_the_other_draws_alone(unit):
    plain, other = (
        BatchSampler(images(), 2, 9, unit),
        BatchSampler(images(), 2, 9, unit, lambda u: u / 2, 0.5),
    )
    draws = [(plain.draw(), other.draw()) for _ in range(200)]
    for a, b in draws:
        assert a.images == b.images and torch.equal(a.noise, b.noise)
        assert [percent / 2 for percent in a.percents] == b.percents
        assert a.dropped == [False, False]
    assert 0.42 < sum(sum(b.dropped) for _, b in draws) / 400 < 0.58
    again = BatchSampler(images(), 2, 9, unit, lambda u: u / 2, 0.5)
    assert [again.draw().dropped for _ in draws] == [b.dropped for _, b in draws]
    assert all(
        all(BatchSampler(images(), 6, seed, unit, None, 1.0).draw().dropped) for seed in range(5)
    )


def test_dropped_captions_are_the_empty_one():
    data = images()
    session = Linear(data.latents)
    Training(
        {"factor": session.factor},
        torch.optim.SGD([session.factor], lr=1e-4),
        Plan(steps=4),
        make_objective("MSE", "plain", 5.0),
        empty_row=17,
    ).run(
        session,
        BatchPrefetcher(data, BatchSampler(data, 2, 3, dropout=1.0), unpaired(data), ahead=False),
    )
    assert [rows for _, _, rows in session.seen] == [[17, 17]] * 4


def unpaired(data):
    return TrainingNoise(PairingSettings(pairing="off"), data, 3)


@pytest.mark.parametrize("weighting", ["plain", "epsilon", "min_snr"])
def test_a_mask_makes_the_error_a_weighted_mean(weighting):
    answer, clean, ratio = (
        gaussian(3, 4, 5, 6),
        gaussian(3, 4, 5, 6, seed=1),
        torch.tensor([0.1, 2.0, 30.0]),
    )
    objective, mask = make_objective("Huber", weighting, 5.0), torch.rand(3, 1, 5, 6)
    errors = torch.nn.functional.huber_loss(answer, clean, reduction="none")
    own = torch.stack([(errors[i] * mask[i]).sum() / (4 * mask[i].sum()) for i in range(3)])
    factor = {"plain": torch.ones(3), "epsilon": ratio, "min_snr": ratio.clamp(max=5.0)}[weighting]
    assert torch.allclose(objective(answer, clean, ratio, mask), (own * factor).mean(), rtol=1e-5)
    assert torch.allclose(
        objective(answer, clean, ratio, torch.ones(1, 1, 1, 1)), objective(answer, clean, ratio)
    )


def test_masks_come_to_the_size_of_each_latent():
    latents, captions = [{"samples": torch.zeros(2, 4, 8, 6)}], [[[torch.zeros(1, 2, 3), {}]]]
    mask = torch.zeros(1, 64, 48)
    mask[:, :32] = 1
    data = collect_training_data(latents, captions, 0, [], [], [], [mask])
    assert [tuple(weights.shape) for weights in data.weights] == [(1, 1, 8, 6)] * 2
    assert torch.equal(data.weights[1][0, 0, :, 0], torch.tensor([1.0] * 4 + [0.0] * 4))
    video = collect_training_data(
        [{"samples": torch.zeros(1, 4, 3, 8, 6)}], captions, 0, [], [], [], [mask]
    )
    assert video.weights[0].shape == (1, 1, 1, 8, 6)
    with pytest.raises(ValueError, match="There are 2 images and 3 masks"):
        collect_training_data(latents, captions, 0, [], [], [], [torch.ones(3, 8, 6)])
    with pytest.raises(ValueError, match="Mask 2 is empty"):
        collect_training_data(latents, captions, 0, [], [], [], [mask, torch.zeros(1, 8, 6)])


def test_rows_of_the_negative_and_the_empty_caption():
    latents, caption = [{"samples": torch.zeros(2, 4, 8, 8)}], [[torch.zeros(1, 2, 3), {}]]
    negative, empty = [[torch.ones(1, 2, 3), {}]], [[torch.full((1, 2, 3), 2.0), {}]]
    for given, rows in (
        ((negative, empty), (3, 4)),
        ((None, empty), (None, 3)),
        ((negative, None), (3, None)),
    ):
        data = collect_training_data(
            latents, [caption], 0, [], *([one] if one else [] for one in given)
        )
        assert (data.negative_row, data.empty_row) == rows
        for row, value in zip(rows, (1.0, 2.0), strict=True):
            assert row is None or float(data.conditions[row][0][0].mean()) == value


def test_the_average_is_the_exponential_one():
    """By hand in float64, with the decay of diffusers' EMAModel: min(decay, (1 + n) / (10 + n))."""
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    average, expected = WeightAverage({"a": parameter}, 0.9), parameter.detach().double()
    for step in range(1, 200):
        with torch.no_grad():
            parameter += torch.tensor([0.1, 0.2]) * (-1) ** step + 0.01
        average.update(step)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * parameter.detach().double()
    assert torch.allclose(average.values["a"].double(), expected, rtol=1e-5)
    own = parameter.detach().clone()
    with average.installed():
        assert torch.allclose(parameter.double(), expected, rtol=1e-5)
    assert torch.equal(parameter, own)


def test_optimizers_of_other_packages(monkeypatch):
    parameter, made = torch.nn.Parameter(torch.zeros(2)), []
    stand_in = SimpleNamespace(Prodigy=lambda parameters, lr: made.append((parameters, lr)))
    monkeypatch.setitem(sys.modules, "prodigyopt", stand_in)
    make_optimizer("Prodigy", [parameter], 1.0)
    assert made == [([parameter], 1.0)]
    monkeypatch.setitem(sys.modules, "prodigyopt", None)
    with pytest.raises(ValueError, match=r": pip install prodigyopt, or choose AdamW\."):
        make_optimizer("Prodigy", [parameter], 1.0)
    assert [name for name in OPTIMIZERS if not keeps_state(name)] == ["Prodigy", "AdamW8bit"]


def test_every_round_of_pools_has_other_pools():
    """Images that share a pool in one round are shuffled for the next, from the seed and the round
    alone.
    """
    data = images()

    def partitions(seed):
        server = TrainingNoise(PairingSettings(pairing="pool", pool_size=2), data, seed)
        built = []
        real = server._images.batch

        def seen(rows):
            built.append(frozenset(rows))
            return real(rows)

        server._images = SimpleNamespace(buckets=data.buckets, labels=data.labels, batch=seen)
        sampler = BatchSampler(data, 1, 5, LengthUnit.EPOCHS)
        for _ in range(4 * COUNT):
            server.pair(draw := sampler.draw(), data.batch(draw.images))
        return [frozenset(built[first : first + 3]) for first in range(0, 12, 3)]

    rounds = partitions(5)
    assert all(sorted(itertools.chain(*pools)) == list(range(COUNT)) for pools in rounds)
    assert len(set(rounds)) > 1
    assert rounds == partitions(5) != partitions(6)
