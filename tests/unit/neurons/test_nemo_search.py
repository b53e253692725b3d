"""NeMo's search: the trace and the neurons of a plain transcription of the official code,
exactly.
"""

import pytest
import torch
from glassbox.nodes.neurons import memorization_score, nemo_search
from glassbox.nodes.neurons.memorization_score import score_prompt
from glassbox.nodes.neurons.nemo_search import (
    Criterion,
    Evaluator,
    Neurons,
    SearchSettings,
    search,
    select,
)
from toy_neurons import LAYERS, Toy, transcription

THRESHOLDS = {"converges": 0.8, "stalls": 0.05}


def evaluator_of(predict, noise, criterion=Criterion.SAME_SEED):
    return Evaluator(predict, noise, Neurons(LAYERS), criterion)


@pytest.mark.parametrize("case", THRESHOLDS)
@pytest.mark.parametrize("side", [16, 44], ids=["small score", "official score"])
@pytest.mark.parametrize("seed", [0, 3])
def test_a_search_is_the_official_procedure(case, side, seed):
    toy = Toy(side, seed=seed)
    noise, threshold = toy.noise(), THRESHOLDS[case]
    trace, initial, refined = transcription(toy, LAYERS, toy.z, toy.activations, noise, threshold)
    *_, result = search(
        toy.z, toy.activations, evaluator_of(toy, noise), SearchSettings(target_score=threshold)
    )
    assert [(step.theta, step.k, step.listed, step.score) for step in result.trace] == trace
    assert (result.initial, result.refined) == (initial, refined)
    assert result.converged == (case == "converges") and result.finished
    if case == "stalls":
        assert (len(trace), trace[-1][:2]) == (16, (1.25, 15))


def test_the_benchmarks_official_schedule_finds_the_same_neurons_with_over_twice_the_rows():
    from benchmarks.neurons import official

    toy, target = Toy(), THRESHOLDS["converges"]
    evaluator = evaluator_of(toy, toy.noise())
    *_, ours = search(toy.z, toy.activations, evaluator, SearchSettings(target_score=target))
    schedule = official.Schedule(
        toy, toy.noise(), [0, 1, 2, 3], Neurons(LAYERS), memorization_score
    )
    assert official.search(toy.z, toy.activations, schedule, nemo_search, target) == ours.refined
    assert schedule.rows > 2 * evaluator.rows


def test_between_seeds_is_the_score_of_the_masked_network():
    toy, mask = Toy(16), Neurons(LAYERS).mask([[0, 1, 2], [5], []])
    noise = toy.noise(5)
    found = evaluator_of(toy, noise, Criterion.BETWEEN_SEEDS).score(mask)
    factors = Neurons(LAYERS).factors(mask[None])
    assert found == score_prompt(lambda noise: toy(noise, factors), noise).value


def test_a_repeated_set_is_not_evaluated_again():
    toy = Toy(16)
    evaluator, mask = evaluator_of(toy, toy.noise(5)), Neurons(LAYERS).mask([[0], [], []])
    assert evaluator.score(mask) == evaluator.score(mask.clone())
    assert (evaluator.calls, evaluator.rows) == (2, 10)


@pytest.mark.parametrize("criterion", Criterion)
@pytest.mark.parametrize("side", [16, 44], ids=["small score", "official score"])
def test_early_rejection_takes_the_decisions_of_all_seeds_with_fewer_rows(criterion, side):
    """Random sets against a threshold among their scores."""
    toy, generator = Toy(side, seed=1), torch.Generator().manual_seed(0)
    noise = toy.noise(10)
    complete, early = (evaluator_of(toy, noise, criterion) for _ in range(2))
    masks = torch.rand(40, 60, generator=generator) < torch.rand(40, 1, generator=generator) * 0.3
    scores = [complete.score(mask) for mask in masks]
    early.score(masks[0])
    distinct = sorted(
        {round(score, 4) for score in scores}
    )  # sets that differ in dead neurons score alike
    threshold = sum(distinct[5:7]) / 2
    found = [early.score_below(mask, threshold) for mask in masks]
    assert found == [score if score < threshold else None for score in scores]
    assert 0 < sum(value is not None for value in found) < 20
    assert early.rows < 0.9 * complete.rows
    rows = early.rows
    assert [early.score_below(mask, threshold) for mask in masks] == found and early.rows == rows


