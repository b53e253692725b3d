"""Adversarial unlearning on a model that mixes the images of a table by the softmax of its text
embedding.
"""

import contextlib

import pytest
import torch
from glassbox.nodes.neurons import audit, mitigations, unlearning

MEMORIZED, SURROGATE, ORDINARY = ([[[[value]]]] for value in (2.0, -2.0, 0.5))


class Table:
    """A session: the embedding's softmax weighs images of one pixel, two of which are the memorized
    one.

    Its best prediction of the noise in x = image + noise is x less the mixed image.
    """

    steps, device = 1000, torch.device("cpu")
    at_once = 64

    def __init__(self):
        self.latents = [torch.tensor(image) for image in (MEMORIZED, SURROGATE, ORDINARY)]
        self.rows = [
            self.at(0),
            self.at(0),
            self.at(2),
        ]  # the prompt's conditioning for surrogates too
        self.shown = torch.tensor([2.0, 2.0, 0.5])
        self.table, self.changed = torch.zeros(3, requires_grad=True), True
        self.without_gradient = 0

    @staticmethod
    def at(place):
        """An embedding that takes one image of the table, and next to nothing of the others."""
        return 40 * torch.nn.functional.one_hot(torch.tensor([[place]]), 3).float()

    def image(self, embedding):
        table = self.shown + self.table if self.changed else self.shown
        return (embedding[:, 0].softmax(-1) * table).sum(-1).view(-1, 1, 1, 1)

    def predicted(self, x, timestep, embedding=None, rows=None):
        embedding = torch.cat([self.rows[row] for row in rows]) if embedding is None else embedding
        self.without_gradient += not torch.is_grad_enabled()
        return x - self.image(embedding)

    def noised(self, latent, noise, timestep):
        return latent + noise

    def target(self, latent, noise, timestep):
        return noise

    def rows_at_once(self, x):
        return min(len(x), self.at_once)

    def weight(self, timestep):
        return torch.ones(len(timestep), 1, 1, 1)

    @contextlib.contextmanager
    def untouched(self):
        self.changed = False
        with torch.no_grad():
            yield
        self.changed = True


def learned(**changes):
    session, seen = Table(), []
    how = {"steps": 200, "learning_rate": 0.1, "attack_steps": 2, "restart": 40} | changes
    settings = unlearning.UnlearningSettings(**how)
    starts = [session.at(0), torch.zeros(1, 1, 3)]
    losses = unlearning.unlearn(session, 1, starts, [session.table], settings, seen.append)
    return session, losses, seen


@pytest.mark.parametrize("at_once", [1, 3])
def test_an_attack_is_the_same_whatever_fits_in_memory(at_once):
    """8 noise samples in parts of 1, or of 3, 3 and 2."""
    results = []
    for rows in (64, at_once):
        session = Table()
        session.at_once = rows
        results.append(
            audit.attack_embedding(
                session, torch.zeros(1, 1, 3), audit.AttackSettings(), lambda _: None
            )
        )
    (embedding, losses), (parts, losses_of_parts) = results
    assert (parts - embedding).abs().max() < 1e-5 and embedding.abs().max() > 0.1
    assert losses_of_parts == pytest.approx(losses, abs=1e-6)  # of .25 at the start


@pytest.mark.parametrize("at_once", [1, 3])
def test_an_adjusted_embedding_is_the_same_whatever_fits_in_memory(at_once):
    """The mean distance of 8 rows to the embedding's first token, in parts of 1, or of 3, 3 and
    2.
    """
    rows = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))

    def losses(parts):
        return lambda embedding: (
            (embedding[:, 1] - part).norm(dim=1).sum() / 8 for part in rows.split(parts)
        )

    start = torch.ones(1, 2, 3)
    settings = {"steps": 6, "learning_rate": 0.1, "target": 0.0, "show_progress": lambda _: None}
    whole, norms = mitigations.adjust_embedding(start, losses(8), **settings)
    parts, norms_of_parts = mitigations.adjust_embedding(start, losses(at_once), **settings)
    assert (parts - whole).abs().max() < 1e-5 and (whole - start).abs().max() > 0.1
    assert len(norms) == 7 and norms_of_parts == pytest.approx(norms, rel=1e-5)
    assert norms[0] == pytest.approx(float((1 - rows).norm(dim=1).mean()), rel=1e-6)
    assert torch.equal(whole[:, 0], start[:, 0])


