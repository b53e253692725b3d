"""The search: the trace and the neurons of a plain transcription of the official rules, exactly."""

import itertools

import pytest
import torch
from glassbox.nodes.neurons import localization, speculation, words
from glassbox.nodes.neurons.evaluation import BETWEEN_SEEDS, SAME_SEED, Evaluator, Neurons
from glassbox.nodes.neurons.localization import Settings, search, select
from toy_neurons import LAYERS, Toy, transcription

THRESHOLDS = {"converges": 0.8, "stalls": 0.05}


def found(toy, noise, threshold, refiner, criterion=SAME_SEED, **more):
    evaluator = Evaluator(toy, noise, Neurons(LAYERS), 0.0, criterion)
    return search(toy.z, toy.activations, evaluator, Settings(threshold), refiner, **more), evaluator


@pytest.mark.parametrize("case", THRESHOLDS)
@pytest.mark.parametrize("side", [16, 44], ids=["small score", "official score"])
@pytest.mark.parametrize("seed", [0, 3])
def test_exact_mode_is_the_official_procedure(case, side, seed):
    toy = Toy(side, seed=seed)
    noise, threshold = toy.noise(), THRESHOLDS[case]
    trace, initial, kept = transcription(toy, LAYERS, toy.z, toy.activations, noise, threshold)
    result, _ = found(toy, noise, threshold, localization.refine)
    assert [(look.theta, look.k, look.listed, look.score) for look in result.trace] == trace
    assert (result.initial, result.refined) == (initial, kept)
    assert result.converged == (case == "converges")
    if case == "stalls":
        assert (len(trace), trace[-1][:2]) == (16, (1.25, 15))


@pytest.mark.parametrize("criterion", [SAME_SEED, BETWEEN_SEEDS])
@pytest.mark.parametrize("case", THRESHOLDS)
def test_fast_mode_finds_the_same_neurons_with_less(criterion, case):
    rows = {localization: 0, speculation: 0}
    for seed in range(6):
        toy, found_by = Toy(16, seed=seed), {}
        for mode in (localization, speculation):
            found_by[mode], evaluator = found(toy, toy.noise(6), THRESHOLDS[case], mode.refine, criterion)
            rows[mode] += evaluator.rows
        exact, fast = found_by.values()
        assert (fast.initial, fast.refined, fast.converged) == (exact.initial, exact.refined, exact.converged)
        assert fast.score == pytest.approx(exact.score, abs=1e-6)
    assert criterion == BETWEEN_SEEDS or rows[speculation] < rows[localization]


@pytest.mark.parametrize("seed", [4, 5])
def test_a_seed_that_objects_for_a_moment_is_heard(seed, monkeypatch):
    """One that did not lead passes the threshold between two looks at all; unheard, another neuron is kept."""
    toy = Toy(16, seed=seed)
    exact, fast = (found(toy, toy.noise(10), 0.3, mode.refine)[0] for mode in (localization, speculation))
    assert fast.refined == exact.refined
    monkeypatch.setattr(speculation._Search, "_objected", lambda *_: [])
    deaf = found(toy, toy.noise(10), 0.3, speculation.refine)[0]
    assert deaf.refined != exact.refined and deaf.initial == exact.initial
    assert max(deaf.score, exact.score) < 0.3  # what is left blocks all the same


def test_guesses_do_not_change_decisions():
    """A search that guesses wrong all the time still decides as the rule does."""
    toy = Toy(16, seed=1)
    exact, _ = found(toy, toy.noise(6), THRESHOLDS["stalls"], localization.refine)

    class Contrary(speculation._Guesses):
        def may_go(self, unit, value):
            return not super().may_go(unit, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speculation, "_Guesses", Contrary)
        fast, _ = found(toy, toy.noise(6), THRESHOLDS["stalls"], speculation.refine)
    assert fast.refined == exact.refined


def test_fast_mode_with_the_official_score():
    toy = Toy(44, seed=2)
    noise = toy.noise(5)
    exact, slow = found(toy, noise, 0.3, localization.refine)
    fast, quick = found(toy, noise, 0.3, speculation.refine)
    assert fast.refined == exact.refined
    assert quick.rows < slow.rows


def test_selection_counts_both_sides_and_lists_twice():
    z = [torch.tensor([6.0, -7.0, 0.0, 1.0])]
    assert select(z, [torch.tensor([9.0, 1.0, 8.0, 0.0])], 5.0, 0) == [[0, 1]]
    assert select(z, [torch.tensor([9.0, 1.0, 8.0, 0.0])], 5.0, 80) == [[0, 1, 0]]  # a layer of 4 gets k / 80
    wide = [torch.zeros(320)]
    assert len(select(wide, [torch.arange(320.0)], 5.0, 15)[0]) == 15


def test_a_neuron_listed_twice_counts_once():
    neurons = Neurons(LAYERS)
    assert torch.equal(neurons.mask([[3, 5, 3], [], [1]]), neurons.mask([[3, 5], [], [1]]))
    assert neurons.mask([[3, 5, 3], [], [1]]).sum() == 3


