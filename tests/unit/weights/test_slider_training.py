"""Sliders against direct computations: equation 7 in noise, v and velocity, the objectives of
pairs, the change of a layer, and a run that is taken up again.
"""

from types import SimpleNamespace

import pytest
import torch
from glassbox.nodes.common.training.training_loss import PairObjective
from glassbox.nodes.weights.flat_layout import Layout
from glassbox.nodes.weights.slider_training import (
    Concept,
    PairData,
    PhraseData,
    SliderDraw,
    SliderFactors,
    SliderSettings,
    SliderTraining,
    describe_slider_training,
)

RANK = 3
SIZES = {"mid_block.attn1.to_q": (6, 7), "mid_block.attn2.to_v": (9, 6)}  # inputs, outputs
LAYOUT = Layout.of({name: ((RANK, i), (o, RANK)) for name, (i, o) in SIZES.items()}, RANK, 1.5)
ETA = 2.5
PREDICTIONS = ("noise", "v", "velocity")


class V_PREDICTION:  # noqa: N801, ComfyUI's name
    """By whose name a model that predicts v is known."""


class Session:
    """A network of two linear layers on latents (6, 4) that predicts noise, v or a velocity; four
    images and seven conditions.
    """

    device = torch.device("cpu")

    def __init__(self, factors, prediction="noise", limit=100):
        generator = torch.Generator().manual_seed(9)
        self.factors = factors
        self.prediction = prediction
        self.sampling = V_PREDICTION() if prediction == "v" else SimpleNamespace()
        self.limit = limit
        self.weights = [torch.randn(o, i, generator=generator) / i for i, o in SIZES.values()]
        self.mixing = torch.randn(7, 9, generator=generator)
        self.latents = [torch.randn(1, 6, 4, generator=generator) for _ in range(4)]
        self.contexts = torch.randn(7, 6, generator=generator)
        self.rows = []

    def sigma(self, percent):
        return 0.2 + 0.7 * (1 - percent) if self.prediction == "velocity" else 0.2 + 5 * percent

    def noised(self, latent, noise, sigmas):
        sigmas = sigmas[:, None, None]
        if self.prediction == "velocity":
            return (1 - sigmas) * latent + sigmas * noise
        return latent + sigmas * noise

    def clean(self, latent):
        return latent

    def rows_at_once(self, count, shape, *, gradients=True):
        assert shape == (6, 4)
        return min(count, self.limit)

    def network(self, x, conditions, changes=(None, None)):
        """What is predicted for x (B, 6, 4), in the precision of x."""
        tokens = (x + self.contexts.to(x)[conditions][:, :, None]).mT
        first = tokens @ self.weights[0].to(x).T
        first = first if changes[0] is None else first + changes[0](tokens)
        hidden = first.relu() @ self.mixing.to(x)
        second = hidden @ self.weights[1].to(x).T
        return (second if changes[1] is None else second + changes[1](hidden)).mT

    def clean_of(self, x, sigmas, predicted):
        """The clean latent of a prediction."""
        sigmas = sigmas.to(x)[:, None, None]
        if self.prediction == "v":
            return x / (sigmas**2 + 1) - predicted * sigmas / (sigmas**2 + 1).sqrt()
        return x - sigmas * predicted

    def denoised(self, noised, sigmas, rows, images=None):
        self.rows.append(len(rows))
        changes = []
        for slot in LAYOUT.slots:
            off = self.factors is None or self.factors._sliders is None
            changes.append(None if off else lambda x, slot=slot: self.factors.change(slot, x))
        return self.clean_of(noised, sigmas, self.network(noised, list(rows), changes))


