"""Attribution of neurons by a gradient and the shortest set of a ranking, on a network that is
computed by hand.
"""

import pytest
import torch
from glassbox.nodes.neurons import neuron_attribution as attribution
from glassbox.nodes.neurons.nemo_search import Neurons
from glassbox.nodes.neurons.neuron_layers import BlockPart, NeuronLayer

NEURONS = Neurons((NeuronLayer("a", BlockPart.DOWN, 3), NeuronLayer("b", BlockPart.UP, 4)))
TOTAL = 7


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Network:
    """Predicts x + tanh of a sum of neurons that each add an image of their own, more or less with
    the timestep. Evaluates at most ``most`` inputs in a call, the last ones first.
    """

    device = torch.device("cpu")

    def __init__(self, most=2):
        self.images = gaussian(2, TOTAL, 1, 2, 5, 3, seed=1)  # row, neuron, image
        self.most = most
        self.calls = []

    def batches(self, inputs, *, gradients):
        order = list(range(len(inputs)))[::-1]
        return [order[first : first + self.most] for first in range(0, len(order), self.most)]

    def predicted(self, x, timesteps, rows, factors=None):
        self.calls.append(len(x))
        each = zip(x.split(1), timesteps, rows, strict=True)
        return torch.cat([self(one, timestep, row, factors) for one, timestep, row in each])

    def __call__(self, x, timestep, row, factors):
        every = torch.ones(TOTAL) if factors is None else torch.cat([factors["a"], factors["b"]])
        added = (every.double()[:, None, None, None, None] * self.images[row]).sum(0)
        return x + torch.tanh(added * timestep / 1000 + 0.1 * x.abs())


def dot_of(network, noise, factors, timestep=961):
    d = torch.cat([network(x, timestep, 0, factors) - x for x in noise.split(1)])
    pairs = [(d[i] * d[j]).sum() for i in range(len(d)) for j in range(len(d)) if i != j]
    return sum(pairs) / len(pairs)


def leaf(value):
    every = torch.full((TOTAL,), value, requires_grad=True)
    return every, dict(zip("ab", every.split([3, 4]), strict=True))


def test_dot_is_the_mean_product_of_two_different_rows():
    rows = gaussian(5, 2, 3)
    pairs = [float((rows[i] * rows[j]).sum()) for i in range(5) for j in range(5) if i != j]
    assert float(attribution.dot_product(rows)) == pytest.approx(sum(pairs) / 20, rel=1e-12)


@pytest.mark.parametrize("midpoints", [1, 3])
def test_dot_attribution_is_the_gradient_of_the_pairs(midpoints):
    """Row by row as against all pairs in one graph, at the midpoints of the path."""
    network, noise, cost = Network(3), gaussian(4, 2, 5, 3, seed=2), attribution.Cost()
    expected = torch.zeros(TOTAL)
    for number in range(midpoints):
        every, factors = leaf((number + 0.5) / midpoints)
        dot_of(network, noise, factors).backward()
        expected += every.grad / midpoints
    found = attribution.attribute_dot(network, noise, 961, NEURONS, cost, midpoints)
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert (cost.forward, cost.gradient) == (4 * midpoints, 4 * midpoints)
    assert network.calls == [3, 1] * 2 * midpoints


def test_dot_needs_two_samples():
    with pytest.raises(ValueError, match="noise_samples to 2"):
        attribution.attribute_dot(Network(), gaussian(1, 2, 5, 3), 961, NEURONS, attribution.Cost())


@pytest.mark.parametrize("midpoints", [1, 2])
def test_multi_attribution_is_the_gradient_of_the_projection(midpoints):
    network, cost = Network(), attribution.Cost()
    inputs = [
        (gaussian(1, 2, 5, 3, seed=seed), timestep)
        for seed, timestep in ((3, 961), (4, 640), (5, 480))
    ]
    expected = torch.zeros(TOTAL)
    for number in range(midpoints):
        every, factors = leaf((number + 0.5) / midpoints)
        total = 0.0
        for x, timestep in inputs:
            anchor = network(x, timestep, 1, None)
            u = network(x, timestep, 0, None) - anchor
            total = (
                total + ((network(x, timestep, 0, factors) - anchor) * u).sum() / u.square().sum()
            )
        (total / len(inputs)).backward()
        expected += every.grad / midpoints
    anchor = attribution.anchor_predictions(network, inputs, cost)
    assert torch.equal(anchor, torch.cat([network(x, t, 1, None) for x, t in inputs]))
    found = attribution.attribute_multi(
        network, inputs, anchor=anchor, neurons=NEURONS, cost=cost, midpoints=midpoints
    )
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert (cost.forward, cost.gradient) == (6, 3 * midpoints)
    assert network.calls == [2, 1] * (2 + midpoints)


