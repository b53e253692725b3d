"""The directions in which images vary: against scikit-learn, brute force and known mixtures."""

import itertools

import pytest
import torch
from glassbox.nodes.weights import slider_discovery as discovery

#: Embeddings of one image 24 times, with what float32 rounds in a batch.
EQUAL = torch.linspace(-7, 9, 12) + 1e-6 * torch.randn(
    24, 12, generator=torch.Generator().manual_seed(1)
)


def mixture(images=60, channels=7, seed=0):
    """Embeddings float32 that vary along three known orthogonal axes, the first with a long
    tail.
    """
    generator = torch.Generator().manual_seed(seed)
    axes = torch.linalg.qr(torch.randn(channels, channels, generator=generator))[0].T
    tail = torch.rand(images, generator=generator).pow(4) * 9
    second = torch.randn(images, generator=generator) * 1.2
    third = torch.randn(images, generator=generator) * 0.7
    noise = torch.randn(images, channels, generator=generator) * 0.05
    values = torch.outer(tail, axes[0]) + torch.outer(second, axes[1]) + torch.outer(third, axes[2])
    return values + noise + 3.0, axes, (tail, second, third)


def test_directions_are_principal_components():
    from sklearn.decomposition import PCA

    embeddings, _, _ = mixture()
    reference = PCA(3).fit(embeddings.double().numpy())
    scores = torch.from_numpy(reference.transform(embeddings.double().numpy()))
    for number, one in enumerate(discovery.discover(embeddings, 3)):
        assert one.explained == pytest.approx(reference.explained_variance_ratio_[number], rel=1e-6)
        sign = torch.sign(one.scores.double() @ scores[:, number])
        torch.testing.assert_close(one.scores.double(), sign * scores[:, number], rtol=0, atol=1e-4)


def test_the_long_tail_is_the_high_end():
    embeddings, _, (tail, *_) = mixture()
    for turned in (embeddings, -embeddings):
        first = discovery.discover(turned, 1)[0]
        assert torch.corrcoef(torch.stack([first.scores, tail]))[0, 1] > 0.95
        assert tail[first.high].min() > tail[first.low].max()


def test_noise_explains_no_more_than_chance():
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(64, 12, generator=generator)
    assert all(one.explained <= one.by_chance for one in discovery.discover(noise, 3))
    embeddings, _, _ = mixture()
    assert all(one.explained > one.by_chance for one in discovery.discover(embeddings, 2))


@pytest.mark.parametrize("seed", range(3))
def test_pairs_have_the_least_distance_beside_the_direction(seed):
    embeddings, axes, _ = mixture(images=40, seed=seed)
    centered = (embeddings - embeddings.mean(dim=0)).double()
    axis = axes[0].double()
    low, high = discovery.opposite_pairs(centered, axis)
    scores = centered @ axis
    order = scores.argsort().tolist()
    assert sorted(low) == sorted(order[:5]) and sorted(high) == sorted(order[-5:])
    beside = centered - torch.outer(scores, axis)

    def cost(pairs):
        return sum(float((beside[one] - beside[other]).norm()) for one, other in pairs)

    least = min(cost(zip(low, others, strict=True)) for others in itertools.permutations(high))
    assert cost(zip(low, high, strict=True)) == pytest.approx(least, rel=1e-9)


def test_words_name_an_end_by_their_correlation():
    scores = torch.linspace(-1, 2, 64)
    wave = torch.sin(torch.arange(64.0) * 2)
    agreements = {
        "grows": scores + 0.2 * wave,
        "grows less": scores + 2 * wave,
        "falls": -(scores**3),
        "nothing": wave,
        "constant": torch.full((64,), 0.25),
    }
    high, low = discovery.nearest_words(scores, agreements)
    assert (high[0], low[0]) == ("grows", "falls")
    expected = torch.corrcoef(torch.stack([scores, agreements["grows"]]))[0, 1]
    assert high[1] == pytest.approx(float(expected), abs=1e-6)
    rest = {name: agreements[name] for name in ("nothing", "constant")}
    assert discovery.nearest_words(scores, rest) == (("", 0.0), ("", 0.0))
    assert discovery.nearest_words(scores, {}) == (("", 0.0), ("", 0.0))


def test_a_word_of_few_images_has_to_fit_better():
    """Three standard errors of 16 images are .75, of 64 they are less than .4."""
    for count, named in ((16, False), (64, True)):
        scores = torch.linspace(-1, 1, count)
        beside = torch.cos(torch.arange(float(count)) * 3)
        beside = beside - beside.mean() - scores * (beside @ scores) / (scores @ scores)
        fits = scores / scores.norm() * 0.6 + beside / beside.norm() * 0.8
        assert bool(discovery.nearest_words(scores, {"word": fits})[0][0]) == named


def test_each_slider_has_a_name_of_its_own():
    names = [("beard", "shaven"), ("", ""), ("beard", "shaven"), ("", "pale skin")]
    assert discovery.phrases_of(names) == [
        ("beard", "shaven"),
        ("direction 2", ""),
        ("beard 3", "shaven"),
        ("direction 4", "pale skin"),
    ]


@pytest.mark.parametrize(
    ("embeddings", "count", "words"),
    [
        (torch.zeros(15, 4), 1, "There are 15 images"),
        (torch.ones(16, 4), 1, "All images are the same"),
        (EQUAL, 1, "All images are the same"),
        (
            EQUAL.index_fill(0, torch.tensor([4]), torch.nan),
            1,
            "image 5 has NaN",
        ),
        (
            torch.randn(20, 3, generator=torch.Generator().manual_seed(0)),
            4,
            "than the 3 directions",
        ),
    ],
)
def test_what_holds_no_directions_is_one_sentence(embeddings, count, words):
    with pytest.raises(ValueError, match=words):
        discovery.discover(embeddings, count)


def test_the_report_says_what_is_noise():
    embeddings = torch.randn(64, 12, generator=torch.Generator().manual_seed(3))
    directions = discovery.discover(embeddings, 1)
    named = [(("beard", 0.61), ("", 0.0))]
    text = discovery.describe(directions, [("beard", "")], named, remark="No names: connect clip.")
    assert "r +0.61 with beard." in text and "That is noise" in text
    assert text.endswith("No names: connect clip.") and "8 pairs each" in text