def factors_of(sliders=1, seed=3):
    factors = SliderFactors(LAYOUT, sliders, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        factors.flat.add_(0.3 * torch.randn(factors.flat.shape, generator=generator))
    return factors


def dense(factors, slider, strength):
    """What each layer's weight changes by, strength * 1.5 / 3 * B A, as functions of its input."""
    changes = []
    for slot in LAYOUT.slots:
        numbers = factors.flat[slider].detach().double()
        down = numbers[slot.offset : slot.up_offset].view(slot.down_shape)
        up = numbers[slot.up_offset : slot.end].view(slot.up_shape)
        weight = strength * 0.5 * up @ down
        changes.append(lambda x, weight=weight: x @ weight.T)
    return changes


#: Two base prompts (conditions 0 and 1); of the sliders the first has two preserved concepts.
FIRST = Concept(increase=[[2, 3], [4, 5]], decrease=[[4, 6], [3, 2]])
SECOND = Concept(increase=[[5, 5], [6, 6]], decrease=[[0, 0], [1, 1]])


def phrases(*concepts, kinds=("same",) * 7):
    return PhraseData(scenes=[0, 1, 0, 1], neutral=[0, 1], concepts=concepts, kinds=list(kinds))


def training(factors, data, **settings):
    values = {"steps": 5, "guidance_scale": ETA, "batch_size": 3, "seed": 4, **settings}
    return SliderTraining(factors, data, SliderSettings(**values))


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_loss_is_equation_7_in_what_the_model_predicts(prediction):
    """|| e_slider(x, c_t) - [e(x, c_t) + s eta (e(x, c_+) - e(x, c_-))] ||^2 at both strengths, of
    a direct computation in float64; float32 sums of some hundred terms agree to 2e-4.
    """
    factors = factors_of()
    session = Session(factors, prediction)
    run = training(factors, phrases(FIRST))
    draw = SliderDraw(images=[1, 2, 3], preserved=[0, 1, 1], percents=[0.2, 0.5, 0.9], seed=11)
    rows = run.rows(session, draw)
    errors = torch.cat(list(run._errors(session, rows)))
    noise = draw.noise((6, 4)).double()
    expected = []
    for strength in (1.0, -1.0):
        for row, image in enumerate(draw.images):
            sigma = torch.tensor([session.sigma(draw.percents[row])], dtype=torch.float64)
            x = session.noised(session.latents[image].double(), noise[row : row + 1], sigma)
            scene = (0, 1, 0, 1)[image]
            concept = draw.preserved[row]
            plus, minus, base = (
                session.network(x, [condition])
                for condition in (
                    FIRST.increase[scene][concept],
                    FIRST.decrease[scene][concept],
                    scene,
                )
            )
            answer = session.network(x, [scene], dense(factors, 0, strength))
            target = base + strength * ETA * (plus - minus)
            expected.append((answer - target).square().mean())
    assert len(errors) == 6
    assert torch.allclose(errors.double(), torch.stack(expected), rtol=2e-4)
    value = run.step_backward(session, 2)
    assert value > 0 and factors.flat.grad.norm() > 0


def test_mean_over_preserved_concepts_is_the_papers_sum_over_their_number():
    """Equation 7 adds up over p: the mean of both concepts' targets is that sum with eta / 2."""
    factors = factors_of()
    session = Session(factors)
    run = training(factors, phrases(FIRST))
    targets = []
    for concept in (0, 1):
        draw = SliderDraw(images=[3], preserved=[concept], percents=[0.4], seed=5)
        targets.append(run.rows(session, draw).targets[:1].double())
    sigma = torch.tensor([session.sigma(0.4)], dtype=torch.float64)
    x = session.noised(session.latents[3].double(), draw.noise((6, 4)).double(), sigma)
    total = session.network(x, [1])
    for concept in (0, 1):
        plus = session.network(x, [FIRST.increase[1][concept]])
        minus = session.network(x, [FIRST.decrease[1][concept]])
        total = total + ETA / 2 * (plus - minus)
    assert torch.allclose(sum(targets) / 2, session.clean_of(x, sigma, total), atol=1e-5)


@pytest.mark.parametrize("objective", PairObjective)
def test_pairs_against_a_direct_computation(objective):
    """Visual: the noise in before at -1 and in after at 1. Difference: at 1 the frozen answer to
    before plus eta times after minus before, at -1 the reverse; of the clean latent.
    """
    factors = factors_of()
    session = Session(factors)
    generator = torch.Generator().manual_seed(2)
    weights = [torch.rand(1, 1, 4, generator=generator) for _ in range(2)]
    data = PairData(
        images=2, neutral=[1, 0], kinds=["same"] * 7, objective=objective, weights=weights
    )
    run = training(factors, data)
    draw = SliderDraw(images=[1, 0], preserved=[0, 0], percents=[0.3, 0.8], seed=6)
    errors = torch.cat(list(run._errors(session, run.rows(session, draw))))
    noise = draw.noise((6, 4)).double()
    expected = []
    for after in (0, 1):
        for row, pair in enumerate(draw.images):
            images = [session.latents[pair].double(), session.latents[2 + pair].double()]
            sigma = torch.tensor([session.sigma(draw.percents[row])], dtype=torch.float64)
            x = session.noised(images[after], noise[row : row + 1], sigma)
            condition = [data.neutral[pair]]
            if objective == PairObjective.VISUAL:
                strength = 1.0 if after else -1.0
                answer = session.network(x, condition, dense(factors, 0, strength))
                error = answer - noise[row]
            else:
                strength = -1.0 if after else 1.0
                answer = session.network(x, condition, dense(factors, 0, strength))
                frozen = session.clean_of(x, sigma, session.network(x, condition))
                target = frozen + strength * ETA * (images[1] - images[0])
                error = session.clean_of(x, sigma, answer) - target
            weight = weights[pair].double() / weights[pair].double().mean()
            expected.append((weight * error.square()).mean())
    assert torch.allclose(errors.double(), torch.stack(expected), rtol=2e-4)


def test_change_of_a_layer_is_each_rows_own_slider_at_its_strength():
    factors = factors_of(sliders=3)
    x = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(1))
    slot = LAYOUT.slots[0]
    assert factors.change(slot, x) is None
    factors.select([2, 0, 1, 2], [1.0, -1.0, 0.5, 0.0])
    change = factors.change(slot, x)
    for row, (slider, strength) in enumerate([(2, 1.0), (0, -1.0), (1, 0.5), (2, 0.0)]):
        expected = dense(factors, slider, strength)[0](x[row].double())
        assert torch.allclose(change[row].double(), expected, atol=1e-5)
    # both sides of CFG hold the rows one after the other
    assert torch.equal(factors.change(slot, torch.cat([x, x])), torch.cat([change, change]))
    alone = SliderFactors(LAYOUT, 1, 0)
    with torch.no_grad():
        alone.flat.copy_(factors.flat[2:])
    alone.select([0, 0, 0, 0], [1.0, -1.0, 0.5, 0.0])
    factors.select([2] * 4, [1.0, -1.0, 0.5, 0.0])
    assert torch.allclose(alone.change(slot, x), factors.change(slot, x), atol=1e-6)
    factors.off()
    assert factors.change(slot, x) is None