def test_many_midpoints_are_complete():
    """Integrated gradients sum to what all neurons together change: 1 - R(0), here to 1e-3."""
    network, inputs = Network(), [(gaussian(1, 2, 5, 3, seed=3), 961)]
    ((x, timestep),) = inputs
    found = attribution.attribute_multi(
        network,
        inputs,
        anchor=network(x, timestep, 1, None),
        neurons=NEURONS,
        cost=attribution.Cost(),
        midpoints=40,
    )
    silenced = {"a": torch.zeros(3), "b": torch.zeros(4)}
    anchor = network(x, timestep, 1, None)
    u = network(x, timestep, 0, None) - anchor
    rest = float(((network(x, timestep, 0, silenced) - anchor) * u).sum() / u.square().sum())
    assert float(found.sum()) == pytest.approx(1 - rest, abs=1e-3)


def test_neurons_that_work_against_are_not_ranked():
    values, z = torch.tensor([0.5, -2.0, 1.0]), torch.tensor([-4.0, 9.0, 1.0])
    assert attribution.ranked(values, None).tolist() == [0.5, 0.0, 1.0]
    assert attribution.ranked(values, z).tolist() == [2.0, 0.0, 1.0]


class Scores:
    """An evaluator whose score falls by the weight of each silenced neuron."""

    neurons = NEURONS

    def __init__(self, *weights):
        self.weights, self.sets = torch.tensor(weights, dtype=torch.float64), []

    def score(self, mask):
        self.sets.append(mask.nonzero().flatten().tolist())
        return 1.0 - float(self.weights[mask].sum())

    def score_below(self, mask, threshold):
        return value if (value := self.score(mask)) < threshold else None


VALUES = torch.tensor([3.0, 7.0, 6.0, 5.0, 4.0, 0.0, 2.0])  # order: 1, 2, 3, 4, 0, 6; never 5


def last(results):
    *_, result = results
    return result


def test_the_shortest_prefix_that_reaches_the_target_is_taken():
    """All of 1, 2, 3 are needed: 1, 2, then 4 neurons are tried, then 3, and each of them left
    out.
    """
    evaluator = Scores(0.1, 0.3, 0.2, 0.2, 0.1, 0.0, 0.1)
    result = last(attribution.shorten(VALUES, evaluator, 0.35))
    assert (
        result.refined == [[1, 2], [0]]
        and result.converged
        and result.finished
        and result.progress == 1.0
    )
    assert [step.neurons for step in result.trace] == [1, 2, 4, 3]
    assert result.score == pytest.approx(0.3) and result.initial == result.refined
    assert len(evaluator.sets) == 4 + 3


def test_neurons_that_are_not_needed_are_left_out():
    """Neuron 2 has a high attribution and no effect."""
    result = last(attribution.shorten(VALUES, Scores(0.1, 0.3, 0.0, 0.4, 0.1, 0.0, 0.1), 0.35))
    assert result.initial == [[1, 2], [0]] and result.refined == [[1], [0]]
    assert result.score == pytest.approx(0.3) and result.initial_score == pytest.approx(0.3)


def test_without_leaving_out_the_shortest_prefix_is_the_result():
    evaluator = Scores(0.1, 0.3, 0.0, 0.4, 0.1, 0.0, 0.1)
    result = last(attribution.shorten(VALUES, evaluator, 0.35, leave_out=False))
    assert (
        result.refined == [[1, 2], [0]]
        and result.converged
        and result.finished
        and len(evaluator.sets) == 4
    )


