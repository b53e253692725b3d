"""Training loop, result files and similarities that the studies share."""

import json

import numpy as np
import pytest
import torch

from studies.common import results, similarity, training

PLAN = training.Plan(steps=8, learning_rate=0.1, warmup=2, ema_decay=0.5)


def fit(path, plan=PLAN, stop_after: int | None = None):
    """A line through seeded points; stops like a kill when requested to."""
    torch.manual_seed(0)
    network = torch.nn.Linear(1, 1)
    calls = []

    def loss(generator, progress):
        if stop_after is not None and len(calls) == stop_after:
            raise KeyboardInterrupt
        x = torch.randn(16, 1, generator=generator)
        calls.append(progress)
        return (network(x).float() - 2 * x - 1).square().mean()

    return training.train(network, loss, plan, path, every=4), calls


def test_an_interrupted_training_ends_where_a_whole_one_does(tmp_path):
    whole, _ = fit(tmp_path / "whole.pt")
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "stopped.pt", stop_after=6)
    resumed, calls = fit(tmp_path / "stopped.pt")
    assert len(calls) == 4, "it goes on from the checkpoint at step 4"
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name])


def test_the_learning_rate_warms_up_and_falls():
    rates = [training.learning_rate(PLAN, step) for step in range(8)]
    assert rates[0] == pytest.approx(0.5) and max(rates) == rates[1] and rates[-1] < 0.2


def test_muon_moves_matrices_and_convolutions_by_orthogonal_steps():
    generator = torch.Generator().manual_seed(0)
    matrix, convolution = (
        torch.nn.Parameter(torch.zeros(shape)) for shape in ((4, 9), (4, 3, 2, 2))
    )
    optimizer = training.Muon([matrix, convolution], lr=0.1, momentum=0.9)
    for value in (matrix, convolution):
        value.grad = torch.randn(value.shape, generator=generator)
    optimizer.step()
    for value in (matrix, convolution):
        left, _, right = torch.linalg.svd(value.grad.flatten(1).double(), full_matrices=False)
        direction = torch.nn.functional.cosine_similarity(
            value.flatten(), -(left @ right).flatten().float(), dim=0
        )
        assert direction > 0.95, "the first step goes along the gradient's orthogonal part"
        sizes = torch.linalg.svdvals(value.detach().flatten(1))
        assert (sizes > 0.05).all() and (sizes < 0.13).all()


def test_fraction_has_wilsons_interval():
    number = results.fraction(np.array([True] * 8 + [False] * 2), "hits")
    # Wilson's interval of 8 in 10, as statsmodels gives it
    assert (number["low"], number["high"]) == (
        pytest.approx(0.4902, abs=1e-3),
        pytest.approx(0.9433, abs=1e-3),
    )


@pytest.mark.parametrize(
    ("hits", "given"),
    [
        ([True, False, True, True], False),
        ([True, False, True, True, False], True),
        ([True] * 5, True),
    ],
)
def test_an_interval_needs_five_units(hits, given):
    number = results.fraction(np.array(hits), "hits")
    assert ("low" in number, "high" in number) == (given, given) and number["n"] == len(hits)


def test_equal_rows_and_single_numbers_have_no_interval():
    assert "low" not in results.bootstrap(np.ones(24), "equal", "x")
    assert results.number(3, 1, "pieces", "counted") == {
        "value": 3,
        "n": 1,
        "unit": "pieces",
        "what": "counted",
    }


@pytest.mark.parametrize("path", sorted(results.RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_committed_interval_is_one(path):
    """Over at least five units, with some width, around its value."""
    for name, number in json.loads(path.read_text("utf-8"))["numbers"].items():
        assert ("low" in number) == ("high" in number), name
        if "low" in number:
            assert number["n"] >= results.FEWEST and number["low"] < number["high"], name
            assert number["low"] - 1e-9 <= number["value"] <= number["high"] + 1e-9, name


def test_a_stopped_study_goes_on_after_its_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "KEPT", tmp_path)
    made = []

    def measured(settings, units):
        rows = results.Rows("some", settings)
        return rows, [
            rows.row(unit, lambda unit=unit: made.append(unit) or {"value": [len(made)]})
            for unit in units
        ]

    measured({"steps": 2}, "ab")
    rows, found = measured({"steps": 2}, "abc")
    assert made == ["a", "b", "c"] and found == [{"value": [1]}, {"value": [2]}, {"value": [3]}]
    rows.finished()
    measured({"steps": 2}, "a")
    measured({"steps": 3}, "a")
    assert made == ["a", "b", "c", "a", "a"]


def test_a_result_names_its_asset(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    assets = tmp_path / "some-world"
    assets.mkdir()
    (assets / "a.safetensors").write_bytes(b"1")
    space = tmp_path / "space.safetensors"
    space.write_bytes(b"3")
    numbers = {"one": results.bootstrap(np.arange(5.0), "w", "u")}
    path = results.write("x", "python run.py fuzz", 3, (assets, space), numbers)
    content = json.loads(path.read_text())
    assert content["assets"] == {each.name: results.assets_hash(each) for each in (assets, space)}
    assert content["numbers"]["one"]["value"] == 2.0 and content["seed"] == 3
    (assets / "a.safetensors").write_bytes(b"2")
    assert results.assets_hash(assets) != content["assets"]["some-world"]


def test_frechet_distance_of_gaussians():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(40_000, 2))
    b = rng.normal(size=(40_000, 2)) * [2.0, 1.0] + [3.0, 0.0]
    # closed form for diagonal Gaussians: squared shift 9, plus (2 - 1) ** 2
    assert similarity.frechet(a, b) == pytest.approx(10.0, rel=0.02)
    assert similarity.frechet(a, a) == pytest.approx(0.0, abs=1e-6)


def test_frechet_distance_where_covariances_do_not_commute_or_are_singular():
    a, b = np.array([[2.0, 1.0], [0.0, 0.0]]), np.array([[1.0, 0.0], [3.0, 1.0]])
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(50, 2)) @ a, rng.normal(size=(50, 2)) @ b
    root = (
        np.linalg.eigvals(np.cov(a.T) @ np.cov(b.T)).real.clip(0) ** 0.5
    )  # float64, trace of the root of a product
    shift = a.mean(0) - b.mean(0)
    exact = shift @ shift + np.trace(np.cov(a.T) + np.cov(b.T)) - 2 * root.sum()
    assert similarity.frechet(a, b) == pytest.approx(exact, rel=1e-6)


def test_the_memorization_score_knows_the_same_from_the_different():
    generator = torch.Generator().manual_seed(0)
    different = torch.randn(4, 8, 16, 16, generator=generator)
    same = different[:1] + 0.01 * different
    assert (
        similarity.memorization_score(same) > 0.95 > 0.5 > similarity.memorization_score(different)
    )
