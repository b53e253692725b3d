"""The linear part of the patch autoencoder is the principal component analysis of patches,
exactly.
"""

import pytest
import torch
from glassbox.nodes.demo.patch_autoencoder import PATCH, PatchAutoencoder, fit_basis
from sklearn.decomposition import PCA


@pytest.fixture(scope="module")
def images():
    """Correlated images in -1..1: noise blurred over a few pixels."""
    noise = torch.rand(12, 3, 40, 40, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return torch.nn.functional.avg_pool2d(noise, 5, stride=1, padding=2) * 3


def patches(images):
    folded = images.unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH)  # N, 3, rows, columns, 8, 8
    return folded.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(0, 2)


def test_basis_is_orthonormal_and_std_is_that_of_the_latents(images):
    basis, std, _ = fit_basis(images, 10)
    assert torch.allclose(basis.flatten(1) @ basis.flatten(1).T, torch.eye(10), atol=1e-5)
    network = PatchAutoencoder(10)
    network.set_basis(*fit_basis(images, 10))
    latents = network.encode(images)
    assert latents.shape == (12, 10, 5, 5)
    assert torch.allclose(latents.square().mean((0, 2, 3)).sqrt(), torch.ones(10), atol=1e-4)
    assert (std.diff() <= 0).all(), "components come in the order of their variance"


def test_linear_reconstruction_is_that_of_scikit_learn(images):
    network = PatchAutoencoder(10)
    network.set_basis(*fit_basis(images, 10))
    with torch.inference_mode():
        found = patches(network.decode(network.encode(images))).double()
    color = images.mean((0, 2, 3)).repeat_interleave(PATCH**2).double()
    centered = patches(images).double() - color
    # scikit-learn centers every pixel of a patch; ours only the color, so its analysis gets both
    # signs of every patch. Its default solver for this shape is a randomized one without a seed.
    reference = PCA(10, svd_solver="full").fit(torch.cat([centered, -centered]).numpy())
    again = (
        torch.from_numpy(reference.inverse_transform(reference.transform(centered.numpy()))) + color
    )
    assert torch.allclose(found, again, atol=1e-4)


def test_all_components_lose_nothing(images):
    network = PatchAutoencoder(3 * PATCH**2)
    network.set_basis(*fit_basis(images, 3 * PATCH**2))
    with torch.inference_mode():
        assert torch.allclose(network.decode(network.encode(images)), images, atol=1e-3)


def test_refinement_starts_at_zero_and_sees_across_patches(images):
    network = PatchAutoencoder(10)
    network.set_basis(*fit_basis(images, 10))
    latents = network.encode(images)
    assert torch.equal(network.decode(latents), network.expand(latents))
    torch.nn.init.normal_(network.refine[-2].weight)
    moved = latents.clone()
    moved[:, :, 2, 2] += 1
    changed = (network.decode(moved) != network.decode(latents)).any(1)
    assert changed[:, :16].any(), "a cell's neighbors change too"
