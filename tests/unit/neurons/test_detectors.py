"""Detectors beside the score, against their formulas."""

import pytest
import torch
from glassbox.nodes.neurons import detectors, neuron_reports, scan_file
from glassbox.nodes.neurons.detectors import (
    alignment,
    local_norm,
    network_rows,
    score_with_detectors,
    sharpness,
    text_norm,
)
from glassbox.nodes.neurons.memorization_score import score_prompt, seeded_noise

SHAPE = (3, 7, 7)
SIZE = 3 * 7 * 7


def matrix(seed, scale=0.05):
    return scale * torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(seed))


def linear(weight):
    return lambda x: (x.flatten(1) @ weight.to(x).T).view_as(x)


def test_sharpness_of_a_linear_difference_is_the_norm_of_its_square():
    """d(x) = A x: the Jacobian is A, so |J d| = |A A x|."""
    weight, noise = matrix(0), seeded_noise(SHAPE, 4, 1)
    d = linear(weight)
    expected = (noise.flatten(1) @ weight.T @ weight.T).norm(dim=1)
    torch.testing.assert_close(sharpness(noise, d(noise), d), expected, rtol=1e-4, atol=1e-5)


def test_sharpness_is_the_hessian_of_a_gaussian_times_its_score():
    """Of N(m, S) the score is S^-1 (m - x) and the Hessian of its log -S^-1 (the sharpness paper,
    section 3).
    """
    inverse, mean = (
        matrix(1) @ matrix(1).T,
        torch.randn(SIZE, generator=torch.Generator().manual_seed(2)),
    )
    noise = seeded_noise(SHAPE, 2, 3)
    score = lambda x: ((mean - x.flatten(1)) @ inverse).view_as(x)  # noqa: E731
    expected = (score(noise).flatten(1) @ inverse).norm(dim=1)
    torch.testing.assert_close(
        sharpness(noise, score(noise), score), expected, rtol=1e-4, atol=1e-5
    )


def test_sharpness_of_a_curved_difference_agrees_with_forward_mode_derivatives():
    weight, noise = matrix(4), seeded_noise(SHAPE, 3, 5).double()
    d = lambda x: torch.tanh(linear(weight)(x))  # noqa: E731
    _, expected = torch.func.jvp(d, (noise,), (d(noise),))
    torch.testing.assert_close(
        sharpness(noise, d(noise), d), expected.flatten(1).norm(dim=1), rtol=0.01, atol=0.0
    )


def test_no_difference_has_no_sharpness():
    noise = seeded_noise(SHAPE, 2, 1)
    assert sharpness(noise, torch.zeros_like(noise), torch.zeros_like).tolist() == [0, 0]


def test_alignment_is_the_mean_cosine_over_positions():
    a, b = seeded_noise(SHAPE, 2, 1).double(), seeded_noise(SHAPE, 2, 2).double()
    rows = []
    for row in range(2):
        cosines = []
        for y in range(7):
            for x in range(7):
                u, v = a[row, :, y, x], b[row, :, y, x]
                cosines.append(float(u @ v / (u @ u).sqrt() / (v @ v).sqrt()))
        rows.append(sum(cosines) / len(cosines))
    assert alignment(a, b).tolist() == pytest.approx(rows, abs=1e-9)
    assert alignment(a, 3 * a).tolist() == pytest.approx([1, 1]) and alignment(
        a, -a
    ).tolist() == pytest.approx([-1, -1])


class Network:
    """A linear network that counts its rows; the predictions of the two prompts differ by
    timestep.
    """

    def __init__(self):
        self.rows = {True: 0, False: 0}

    def predict(self, has_text):
        def evaluate(x, timestep):
            self.rows[has_text] += len(x)
            return linear(matrix(10 * has_text + timestep))(x)

        return evaluate


def test_a_prompt_with_all_detectors():
    network, noise, seeds = Network(), seeded_noise(SHAPE, 4, 1), 4
    chosen = {"text_norm": True, "sharpness": True, "anisotropy": True}
    with_text, without = network.predict(True), network.predict(False)
    found = score_with_detectors(with_text, without, noise, 961, chosen)
    by_prompt, once = network_rows(chosen, seeds)
    # Those of the empty prompt in pure noise serve all prompts; sharpness asks for it elsewhere.
    assert network.rows == {True: 4 * seeds, False: 4 * seeds} and by_prompt + once == sum(
        network.rows.values()
    )
    d = with_text(noise, 961) - without(noise, 961)
    low = without(noise, detectors.LOW_NOISE_TIMESTEP)
    norm, aligned = (
        text_norm(d),
        alignment(low, with_text(noise, detectors.LOW_NOISE_TIMESTEP) - low),
    )
    assert list(found.detectors) == ["text_norm", "sharpness", "alignment", "anisotropy"]
    assert found.detectors["text_norm"] == pytest.approx(float(norm.mean()))
    assert found.detectors["alignment"] == pytest.approx(float(aligned.mean()))
    assert found.detectors["anisotropy"] == pytest.approx(float(norm.mean() + 2 * aligned.mean()))
    assert found.detectors["sharpness"] > 0
    plain = score_prompt(lambda x: with_text(x, 961), noise)
    assert torch.equal(found.pairs, plain.pairs)


