"""The training method on a small network of its own: which noise a step gets, and that threads change nothing."""

import itertools
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from glassbox.nodes.noise.settings import Settings
from glassbox.nodes.noise.training import objective
from glassbox.nodes.noise.training.draws import EPOCHS, Draws
from glassbox.nodes.noise.training.feed import Feed
from glassbox.nodes.noise.training.loop import DivergedError, Plan, Training
from glassbox.nodes.noise.training.pictures import Pictures, digest, labels_of
from glassbox.nodes.noise.training.schedule import learning_rate
from glassbox.nodes.noise.training.serving import Server
from glassbox.nodes.noise.training.validation import Validation

COUNT, SHAPE = 6, (2, 4, 4)


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def pictures(count=COUNT, shape=SHAPE, labels=None):
    return Pictures([gaussian(1, *shape, seed=seed) for seed in range(count)], labels or [""] * count)


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

    def denoised(self, noised, sigmas, rows, against=None, cfg=1.0):
        self.seen.append((noised.detach(), sigmas, list(rows)))
        return noised * self.factor


def trained(mode="off", ahead=True, batch_size=2, steps=5, unit="steps", **plan):
    data = pictures()
    session = Linear(data.latents)
    draws = Draws(data, batch_size, 3, unit)
    server = Server(Settings(mode=mode, pool_size=12), data, 3)
    parameters = {"factor": session.factor}
    run = Training(parameters, torch.optim.SGD([session.factor], lr=1e-4), Plan(steps, learning_rate=1e-4, **plan),
                   objective.make("MSE", "plain", 5.0))  # fmt: skip
    run.run(session, Feed(data, draws, server, ahead))
    return run, session


@pytest.mark.parametrize("mode", ["off", "assign", "pool", "nearest"])
def test_the_thread_changes_nothing(mode):
    (ahead, a), (at_once, b) = (trained(mode, ahead) for ahead in (True, False))
    assert ahead.history.losses == at_once.history.losses
    assert ahead.history.gain == at_once.history.gain
    assert torch.equal(a.factor, b.factor)
    for (x, _, rows), (y, _, same) in zip(a.seen, b.seen, strict=True):
        assert torch.equal(x, y) and rows == same


def test_batches_are_made_well_ahead_and_no_longer_after_a_stop():
    """A pool that takes several steps to assign is then begun several steps before it is needed."""
    data = pictures()
    server, made, enough = Server(Settings(mode="off"), data, 3), [], threading.Event()
    real = server.serve

    def serve(draw):
        made.append(draw)
        if len(made) == 9:
            enough.set()
        return real(draw)

    server.serve = serve
    batches = Feed(data, Draws(data, 2, 3), server).batches(100_000)
    next(batches)
    assert enough.wait(20), "no batch was made while the first was in use"
    batches.close()
    at_stop = len(made)
    assert at_stop < 30
    time.sleep(0.05)
    assert len(made) == at_stop


@pytest.mark.parametrize("mode", ["off", "assign", "pool", "nearest"])
def test_what_is_learned_from_holds_the_noise_that_was_served(mode):
    """The answer sought is the clean picture: what the model sees less that picture is sigma times the served noise."""
    data = pictures()
    session = Linear(data.latents)
    server, draws = Server(Settings(mode=mode, pool_size=12), data, 3), Draws(data, 2, 3)
    served = []
    real = server.serve
    server.serve = lambda draw: served.append(real(draw)) or served[-1]
    Training({"factor": session.factor}, torch.optim.SGD([session.factor], lr=1e-4), Plan(4, learning_rate=1e-4),
             objective.make("MSE", "plain", 5.0)).run(session, Feed(data, draws, server, ahead=False))  # fmt: skip
    for (noised, sigmas, rows), batch in zip(session.seen, served, strict=True):
        expected = data.batch(rows) + sigmas[:, None, None, None] * batch.noise
        assert torch.equal(noised, expected)


