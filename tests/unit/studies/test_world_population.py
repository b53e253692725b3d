"""Labels explain coefficients that they made, and permuted labels do not."""

import numpy as np
import torch

from studies.world import population


def test_labels_explain_the_coefficients_that_they_made():
    rng = np.random.default_rng(0)
    labels = np.eye(5)[rng.integers(5, size=300)]
    scores = labels @ rng.normal(size=(5, 8)) + 0.5 * rng.normal(size=(300, 8))
    fraction = np.square(
        labels @ np.linalg.lstsq(labels, scores, rcond=None)[0] - scores.mean(0)
    ).sum()
    fraction /= np.square(scores - scores.mean(0)).sum()
    assert abs(population.explained(labels, scores) - fraction) < 0.03
    assert population.explained(rng.permutation(labels), scores) < 0.02


def test_coefficients_are_principal_components():
    generator = torch.Generator().manual_seed(0)
    flat = (
        torch.randn(40, 6, generator=generator) * torch.tensor([5.0, 3.0, 1.0, 0.1, 0.1, 0.1]) + 7
    )
    scores = population.coefficients(flat, 3)
    values = torch.linalg.eigvalsh(torch.cov(flat.double().T)).flip(0)[:3]
    assert np.allclose(scores.var(axis=0, ddof=1), (values / values[0]).numpy(), rtol=1e-6)
    assert np.allclose(scores.T @ scores, np.diag(np.diag(scores.T @ scores)), atol=1e-9)