def test_a_text_without_tokens_is_changed_by_nothing():
    factors = factors_of(sliders=3)
    factors.select([2, 0, 1, 2], [1.0, -1.0, 0.5, 0.0])
    slot = LAYOUT.slots[0]
    change = factors.change(slot, torch.zeros(4, 0, slot.down_shape[1]))
    assert change.shape == (4, 0, slot.up_shape[0])


def test_new_factors_change_nothing():
    factors = SliderFactors(LAYOUT, 2, 3)
    factors.select([0, 1], [1.0, -1.0])
    x = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(1))
    assert not factors.change(LAYOUT.slots[0], x).any()
    assert SliderFactors.training_bytes(LAYOUT, 2) == 4 * factors.flat.nbytes


def test_sliders_of_one_training_are_those_of_trainings_alone():
    """To rounding: the frozen model's rows are shared, the gradients are each slider's own."""
    together = SliderFactors(LAYOUT, 2, 3)
    run = training(together, phrases(FIRST, SECOND))
    run.run(Session(together), lambda done: None)
    for number, concept in enumerate((FIRST, SECOND)):
        alone = SliderFactors(LAYOUT, 1, 3)
        training(alone, phrases(concept)).run(Session(alone), lambda done: None)
        assert not torch.equal(alone.flat, SliderFactors(LAYOUT, 1, 3).flat)
        assert torch.allclose(alone.flat[0], together.flat[number], atol=1e-5)