def test_without_rejections_no_row_is_added():
    """A witness is not tried where it has never rejected."""
    toy, generator = Toy(16), torch.Generator().manual_seed(0)
    evaluator = evaluator_of(toy, toy.noise(10))
    for mask in torch.rand(60, 60, generator=generator) < 0.5:
        evaluator.score_below(mask, 2.0)
    assert evaluator.rows <= 10 * 61 + 20


def test_selection_is_two_sided_and_lists_twice():
    z = [torch.tensor([6.0, -7.0, 0.0, 1.0])]
    assert select(z, [torch.tensor([9.0, 1.0, 8.0, 0.0])], 5.0, 0) == [[0, 1]]
    assert select(z, [torch.tensor([9.0, 1.0, 8.0, 0.0])], 5.0, 80) == [
        [0, 1, 0]
    ]  # a layer of 4 gets k / 80
    wide = [torch.zeros(320)]
    assert len(select(wide, [torch.arange(320.0)], 5.0, 15)[0]) == 15


def test_a_neuron_listed_twice_counts_once():
    neurons = Neurons(LAYERS)
    assert torch.equal(neurons.mask([[3, 5, 3], [], [1]]), neurons.mask([[3, 5], [], [1]]))
    assert neurons.mask([[3, 5, 3], [], [1]]).sum() == 3


def test_a_step_that_misses_the_last_theta_does_not_run_on():
    """The official loop tests whether theta is exactly 1 and would go on to k = 1280."""
    toy = Toy()
    settings = SearchSettings(target_score=0.01, theta_step=0.3)
    *_, result = search(toy.z, toy.activations, evaluator_of(toy, toy.noise()), settings)
    assert len(result.trace) == 14 and not result.converged


def test_a_search_that_is_left_early_has_the_best_so_far():
    toy = Toy()
    *_, whole = search(
        toy.z, toy.activations, evaluator_of(toy, toy.noise()), SearchSettings(target_score=0.05)
    )
    results = search(
        toy.z, toy.activations, evaluator_of(toy, toy.noise()), SearchSettings(target_score=0.05)
    )
    first = next(results)
    assert (first.initial, first.refined, first.finished) == ([], [], False)
    best = next(result for result in results if result.progress > 0.5)
    assert not best.finished and whole.finished
    assert sum(map(len, whole.refined)) < sum(map(len, best.refined)) < sum(map(len, best.initial))
    assert best.score == evaluator_of(toy, toy.noise()).score(Neurons(LAYERS).mask(best.refined))


def test_progress_grows_to_1():
    toy = Toy()
    results = search(
        toy.z, toy.activations, evaluator_of(toy, toy.noise()), SearchSettings(target_score=0.05)
    )
    progress = [result.progress for result in results]
    assert progress == sorted(progress) and progress[0] > 0 and progress[-1] == 1


def test_an_error_in_the_refinement_leaves_the_best_so_far():
    toy, best = Toy(), None

    def predict(noise, factors=None):
        if best is not None and best.progress > 0.5:
            raise KeyboardInterrupt
        return toy(noise, factors)

    with pytest.raises(KeyboardInterrupt):
        for result in search(
            toy.z,
            toy.activations,
            evaluator_of(predict, toy.noise()),
            SearchSettings(target_score=0.05),
        ):
            best = result
    assert 0 < sum(map(len, best.refined)) < sum(map(len, best.initial))


def test_each_row_has_its_own_mask():
    """Factors of each row act on that row alone."""
    toy, neurons = Toy(), Neurons(LAYERS)
    noise = toy.noise(2)
    masks = torch.stack([neurons.mask([[], [], []]), neurons.mask([list(range(24)), [], []])])
    together = toy(noise, neurons.factors(masks))
    assert torch.allclose(together[:1], toy(noise[:1]), atol=1e-5)
    assert torch.allclose(together[1:], toy(noise[1:], neurons.factors(masks[1:])), atol=1e-5)
    assert not torch.allclose(together[1:], toy(noise[1:]), atol=1e-2)


def test_default_settings_are_those_of_the_paper():
    assert SearchSettings() == SearchSettings(
        threshold=0.428,
        target_score=0.428,
        criterion=Criterion.SAME_SEED,
        theta_start=5.0,
        theta_end=1.0,
        theta_step=0.25,
        k_start=0,
    )
    assert list(nemo_search.selection_schedule(SearchSettings()))[-1] == (1.25, 15)
