"""Factors that are learned by gradient, on a network that is computed by hand."""

import pytest
import torch
from glassbox.nodes.neurons import learned_factors
from glassbox.nodes.neurons.nemo_search import Neurons
from glassbox.nodes.neurons.neuron_attribution import Cost, by_layer
from glassbox.nodes.neurons.neuron_layers import BlockPart, NeuronLayer

NEURONS = Neurons((NeuronLayer("a", BlockPart.DOWN, 3), NeuronLayer("b", BlockPart.UP, 4)))
TOTAL, PROMPT, ANCHOR, CAPTION = 7, 0, 1, 2


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Predictor:
    """``network`` on at most two inputs in a call, which are not neighbors."""

    device = torch.device("cpu")

    def __init__(self):
        self.calls = []

    def batches(self, inputs, *, gradients):
        order = [*range(0, len(inputs), 2), *range(1, len(inputs), 2)]
        return [order[first : first + 2] for first in range(0, len(order), 2)]

    def predicted(self, x, timesteps, rows, factors=None):
        self.calls.append(len(x))
        each = zip(x.split(1), timesteps, rows, strict=True)
        return torch.cat([network(one, timestep, row, factors) for one, timestep, row in each])


PREDICTOR = Predictor()


def network(x, timestep, row, factors):
    """Neurons add an image each: the prompt's are 1 and 5, the caption's 2 and 5, all others are
    alike in all rows.
    """
    images = gaussian(TOTAL, 1, 2, 5, 3, seed=1)
    strength = torch.full((TOTAL,), 0.3, dtype=torch.float64)
    strength[{PROMPT: [1, 5], ANCHOR: [], CAPTION: [2, 5]}[row]] = 1.5
    every = (
        torch.ones(TOTAL, dtype=torch.float64)
        if factors is None
        else torch.cat([factors["a"], factors["b"]])
    )
    added = ((every * strength)[:, None, None, None, None] * images).sum(0)
    return x + torch.tanh(added * timestep / 1000 + 0.1 * x.abs())


def examples():
    cost = Cost()
    inputs = [
        (gaussian(1, 2, 5, 3, seed=seed), timestep)
        for seed, timestep in ((3, 961), (4, 640), (5, 480))
    ]
    memorized = [(*each, PROMPT) for each in inputs]
    ordinary = [(*each, CAPTION) for each in inputs[:2]]
    found = (
        learned_factors.make_examples(PREDICTOR, memorized, ANCHOR, True, cost),
        learned_factors.make_examples(PREDICTOR, ordinary, ANCHOR, False, cost),
    )
    assert cost.forward == 10 and cost.gradient == 0
    return found


def learning(start=None, **settings):
    start = torch.ones(TOTAL, dtype=torch.float64) if start is None else start
    return learned_factors.FactorLearning(
        NEURONS, learned_factors.LearningSettings(**settings), start
    )


def test_the_untouched_network_has_removed_and_changed_nothing():
    memorized, ordinary = examples()
    untouched = by_layer(torch.ones(TOTAL, dtype=torch.float64), NEURONS)
    cost = Cost()
    assert learned_factors.mean_error(PREDICTOR, memorized, untouched, cost) == pytest.approx(
        1.0, rel=1e-12
    )
    assert learned_factors.mean_error(PREDICTOR, ordinary, untouched, cost) == 0.0
    assert cost.forward == 5


def loss_of(memorized, ordinary, factors, erase, keep, size):
    """The formula at once: all examples of both kinds in one graph."""
    given = by_layer(factors, NEURONS)
    terms = [
        torch.stack(
            [
                (network(e.x, e.timestep, e.row, given) - e.target).square().sum() / e.distance
                for e in each
            ]
        )
        for each in (memorized, ordinary)
    ]
    return erase * terms[0].mean() + keep * terms[1].mean() + size * (1 - factors).sum()


def test_the_gradient_is_that_of_finite_differences():
    """Central differences of the formula in float64, away from 1, to 1e-6."""
    memorized, ordinary = examples()
    start, how = (
        0.2 + 0.7 * torch.rand(TOTAL, generator=torch.Generator().manual_seed(2)).double(),
        (7.0, 2.0, 0.05),
    )
    work = learning(start, erase=how[0], keep=how[1], size=how[2])
    cost = Cost()
    predictor = Predictor()
    loss, gradient = work.gradient(predictor, memorized, ordinary, cost)
    assert predictor.calls == [2, 2, 1]
    assert loss == pytest.approx(float(loss_of(memorized, ordinary, start, *how)), rel=1e-12)
    assert cost.gradient == 5
    for number in range(TOTAL):
        step = torch.zeros(TOTAL, dtype=torch.float64)
        step[number] = 1e-5
        higher, lower = (
            float(loss_of(memorized, ordinary, start + sign * step, *how)) for sign in (1, -1)
        )
        assert float(gradient[number]) == pytest.approx((higher - lower) / 2e-5, rel=1e-6, abs=1e-8)