def test_evaluations_are_three_rows_and_two_with_gradients_for_each_image():
    """The rows of a step: b of the base prompt, 2 b a slider of its phrases, then 2 b a slider with
    gradients; in calls of at most what memory holds and of what can share one.
    """
    factors = factors_of(sliders=2)
    data = phrases(FIRST, SECOND)
    session = Session(factors)
    training(factors, data).step_backward(session, 0)
    assert session.rows == [3 * 5, 3 * 4]
    session = Session(factors, limit=4)
    small = training(factors, data)
    factors.flat.grad = None
    small.step_backward(session, 0)
    assert session.rows == [4, 4, 4, 3, 4, 4, 4]
    gradient = factors.flat.grad.clone()
    factors.flat.grad = None
    session = Session(factors)
    kinds = ("one", "two", *("one",) * 5)
    training(factors, phrases(FIRST, SECOND, kinds=kinds)).step_backward(session, 0)
    assert sum(session.rows) == 27 and len(session.rows) == 3
    assert torch.allclose(factors.flat.grad, gradient, rtol=1e-4, atol=1e-6)


def test_a_run_that_was_stopped_goes_on_bit_equal():
    whole = SliderFactors(LAYOUT, 1, 3)
    run = training(whole, phrases(FIRST))
    run.run(Session(whole), lambda done: None)

    class StopError(Exception):
        pass

    def stop(done):
        if done == 2:
            raise StopError

    part = SliderFactors(LAYOUT, 1, 3)
    first = training(part, phrases(FIRST))
    with pytest.raises(StopError):
        first.run(Session(part), stop)
    state = {name: value.clone() for name, value in first.state().items()}
    resumed = SliderFactors(LAYOUT, 1, 8)
    second = training(resumed, phrases(FIRST))
    second.restore(state)
    assert second.steps_done == 2
    second.run(Session(resumed), lambda done: None)
    assert torch.equal(resumed.flat, whole.flat) and second.losses == run.losses


def test_error_left_is_that_of_the_slider_over_that_of_the_frozen_model():
    # the same phrases in both scenes, which one slider can meet
    one = Concept(increase=[[5], [5]], decrease=[[6], [6]])
    two = Concept(increase=[[2], [2]], decrease=[[3], [3]])
    factors = SliderFactors(LAYOUT, 2, 3)
    run = training(factors, phrases(one, two), steps=150, learning_rate=0.02)
    session = Session(factors, limit=5)
    assert run.error_left(session) == pytest.approx([1.0, 1.0], rel=1e-6)
    run.run(session, lambda done: None)
    left = run.error_left(session)
    assert all(0.01 < fraction < 0.95 for fraction in left) and left[0] != left[1]
    sums = [0.0, 0.0]
    frozen = SliderFactors(LAYOUT, 2, 3)
    for place, of in enumerate((factors, frozen)):
        for step in range(-4, 0):
            other = training(of, phrases(two, one), seed=4)
            with torch.no_grad():
                of.flat.copy_(of.flat.flip(0))
            rows = other.rows(Session(of), other.draw(step))
            sums[place] += float(torch.cat(list(other._errors(Session(of), rows)))[6:].sum())
            with torch.no_grad():
                of.flat.copy_(of.flat.flip(0))
    assert sums[0] / sums[1] == pytest.approx(left[0], rel=1e-4)
    report = describe_slider_training(run, ["old / young", "tall"], left=left, seconds=0.5)
    assert f"tall: {100 * left[1]:.0f} % of the error is left" in report


def test_draws_follow_from_seed_and_step_and_cover_the_noise_levels():
    data = phrases(FIRST)
    run = training(factors_of(), data, batch_size=4, end_percent=0.8)
    draws = [run.draw(step) for step in range(40)]
    assert draws == [
        training(factors_of(), data, batch_size=4, end_percent=0.8).draw(step) for step in range(40)
    ]
    assert training(factors_of(), data, batch_size=4, end_percent=0.8, seed=5).draw(3) != draws[3]
    assert {image for draw in draws for image in draw.images} == {0, 1, 2, 3}
    assert {concept for draw in draws for concept in draw.preserved} == {0, 1}
    for draw in draws:
        for place, percent in enumerate(draw.percents):
            assert place / 4 * 0.8 <= percent <= (place + 1) / 4 * 0.8


def test_a_loss_that_is_not_finite_ends_the_run():
    factors = factors_of()
    session = Session(factors)
    session.latents[0][:] = float("nan")
    run = training(factors, phrases(FIRST), batch_size=8)
    with pytest.raises(ValueError, match="no longer a finite number after 0 steps"):
        run.run(session, lambda done: None)
