"""Published ways to edit an image, beside what they do on networks whose answer is known."""

import pytest
import torch

from studies.noise import edits

SIGMAS = torch.tensor([8.0, 3.0, 1.0, 0.4, 0.0])


class Constant:
    """A network whose clean latent is the mean of the context, whatever the noised one is."""

    def clean(self, x, sigmas, contexts):
        return contexts.mean(dim=(1, 2)).view(-1, 1, 1, 1).expand_as(x)


def context(value):
    return torch.full((1, 5, 3), value)


def test_own_path_ends_at_the_image_and_rises_by_euler_steps():
    image = torch.randn(1, 2, 4, 6, generator=torch.Generator().manual_seed(2))
    path = edits.own_path(Constant(), image, context(0.2), SIGMAS)
    assert torch.equal(path[-1], image)
    for place in range(len(SIGMAS) - 2):
        low, high = SIGMAS[place + 1], SIGMAS[place]
        expected = path[place + 1] + (high - low) * (path[place + 1] - 0.2) / low
        assert torch.allclose(path[place], expected, atol=1e-5)


def test_null_prompts_lead_back_to_the_image():
    """At the last step CFG gives m_n + g (m_c - m_n), which is .5 for m_n = .47; untrained, .54."""
    image = torch.full((1, 2, 4, 6), 0.5)
    caption, empty = context(0.48), context(0.45)
    path = edits.own_path(Constant(), image, caption, SIGMAS)
    trained = edits.null_prompts(Constant(), path, (caption, empty), SIGMAS, cfg=3.0)
    back = edits.along(Constant(), path[0], caption, trained, sigmas=SIGMAS, cfg=3.0)
    untrained = [empty] * (len(SIGMAS) - 1)
    plain = edits.along(Constant(), path[0], caption, untrained, sigmas=SIGMAS, cfg=3.0)
    assert plain == pytest.approx(torch.full_like(plain, 0.54), abs=1e-5)
    assert (back - image).abs().max() < 0.5 * (plain - image).abs().max()