def test_mode_off_serves_the_drawn_noise_itself():
    draw = Draws(pictures(), 3, 1).draw()
    assert Server(Settings(mode="off"), pictures(), 1).serve(draw).noise is draw.noise


def test_assign_deals_out_the_drawn_noise():
    data = pictures()
    draw = Draws(data, 6, 1).draw()
    served = Server(Settings(mode="assign"), data, 1).serve(draw)
    assert sorted(map(digest, served.noise)) == sorted(map(digest, draw.noise))
    assert served.after < served.before


@pytest.mark.parametrize(("pool_size", "turns", "pools"), [(12, 2, 1), (6, 1, 1), (4, 1, 2), (1, 1, 6)])
def test_a_pool_serves_each_of_its_noises_once(pool_size, turns, pools):
    data = pictures()
    server = Server(Settings(mode="pool", pool_size=pool_size), data, 5)
    draws = Draws(data, 1, 5, EPOCHS)
    rounds = [[server.serve(draws.draw()) for _ in range(COUNT * turns)] for _ in range(2)]
    keys = [digest([batch.noise]) for batches in rounds for batch in batches]
    assert len(set(keys)) == 2 * COUNT * turns
    assert len(server._pools) == 2 * pools
    if pool_size == 12:
        assert sum(batch.after for batch in rounds[0]) < sum(batch.before for batch in rounds[0])


def test_the_noise_of_pools_is_gaussian():
    data = pictures(8, (4, 8, 8))
    server, draws = Server(Settings(mode="pool", pool_size=64), data, 5), Draws(data, 8, 5, EPOCHS)
    noise = torch.cat([server.serve(draws.draw()).noise for _ in range(8)])  # all turns of one pool
    count = noise.numel()
    assert abs(float(noise.mean())) < 4 / count**0.5
    assert float(noise.var()) == pytest.approx(1, abs=4 * (2 / count) ** 0.5)
    assert float((noise**4).mean()) == pytest.approx(3, abs=4 * (96 / count) ** 0.5)


def test_noise_stays_within_captions():
    data = pictures(labels=["a", "b"] * 3)
    draw = Draws(data, 6, 1).draw()
    served = Server(Settings(mode="assign", grouping="within groups"), data, 1).serve(draw)
    label_of = {digest(noise): data.labels[picture] for noise, picture in zip(draw.noise, draw.pictures, strict=True)}
    assert all(label_of[digest(noise)] == data.labels[p] for noise, p in zip(served.noise, draw.pictures, strict=True))


@pytest.mark.parametrize("form", ["closed form", "dot product", "official"])
def test_nearest_is_nearer_and_k_1_is_the_drawn_noise(form):
    data = pictures()
    draw = Draws(data, 6, 1).draw()
    one, many = (Server(Settings(mode="nearest", form=form, k=k), data, 1).serve(draw) for k in (1, 16))
    assert torch.equal(one.noise, draw.noise)
    assert many.after < many.before


def test_epochs_show_every_picture_once_in_batches_of_one_size():
    sizes = [(2, 4, 4)] * 5 + [(2, 4, 6)] * 3
    data = Pictures([gaussian(1, *shape, seed=seed) for seed, shape in enumerate(sizes)], [""] * 8)
    draws = Draws(data, 2, 1, EPOCHS)
    assert draws.batches_an_epoch == 5
    epochs = [[draws.draw().pictures for _ in range(5)] for _ in range(2)]
    for epoch in epochs:
        assert sorted(itertools.chain(*epoch)) == list(range(8))
        assert all(len({sizes[picture] for picture in batch}) == 1 for batch in epoch)
    assert epochs[0] != epochs[1]
    by_steps = Draws(data, 4, 1)
    assert all(len({sizes[picture] for picture in by_steps.draw().pictures}) == 1 for _ in range(10))


@pytest.mark.parametrize("unit", ["steps", "epochs"])
def test_draws_go_on_from_their_state(unit):
    draws = Draws(pictures(), 2, 9, unit)
    for _ in range(3):
        draws.draw()
    again = Draws(pictures(), 2, 9, unit)
    again.restore(*draws.state())
    for _ in range(3):
        a, b = draws.draw(), again.draw()
        assert (a.number, a.pictures, a.percents) == (b.number, b.pictures, b.percents)
        assert torch.equal(a.noise, b.noise)