def returned(session):
    """The image that an attack makes the model generate, from an embedding that takes all images
    alike.
    """
    settings = audit.AttackSettings(steps=200)
    embedding, _ = audit.attack_embedding(session, torch.zeros(1, 1, 3), settings, lambda _: None)
    return float(session.image(embedding).detach())


def test_the_untouched_model_gives_the_memorized_image_and_so_does_the_attack():
    session = Table()
    assert float(session.image(session.at(0)).detach()) == pytest.approx(2, abs=0.1)
    assert returned(session) == pytest.approx(2, abs=0.1)


def test_plain_training_leaves_what_an_attack_finds():
    """The prompt gives the surrogate; the second copy, which the prompt does not reach, stays."""
    session, losses, _ = learned(attack_steps=0)
    assert float(session.image(session.at(0)).detach()) == pytest.approx(-2, abs=0.2)
    assert losses.attack == [] and returned(session) > 1.5


def test_training_under_attack_leaves_nothing_for_it():
    session, losses, seen = learned(keep=10.0)
    assert float(session.image(session.at(0)).detach()) == pytest.approx(-2, abs=0.6)
    assert returned(session) < 0.6  # the ordinary image is .5, the closest that is left
    assert float(session.image(session.at(2)).detach()) == pytest.approx(0.5, abs=0.2)
    assert seen == list(range(1, 201)) and session.without_gradient == 200
    assert [len(one) for one in (losses.attack, losses.surrogates, losses.ordinary)] == [
        400,
        200,
        200,
    ]


def test_ordinary_prompts_are_kept_by_their_weight():
    """Without it, the attack goes on to the ordinary image, the next closest, and that is trained
    away too.
    """
    free, kept = (learned(keep=keep)[0] for keep in (0.0, 10.0))
    changed = [abs(float(session.image(session.at(2)).detach()) - 0.5) for session in (free, kept)]
    assert changed[0] > 3 * changed[1]


def test_the_first_step_by_hand():
    """One step of AdamW moves each entry by the learning rate against the sign of its gradient."""
    session, losses, _ = learned(steps=1, attack_steps=0, learning_rate=0.01)
    gap = (
        float(session.image(session.at(0)).detach()) + 2
    )  # the prediction errs by surrogate less mixed image
    assert losses.surrogates[0] == pytest.approx(
        float((Table().image(Table.at(0)) + 2).detach() ** 2), rel=1e-5
    )
    assert losses.ordinary[0] == 0 and gap < float(Table().image(Table.at(0)).detach()) + 2
    assert torch.allclose(session.table.detach(), torch.tensor([-0.01, 0, 0]), atol=1e-6)


def test_one_seed_one_result(monkeypatch):
    monkeypatch.setattr(Table, "weight", lambda _, timestep: (timestep / 500).view(-1, 1, 1, 1))
    first, again, other = (learned(steps=20, seed=seed)[0].table.detach() for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_an_attack_that_goes_on_is_the_attack_in_one_piece():
    session, settings = Table(), audit.AttackSettings(steps=6)
    whole, losses = audit.attack_embedding(session, session.at(1), settings, lambda _: None)
    attack = audit.Attack(session, session.latents[0], session.at(1), settings)
    for step in range(6):
        attack.advance()
        assert attack.losses == losses[: step + 1]
    assert torch.equal(attack.embedding, whole) and session.table.grad is None


def test_the_cost_and_the_report():
    settings = unlearning.UnlearningSettings(steps=10, batch_size=4, attack_steps=2)
    assert settings.rows == (2 * 10 * 4 + 10 * 2 * 4, 40)
    losses = unlearning.UnlearningLosses([0.1] * 20, [0.5] * 10, [0.01] * 10)
    text = unlearning.describe(losses, settings, 12)
    assert "160 rows of the network with gradients, 40 without" in text and "(12)" in text
    assert "Loss of the attack: 0.1000" in text and "Memorization Audit" in text
    plain = unlearning.UnlearningSettings(steps=10, attack_steps=0)
    assert "No attack took part" in unlearning.describe(
        unlearning.UnlearningLosses([], [0.5], [0.1]), plain, 1
    )