def test_a_step_that_misses_the_last_theta_does_not_run_on():
    """The official loop asks whether theta is exactly 1 and would go on to k = 1280."""
    toy = Toy()
    evaluator = Evaluator(toy, toy.noise(), Neurons(LAYERS), 0.0, SAME_SEED)
    result = search(toy.z, toy.activations, evaluator, Settings(0.01, theta_step=0.3))
    assert len(result.trace) == 14 and not result.converged


@pytest.mark.parametrize("refiner", [localization.refine, speculation.refine])
def test_when_the_time_is_up_the_best_so_far_is_kept(refiner):
    toy, calls = Toy(), itertools.count()

    def checkpoint(_share):
        if next(calls) > 20:
            raise localization.OutOfTimeError

    result, _ = found(toy, toy.noise(), 0.05, refiner, checkpoint=checkpoint)
    whole, _ = found(toy, toy.noise(), 0.05, refiner)
    assert not result.finished and whole.finished
    assert sum(map(len, whole.refined)) < sum(map(len, result.refined)) <= sum(map(len, result.initial))
    first, _ = found(toy, toy.noise(), 0.05, refiner, checkpoint=lambda _share: (_ for _ in ()).throw(
        localization.OutOfTimeError))  # fmt: skip
    assert first.refined == [] and not first.finished
    assert words.search_report("a cat", first, 0.05, "").startswith("a cat: the time was up in the selection")


class Beginning(Toy):
    """A toy that can begin at a layer: what is before it stays as in the call that it remembers."""

    def remember(self, noise, factors, paths):
        self.before, self.remembered, self.began = noise, factors, []

    def beginning_at(self, path, rows, factors):
        self.began.append(path)
        first = [layer.path for layer in LAYERS].index(path)
        early = {layer.path: self.remembered[layer.path][rows] for layer in LAYERS[:first]
                 if layer.path in self.remembered}  # fmt: skip
        late = {layer.path: factors[layer.path] for layer in LAYERS[first:] if layer.path in factors}
        return self(self.before[rows], early | late)


@pytest.mark.parametrize(
    ("sets", "begins"),
    [
        ([[[], [3], [1]], [[0], [], [1]]], 0),  # a neuron of the first layer comes back in one set
        ([[[0], [], [1]], [[0], [3, 5], [1]]], 1),  # one comes back, one more is silenced
        ([[[0], [3], []]], 2),
        ([[[0], [3], [1, 2]]], 2),
        ([[[], [3], [1, 2]]], 0),  # back in the first layer, silenced in the last
    ],
)
def test_sets_begin_at_the_first_layer_in_which_one_differs(sets, begins):
    """Neurons that come back count as much as neurons that are silenced."""
    toy, neurons = Beginning(), Neurons(LAYERS)
    evaluator = Evaluator(toy, toy.noise(3), neurons, 0.0, SAME_SEED)
    evaluator.begin_with(neurons.mask([[0], [3], [1]]))
    masks = [neurons.mask(chosen) for chosen in sets]
    bounds = list(evaluator.lower_bounds(masks))
    assert toy.began == [LAYERS[begins].path]
    assert bounds == pytest.approx([evaluator.exact(mask) for mask in masks], abs=1e-6)


@pytest.mark.parametrize("refiner", [localization.refine, speculation.refine])
def test_the_share_that_is_done_grows_to_1(refiner):
    shares, toy = [], Toy()
    found(toy, toy.noise(), 0.05, refiner, checkpoint=shares.append)
    assert shares[0] == 0 and shares[-1] == pytest.approx(1) and shares == sorted(shares)


@pytest.mark.parametrize("refiner", [localization.refine, speculation.refine])
def test_who_stops_a_refinement_gets_the_best_so_far(refiner):
    class Stopping(Toy):
        share = 0.0

        def __call__(self, noise, factors=None):
            share, self.share = self.share, 0.0
            if share > 0.35:
                raise KeyboardInterrupt
            return super().__call__(noise, factors)

    def run(**more):
        toy = Stopping()
        return found(toy, toy.noise(), 0.05, refiner, checkpoint=lambda share: setattr(toy, "share", share), **more)[0]

    best = run(stops=(KeyboardInterrupt,))
    assert best.stopped and not best.finished and sum(map(len, best.refined)) > 0
    with pytest.raises(KeyboardInterrupt):
        run()


def test_each_row_has_its_own_mask():
    toy, neurons = Toy(), Neurons(LAYERS)
    noise = toy.noise(2)
    evaluator = Evaluator(toy, noise, neurons, 0.0, SAME_SEED)
    masks = [neurons.mask([[], [], []]), neurons.mask([list(range(24)), [], []])]
    evaluator.exact(masks[0])
    bounds = list(evaluator.lower_bounds(masks))
    assert bounds[0] == pytest.approx(1, abs=1e-6) and bounds[1] < 0.99
    assert bounds[1] <= evaluator.exact(masks[1]) + 1e-6