def test_steps_are_those_of_adam_at_a_falling_rate_within_the_box():
    """Beside torch.optim.Adam on the same formula, all examples in each step."""
    memorized, ordinary = examples()
    how = {"erase": 10.0, "keep": 1.0, "size": 0.03}
    work = learning(steps=10, learning_rate=0.2, low=0.1, rows=3, **how)
    expected = torch.ones(TOTAL, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([expected], lr=0.2)
    for step in range(10):
        adam.param_groups[0]["lr"] = 0.2 if step < 7 else 0.05
        adam.zero_grad()
        loss = loss_of(memorized, ordinary, expected, *how.values())
        loss.backward()
        adam.step()
        with torch.no_grad():
            expected.clamp_(0.1, 1.0)
        work.advance(PREDICTOR, memorized, ordinary, Cost())
        assert work.losses[-1] == pytest.approx(float(loss.detach()), rel=1e-10)
        assert torch.allclose(work.factors, expected, atol=1e-10)
    assert (
        float(work.factors.detach().min()) == pytest.approx(0.1)
        and float(work.factors.detach().max()) == 1.0
    )


def test_the_neuron_of_the_prompt_alone_is_silenced_and_that_of_both_has_a_price():
    memorized, ordinary = examples()
    untouched = by_layer(torch.ones(TOTAL, dtype=torch.float64), NEURONS)

    def learned(keep):
        work = learning(steps=60, learning_rate=0.1, keep=keep, size=0.05)
        for _ in range(60):
            work.advance(PREDICTOR, memorized, ordinary, Cost())
        return work.result()

    cheap, dear = learned(0.0), learned(20.0)
    assert cheap[1] < 0.4 and cheap[5] < 0.4 and cheap[2] > 0.6
    assert dear[1] < 0.4 and dear[5] > cheap[5] + 0.2
    errors = [
        learned_factors.mean_error(PREDICTOR, ordinary, by_layer(factors, NEURONS), Cost())
        for factors in (cheap, dear)
    ]
    assert errors[0] > 2 * errors[1]
    assert learned_factors.mean_error(PREDICTOR, memorized, by_layer(cheap, NEURONS), Cost()) < 0.1
    assert learned_factors.mean_error(PREDICTOR, memorized, untouched, Cost()) == pytest.approx(1.0)


def test_a_bound_keeps_the_smallest_factors():
    memorized, ordinary = examples()
    free = learning(steps=30, keep=0.0, size=0.0, rows=3)
    bound = learning(steps=30, keep=0.0, size=0.0, rows=3, count=2)
    for _ in range(30):
        free.advance(PREDICTOR, memorized, ordinary, Cost())
        bound.advance(PREDICTOR, memorized, ordinary, Cost())
    assert int((free.result() != 1).sum()) > 2
    assert set((bound.result() != 1).nonzero().flatten().tolist()) == {1, 5}


def test_hardly_changed_neurons_are_left_as_they_are():
    factors = torch.tensor([1.0, 0.97, 0.94, -0.5, 1.0, 0.951, 0.2], dtype=torch.float64)
    assert learning(factors, low=-1.0).result().tolist() == [1.0, 1.0, 0.94, -0.5, 1.0, 1.0, 0.2]
    assert learning(factors, low=0.0).result().tolist() == [1.0, 1.0, 0.94, 0.0, 1.0, 1.0, 0.2]


def test_a_mask_is_where_it_starts():
    start = torch.tensor([1.0, 0.0, 1.0, 0.4, 1.0, 1.0, 1.0], dtype=torch.float64)
    assert torch.equal(learning(start).result(), start)


def test_steps_go_over_all_examples_whatever_was_drawn_before():
    """A learning that goes on draws what a whole one draws."""
    taken = [learned_factors._drawn(list(range(6)), 2, 5, step) for step in range(3)]
    assert sorted(number for each in taken for number in each) == list(range(6)) and taken[
        0
    ] == learned_factors._drawn(list(range(6)), 2, 5, 3)
    assert (
        len(learned_factors._drawn([1], 4, 0, 9)) == 1 and learned_factors._drawn([], 4, 0, 0) == []
    )


def test_a_prompt_that_is_the_anchor_is_refused():
    with pytest.raises(ValueError, match="none of the prompts"):
        learned_factors.make_examples(
            PREDICTOR, [(gaussian(1, 2, 5, 3), 640, ANCHOR)], ANCHOR, True, Cost()
        )