def test_accumulation_takes_several_batches_for_a_step():
    run, session = trained(batch_size=2, steps=2, accumulation=3)
    assert len(run.history.losses) == len(session.seen) == 6 and run.steps_done == 2


def test_weights_of_noise_levels():
    answer, clean = gaussian(3, 2, 4, 4), torch.zeros(3, 2, 4, 4)
    ratio = torch.tensor([0.1, 4.0, 100.0])
    errors = answer.square().flatten(1).mean(dim=1)
    for weighting, weight in (("plain", torch.ones(3)), ("epsilon", ratio), ("min-SNR", ratio.clamp(max=5.0))):
        loss = objective.make("MSE", weighting, 5.0)(answer, clean, ratio)
        assert float(loss) == pytest.approx(float((errors * weight).mean()), rel=1e-5)
    session = Linear([])
    assert objective.signal_to_noise(session, torch.tensor([0.5, 2.0])).tolist() == pytest.approx([4.0, 0.25])
    with pytest.raises(ValueError, match="no L3 loss"):
        objective.make("L3", "plain", 5.0)


def test_min_snr_is_the_papers_for_epsilon_prediction():
    """Their weight of the noise's error is min(SNR, gamma) / SNR, and that error is SNR times the clean picture's."""
    clean, sigma = gaussian(1, 2, 4, 4), 3.0
    noise, wrong = gaussian(1, 2, 4, 4, seed=1), gaussian(1, 2, 4, 4, seed=2)
    answer = clean + sigma * noise - sigma * wrong
    ratio = 1 / sigma**2
    theirs = min(ratio, 5) / ratio * (wrong - noise).square().mean()
    ours = objective.make("MSE", "min-SNR", 5.0)(answer, clean, torch.tensor([ratio]))
    assert float(ours) == pytest.approx(float(theirs), rel=1e-4)


def test_schedules():
    rates = {kind: [learning_rate(1.0, kind, 2, step, 6) for step in range(6)] for kind in
             ("constant", "linear", "cosine")}  # fmt: skip
    assert rates["constant"] == [0.5, 1, 1, 1, 1, 1]
    assert rates["linear"] == [0.5, 1, 1, 0.75, 0.5, 0.25]
    assert rates["cosine"] == pytest.approx([0.5, 1, 1, 0.854, 0.5, 0.146], abs=1e-3)
    with pytest.raises(ValueError, match="no schedule step"):
        learning_rate(1.0, "step", 0, 0, 1)


def test_validation_is_the_same_at_every_look_and_for_every_pairing():
    session = Linear(pictures().latents)
    plain = objective.make("MSE", "plain", 5.0)
    validation = Validation([4, 5], seed=1)
    assert validation.loss(session, plain) == validation.loss(session, plain)
    assert {tuple(rows) for _, _, rows in session.seen} == {(4,) * 5, (5,) * 5}


def test_a_loss_that_is_no_number_stops_the_run():
    data = pictures()
    session = Linear(data.latents)
    session.factor.data.fill_(float("nan"))
    saved = []
    run = Training({}, torch.optim.SGD([session.factor], lr=1.0), Plan(3, learning_rate=1.0),
                   objective.make("MSE", "plain", 5.0),
                   store=SimpleNamespace(save=lambda *state: saved.append(state)))  # fmt: skip
    with pytest.raises(DivergedError, match="no longer a number after 0 steps"):
        run.run(session, Feed(data, Draws(data, 1, 0), Server(Settings(mode="off"), data, 0)))
    assert not saved


def test_equal_captions_have_equal_labels():
    first, same, other = ([[torch.full((1, 2), value), {"pooled_output": torch.ones(1)}]] for value in (1.0, 1.0, 2.0))
    labels = labels_of([first, same, other])
    assert labels[0] == labels[1] != labels[2]
