"""The three measures on features of which the answer is known, and word positions."""

import pytest
import torch
from glassbox.nodes.activations import id_chart, quality, token_heatmap


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("signal", "noise", "fraction"), [(1.0, 1.0, 0.5), (3.0, 1.0, 0.1), (0.0, 1.0, 1.0)]
)
def test_the_noise_fraction_is_that_of_the_variances(signal, noise, fraction):
    images, sums = drawn(20, 8, 12, 12) * signal, quality.NoiseStatistics()
    for draw in range(6):
        sums.add(images + drawn(20, 8, 12, 12, seed=draw + 1) * noise)
    found = sums.noise_fraction()
    assert found == pytest.approx(
        fraction, abs=0.02 if signal else 0.11
    )  # with no signal the estimate is clamped at 0


def test_the_noise_fraction_is_one_less_the_intraclass_correlation():
    """Against the mean squares of a one-way analysis of variance, at one position."""
    values, sums = drawn(5, 4, seed=3) + drawn(5, 1, seed=4), quality.NoiseStatistics()
    for draw in values.T:
        sums.add(draw.view(5, 1, 1, 1))
    within = values.double().var(1).mean()
    between = 4 * values.double().mean(1).var()
    correlation = (between - within) / (between + 3 * within)
    assert sums.noise_fraction() == pytest.approx(1 - float(correlation), abs=1e-9)


def test_granularity_orders_coarse_to_fine():
    noise = drawn(2, 4, 32, 32)
    smooth = torch.nn.functional.avg_pool2d(noise, 5, 1, 2)
    checks = (torch.arange(32)[:, None] + torch.arange(32)) % 2 * torch.ones(1, 1, 32, 32)
    assert quality.granularity(torch.ones(1, 2, 8, 8)) == 0
    assert (
        quality.granularity(smooth)
        < 0.3
        < quality.granularity(noise)
        == pytest.approx(0.54, abs=0.02)
    )
    assert quality.granularity(checks) == pytest.approx(1.0)


def test_locality_is_nearness_beyond_the_images_own():
    axis = torch.linspace(0, 1, 16)
    ramp = torch.stack(torch.meshgrid(axis, axis, indexing="ij"))[None]
    positions = torch.cat([torch.cos(3 * ramp), torch.sin(3 * ramp)], 1)
    flat = drawn(1, 4, 16, 16)
    assert quality.locality(positions, flat) > 0.8
    assert abs(quality.locality(positions, positions)) < 1e-6
    assert abs(quality.locality(drawn(1, 8, 16, 16, seed=1), flat)) < 0.05
    larger = torch.nn.functional.interpolate(positions, size=(32, 32))
    assert quality.locality(positions, larger) == pytest.approx(0, abs=0.01)


def test_the_table_and_the_figure():
    figure = pytest.importorskip("matplotlib.figure").Figure()
    found = {
        "a-out": quality.Quality(0.1, 0.2, 0.3),
        "longer-name-out": quality.Quality(0.4, 0.5, -0.6),
    }
    lines = quality.table(found, {"a-out"}).splitlines()
    assert lines[1].endswith("kept") and lines[2].split() == [
        "longer-name-out",
        "0.400",
        "0.500",
        "-0.600",
    ]
    quality.draw_chart(figure, found, {"a-out"}, "title")
    assert len(figure.axes) == 3 and id_chart.chart_width(10_000) == id_chart.chart_width(200)


def test_tables_of_activations_in_pieces_are_one_table():
    found = {f"{'x' * n}-out": quality.Quality(n / 10, n / 9, -n / 8) for n in range(1, 7)}
    whole = quality.table(found, {"x-out", "xxxx-out"})
    names = list(found)
    parts = [
        quality.table({n: found[n] for n in part}, {"x-out", "xxxx-out"})
        for part in (names[:1], names[1:5], names[5:])
    ]
    assert quality.merge_tables(parts) == whole
    for wrong in ([parts[0], parts[0]], ["ID"], ["something else"], []):
        with pytest.raises(ValueError, match=r"measure quality|Measure each"):
            quality.merge_tables(wrong)


def test_repeated_texts_are_folded():
    attention = drawn(2, 6, 4, 4).abs()
    found = token_heatmap.heat_map(attention, [1], 3)
    assert torch.allclose(found, attention[:, 1] + attention[:, 4])
    with pytest.raises(ValueError, match="The prompt has 4 tokens and the attention 6"):
        token_heatmap.heat_map(attention, [1], 4)