def test_a_target_that_is_out_of_reach_ends_with_the_whole_ranking():
    result = last(attribution.shorten(VALUES, Scores(0.1, 0.1, 0.1, 0.1, 0.1, 0.4, 0.1), 0.3))
    assert result.refined == [[0, 1, 2], [0, 1, 3]] and not result.converged and result.finished
    assert result.score == pytest.approx(0.4)


def test_a_ranking_of_nothing_ends_with_no_neurons():
    result = last(attribution.shorten(torch.zeros(TOTAL), Scores(*[0.1] * TOTAL), 0.3))
    assert not any(result.refined) and result.finished and not result.converged


def test_until_the_target_is_reached_there_is_no_result():
    results = attribution.shorten(VALUES, Scores(0.1, 0.3, 0.2, 0.2, 0.1, 0.0, 0.1), 0.35)
    first = next(results)
    assert not first.initial and not first.refined and not first.finished


def test_a_fraction_of_the_largest_is_taken_without_a_search():
    evaluator = Scores(0.1, 0.3, 0.2, 0.2, 0.1, 0.0, 0.1)
    result = last(attribution.take_fraction(VALUES, 0.7, evaluator, 0.35))
    assert result.refined == [[1, 2], [0]] and result.finished and len(evaluator.sets) == 1
    assert result.score == pytest.approx(0.3) and result.converged
    assert not last(attribution.take_fraction(VALUES, 0.9, evaluator, 0.35)).converged


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ([0.0, 0.0, 0.0], 0),
        ([0.0, 2.0, -1.0], 1),
        ([4.0, 1.0], 1),
        ([0.134, 1.0, 0.597, 0.549, 0.02, 0.12, 0.018, 0.017, 0.016, 0.0155], 5),
        ([1.0, 0.2, 0.19, 0.18, 0.17, 0.1, 0.09, 0.08], 1),
        # The last two differ by a factor of a million, among the smaller half.
        ([8.0, 7.0, 1.0, 0.9, 0.8, 0.7, 1e-6, 1e-12], 2),
    ],
)
def test_neurons_before_the_largest_relative_drop_are_counted(values, count):
    values = torch.tensor(values)
    assert attribution.count_before_gap(values) == count
    assert attribution.count_before_gap(values.flip(0) * 1e4) == count


#: The largest drop is behind the second: 7 / 6.5 and 6.5 / 2 of these, in the order 1, 2, 0, 3, 4.
GAP = torch.tensor([2.0, 7.0, 6.5, 1.9, 1.8, 1.7, 1.6])


def test_the_neurons_before_the_gap_are_taken_where_they_reach_the_target():
    """The first alone would do; no neuron is left out."""
    evaluator = Scores(0.1, 0.7, 0.0, 0.1, 0.05, 0.0, 0.05)
    result = last(attribution.take_before_gap(GAP, evaluator, 0.35))
    assert result.refined == result.initial == [[1, 2], []] and len(evaluator.sets) == 1
    assert result.converged and result.finished and result.progress == 1.0
    assert result.score == result.initial_score == pytest.approx(0.3)


def test_more_neurons_follow_where_the_gap_does_not_reach_the_target():
    evaluator = Scores(0.4, 0.2, 0.2, 0.05, 0.05, 0.0, 0.1)
    results = attribution.take_before_gap(GAP, evaluator, 0.35)
    first = next(results)
    assert first.refined == [[1, 2], []] and not first.finished and not first.converged
    result = last(results)
    assert result.converged and result.finished and result.refined == [[0, 1, 2], []]
    assert [step.neurons for step in result.trace] == [2, 1, 2, 4, 3]


def test_the_gap_stays_where_no_prefix_reaches_the_target():
    result = last(attribution.take_before_gap(GAP, Scores(*[0.05] * TOTAL), 0.3))
    assert result.refined == [[1, 2], []] and result.finished and not result.converged
    assert result.score == pytest.approx(0.9) and result.progress == 1.0


def test_a_ranking_of_nothing_has_no_gap():
    result = last(attribution.take_before_gap(torch.zeros(TOTAL), Scores(*[0.1] * TOTAL), 0.3))
    assert not any(result.refined) and result.finished and not result.converged