def test_bright_ending_reads_the_steps_of_sampling():
    """Both of its values, at two evaluations of each seed for each step."""
    noise, requested, drawn = seeded_noise(SHAPE, 3, 1), [], torch.Generator().manual_seed(4)
    differences, attention = (
        torch.rand(5, 3, *SHAPE, generator=drawn),
        torch.rand(3, 7, 7, generator=drawn),
    )

    def sampled(steps):
        requested.append(steps)
        return differences, attention

    chosen, network = {"bright_ending_steps": 5}, Network()
    found = score_with_detectors(
        network.predict(True), network.predict(False), noise, 961, chosen, sampled
    )
    expected = {
        "bright_ending": attention.mean(),
        "local_norm": local_norm(differences, attention).mean(),
    }
    assert (
        requested == [5]
        and network.rows[False] == 0
        and network_rows(chosen, 3) == (3 + 2 * 5 * 3, 0)
    )
    assert found.detectors == pytest.approx(
        {name: float(value) for name, value in expected.items()}
    )


def test_without_detectors_the_prompt_alone_is_evaluated():
    network, noise = Network(), seeded_noise(SHAPE, 4, 1)
    found = score_with_detectors(network.predict(True), network.predict(False), noise, 961, {})
    assert network.rows == {True: 4, False: 0} and network_rows({}, 4) == (4, 0)
    assert found.detectors == {}


def test_detectors_in_tables_and_scans():
    network, noise = Network(), seeded_noise(SHAPE, 3, 1)
    chosen = {"sharpness": True, "anisotropy": True}
    found = score_with_detectors(network.predict(True), network.predict(False), noise, 961, chosen)
    again = scan_file.score_from_row(scan_file.score_row(found), 3)
    assert again.detectors == found.detectors and list(again.detectors) == list(found.detectors)
    head, row = neuron_reports.score_table({"a": found}, 0.5).splitlines()
    assert head.startswith(
        "prompt,score,is_memorized,text_norm,sharpness,alignment,anisotropy,seed_0"
    )
    assert row.split(",")[4] == f"{found.detectors['sharpness']:.4f}"
    plain = score_with_detectors(network.predict(True), network.predict(False), noise, 961, {})
    assert neuron_reports.score_table({"a": plain}, 0.5).startswith(
        "prompt,score,is_memorized,text_norm,seed_0"
    )


def test_the_local_norm_is_the_norm_under_the_attention_over_its_mean():
    """Written out: sqrt(sum over channels and positions of (d m)^2) / mean m, mean over the steps
    (2410.21665).
    """
    differences = torch.randn(3, 2, 4, 5, 6, generator=torch.Generator().manual_seed(1))
    attention = torch.rand(2, 5, 6, generator=torch.Generator().manual_seed(2))
    for row in range(2):
        total = 0.0
        for step in range(3):
            squares = sum(
                float(((differences[step, row, c] * attention[row]) ** 2).sum()) for c in range(4)
            )
            total += squares**0.5 / float(attention[row].mean()) / 3
        assert float(local_norm(differences, attention)[row]) == pytest.approx(total, rel=1e-5)


def test_the_local_norm_with_the_same_attention_everywhere_is_the_text_norm():
    differences = torch.randn(1, 2, 4, 5, 6, generator=torch.Generator().manual_seed(1))
    found = local_norm(differences, torch.full((2, 5, 6), 0.125))
    torch.testing.assert_close(found, text_norm(differences[0]))


def test_another_row_is_in_scores_costs_tables_and_scans(monkeypatch):
    """What a new detector needs: a function and a row. Scan files, tables, reports and the cost
    follow.
    """
    row = detectors.Detector(
        ("loudness",), lambda of: of.difference.abs().amax((1, 2, 3)), rows=3, once=2
    )
    monkeypatch.setitem(detectors.DETECTORS, "loudness", row)
    network, noise = Network(), seeded_noise(SHAPE, 3, 1)
    with_text, without = network.predict(True), network.predict(False)
    found = score_with_detectors(with_text, without, noise, 961, {"loudness": True})
    expected = float((with_text(noise, 961) - without(noise, 961)).abs().amax((1, 2, 3)).mean())
    assert found.detectors == {"loudness": pytest.approx(expected)}
    assert network_rows({"loudness": True}, 3) == ((1 + 3) * 3, 2 * 3)
    assert "loudness" in scan_file.score_columns(3)
    assert scan_file.score_from_row(scan_file.score_row(found), 3).detectors == found.detectors
    assert neuron_reports.score_table({"a": found}, 0.5).splitlines()[0].split(",")[4] == "loudness"
    assert f"loudness {expected:.3g}" in neuron_reports.score_report({"a": found}, 0.5, 7)
