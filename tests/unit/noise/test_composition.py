"""Composition Noise: what stays of the Gaussian noise, what follows the guide, and bad guides."""

import pytest
import torch
from glassbox.nodes.noise.composition import (
    SHAPES,
    CompositionSettings,
    band_coordinates,
    compose_noise,
    describe_composition,
    describe_distance,
    guide_rows,
    latent_of_color,
    layout_correlation,
    mask_guide,
    part_means,
    reorder,
)
from scipy import stats

SHAPE = (3, 4, 16, 24)
FULL = CompositionSettings(strength=1.0, cutoff=3.0)


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def halves(height=16, width=24, channels=4):
    """A guide that is bright on the left and dark on the right, the other way round in every other
    channel.
    """
    guide = torch.ones(1, channels, height, width)
    guide[..., width // 2 :] = -1
    return guide * torch.tensor([1.0, -1.0] * (channels // 2))[None, :, None, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_strength_zero_is_bit_equal(dtype):
    noise = gaussian(*SHAPE).to(dtype)
    assert torch.equal(
        compose_noise(CompositionSettings(strength=0.0, cutoff=3.0), noise, halves()), noise
    )


def test_cosines_are_orthonormal_by_scipy():
    from scipy.fft import dctn

    noise = gaussian(1, 1, 8, 8).double()
    everything = CompositionSettings(strength=1.0, cutoff=8.0)
    ours = band_coordinates(everything, noise).flatten().sort().values
    theirs = torch.from_numpy(dctn(noise[0, 0].numpy(), norm="ortho")).flatten().sort().values
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("strength", [0.3, 1.0])
@pytest.mark.parametrize("low", [0.0, 1.0])
def test_the_band_is_a_permutation_and_the_rest_stays(strength, low):
    settings, noise = (
        CompositionSettings(strength=strength, cutoff=3.0, low=low),
        gaussian(*SHAPE).double(),
    )
    composed = compose_noise(settings, noise, halves())
    before, after = (
        band_coordinates(settings, part).flatten(1).sort(dim=1).values for part in (noise, composed)
    )
    torch.testing.assert_close(after, before)
    assert not torch.allclose(composed, noise)
    torch.testing.assert_close(composed.flatten(1).norm(dim=1), noise.flatten(1).norm(dim=1))
    everything = CompositionSettings(strength=1.0, cutoff=100.0)
    outside = band_coordinates(everything, composed) - band_coordinates(everything, noise)
    inside = band_coordinates(settings, composed - noise)
    assert float(outside.abs().gt(1e-9).sum()) == float(inside.abs().gt(1e-9).sum())


@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_marginals_stay_normal(strength):
    """Coordinates of the band over seeds, and pixels of one sample: both N(0, 1) by
    Kolmogorov-Smirnov.
    """
    settings = CompositionSettings(strength=strength, cutoff=3.0)
    noise = gaussian(40, 4, 16, 24, seed=5)
    composed = compose_noise(settings, noise, halves())
    assert (
        stats.kstest(band_coordinates(settings, composed).flatten().numpy(), "norm").pvalue > 0.01
    )
    assert stats.kstest(composed[:4].flatten().numpy(), "norm").pvalue > 0.01
    assert float(composed.norm()) == pytest.approx(float(noise.norm()), rel=1e-6)


def test_the_order_is_the_nearest_permutation():
    """By brute force: of all orders of seven coordinates the chosen one has the least squared
    distance to the guide.
    """
    import itertools

    noise, guide = gaussian(1, 1, 7, seed=1).double(), gaussian(1, 1, 7, seed=2).double()
    chosen = reorder(noise, guide, 1.0).flatten()
    scaled = guide.flatten() / guide.square().mean().sqrt()
    distances = [
        float((noise.flatten()[list(p)] - scaled).square().sum())
        for p in itertools.permutations(range(7))
    ]
    assert float((chosen - scaled).square().sum()) == pytest.approx(min(distances))


def test_the_layout_follows_the_guide_more_with_strength():
    noise, guide = gaussian(*SHAPE), halves() + 0.1 * gaussian(1, 4, 16, 24, seed=9)
    follow = [
        float(
            layout_correlation(
                FULL,
                compose_noise(CompositionSettings(strength=s, cutoff=3.0), noise, guide),
                guide,
            ).mean()
        )
        for s in (0.0, 0.4, 0.7, 1.0)
    ]
    assert abs(follow[0]) < 0.3
    assert follow == sorted(follow) and follow[-1] > 0.5


def test_guides_of_another_size_and_video():
    noise = gaussian(2, 4, 3, 16, 16)
    composed = compose_noise(FULL, noise, halves(40, 24)[:, :, None])
    assert composed.shape == noise.shape and not torch.equal(composed, noise)
    frame = compose_noise(FULL, noise[:, :, 1], halves(40, 24))
    torch.testing.assert_close(composed[:, :, 1], frame)


def test_each_image_depends_on_itself_alone():
    noise = gaussian(*SHAPE)
    torch.testing.assert_close(
        compose_noise(FULL, noise, halves())[1:2], compose_noise(FULL, noise[1:2], halves())
    )


def test_the_report_names_the_band():
    noise = gaussian(*SHAPE)
    text = describe_composition(
        FULL, noise, compose_noise(FULL, noise, halves()), halves(), "the guide"
    )
    assert "Band of 0 to 3 cycles per side" in text and "before" in text


@pytest.mark.parametrize(
    ("noise", "guide", "sentence"),
    [
        (gaussian(1, 4, 8, 8), gaussian(1, 8, 8, 8), "same channels"),
        (gaussian(1, 4, 64), gaussian(1, 4, 64), "height, width"),
        (gaussian(1, 4, 8, 8), torch.zeros(1, 4, 8, 8), "empty in this band"),
        (gaussian(1, 4, 8, 8), torch.full((1, 4, 8, 8), float("nan")), "NaN"),
    ],
)
def test_guides_that_do_not_fit_are_refused(noise, guide, sentence):
    with pytest.raises(ValueError, match=sentence):
        compose_noise(FULL, noise, guide)


def test_an_empty_band_is_refused():
    with pytest.raises(ValueError, match="is empty"):
        CompositionSettings(strength=1.0, cutoff=2.0, low=2.0)


def half_mask(height=32, width=48):
    """White in the left third, gray in one column of the next."""
    mask = torch.zeros(1, height, width)
    mask[..., : width // 3] = 1
    mask[..., width // 3] = 0.5
    return mask


@pytest.mark.parametrize("shape", SHAPES)
def test_a_mask_in_two_colors_is_followed(shape):
    strength, cutoff = SHAPES[shape]
    settings = CompositionSettings(strength=strength, cutoff=cutoff)
    noise = gaussian(*SHAPE)
    guide = mask_guide(
        half_mask(), noise, torch.tensor([2.0, -1, 0, 1]), torch.tensor([-1.0, 1, 0.5, 0])
    )
    composed = compose_noise(settings, noise, guide)
    before, after = (
        float(layout_correlation(settings, one, guide).mean()) for one in (noise, composed)
    )
    assert abs(before) < 0.3 < before + 0.3 < after


def test_the_guide_of_a_mask_has_its_colors_by_area():
    """A latent pixel under half a gray column: its part of white, by hand."""
    guide = mask_guide(
        half_mask(),
        gaussian(*SHAPE),
        torch.tensor([2.0, -1, 0, 1]),
        torch.tensor([-1.0, 1, 0.5, 0]),
    )
    assert guide.shape == (1, 4, 16, 24)
    torch.testing.assert_close(guide[0, 0, 3, 7:10], torch.tensor([2.0, -0.25, -1.0]))


def test_guides_of_masks_fit_video():
    noise = gaussian(2, 4, 3, 16, 24)
    guide = mask_guide(half_mask(), noise, *gaussian(2, 4, seed=4))
    assert guide.shape == (1, 4, 1, 16, 24)
    frame = compose_noise(FULL, noise[:, :, 1], guide[:, :, 0])
    torch.testing.assert_close(compose_noise(FULL, noise, guide)[:, :, 1], frame)


@pytest.mark.parametrize("frames", [(), (3,)])
def test_means_inside_and_outside_by_brute_force(frames):
    latents, mask = gaussian(5, 4, *frames, 16, 24, seed=7), half_mask()
    weights = mask[0].reshape(16, 2, 24, 2).mean(dim=(1, 3)).double()
    every = latents.movedim(1, -1).flatten(0, -4).double()  # (images and frames, H, W, C)
    inside, outside = (
        sum(w[y, x] * every[:, y, x].mean(0) for y in range(16) for x in range(24)) / w.sum()
        for w in (weights, 1 - weights)
    )
    found = part_means(latents, mask)
    torch.testing.assert_close(found[0].double(), inside, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[1].double(), outside, atol=1e-5, rtol=1e-5)


def test_the_latent_of_a_color_is_the_shortest_that_shows_it():
    factors, bias, color = gaussian(7, 3, seed=1), gaussian(3, seed=2), [0.2, -0.5, 0.9]
    latent = latent_of_color(color, factors, bias)
    torch.testing.assert_close(latent @ factors + bias, torch.tensor(color), atol=1e-5, rtol=1e-5)
    shortest = torch.linalg.pinv(factors.T.double()) @ (torch.tensor(color) - bias).double()
    torch.testing.assert_close(latent.double(), shortest, atol=1e-5, rtol=1e-5)


def test_a_mask_without_an_area_is_refused():
    with pytest.raises(ValueError, match="same everywhere"):
        mask_guide(torch.ones(1, 8, 8), gaussian(*SHAPE), *gaussian(2, 4))


def test_a_guide_far_from_images_is_named():
    """Exactly 6 % beyond 3, and 4 %, of values that are small elsewhere."""
    guide = gaussian(1, 4, 10, 10).clamp(-2, 2)
    guide.flatten()[:16] = -3.5
    assert describe_distance(guide) == ""
    guide.flatten()[:24] = -3.5
    assert "6.0% of its latent values" in describe_distance(guide)


def _layouts(count):
    """Guides of one frame each (count, 4, 1, 16, 24), no two alike."""
    return gaussian(count, 4, 1, 16, 24, seed=21)


@pytest.mark.parametrize(
    ("videos", "frames", "guides"), [(3, 5, 3), (4, 3, 2), (2, 2, 2), (3, 2, 1)]
)
def test_each_video_follows_its_own_guide_in_all_its_frames(videos, frames, guides):
    """In closed form at strength 1: frame f of video b holds the sorted numbers of its own noise at
    the ranks of guide b mod M."""
    noise, layouts = gaussian(videos, 4, frames, 16, 24, seed=20), _layouts(guides)
    composed = compose_noise(FULL, noise, layouts)
    for video in range(videos):
        ranks = band_coordinates(FULL, layouts[video % guides][None]).flatten().argsort().argsort()
        for frame in range(frames):
            drawn = band_coordinates(FULL, noise[video : video + 1, :, frame]).flatten()
            found = band_coordinates(FULL, composed[video : video + 1, :, frame]).flatten()
            torch.testing.assert_close(found, drawn.sort().values[ranks], rtol=0, atol=1e-5)
    follow = layout_correlation(FULL, composed, layouts)
    assert len(follow) == videos * frames and follow.min() > 0.9


@pytest.mark.parametrize(("videos", "frames"), [(1, 5), (2, 5)])
def test_as_many_guides_as_frames_follow_one_another_in_time(videos, frames):
    noise, layouts = gaussian(videos, 4, frames, 16, 24, seed=20), _layouts(frames)
    composed = compose_noise(FULL, noise, layouts)
    for frame in range(frames):
        alone = compose_noise(FULL, noise[:, :, frame], layouts[frame : frame + 1, :, 0])
        torch.testing.assert_close(composed[:, :, frame], alone)


def test_guides_that_are_videos_repeat_by_video_and_by_frame():
    shapes = [
        ((4, 4, 3, 8, 8), (2, 4, 3, 8, 8)),
        ((2, 4, 4, 8, 8), (2, 4, 2, 8, 8)),
        ((3, 4, 8, 8), (2, 4, 8, 8)),
    ]
    wanted = [[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5], [0, 1, 0, 1, 2, 3, 2, 3], [0, 1, 0]]
    assert [guide_rows(*pair) for pair in shapes] == wanted
