"""Replication: the best match over small shifts, zooms and mirroring, by SSIM or by embeddings."""

import numpy as np
import pytest
import torch
from glassbox.nodes.neurons import image_similarity, sscd
from glassbox.nodes.neurons.image_similarity import (
    Remains,
    calibrate_replication,
    compare_images,
    compare_pairs,
    compare_to_reference,
    remains,
)
from safetensors.torch import save_file
from sklearn.datasets import load_sample_images
from torch.nn import functional as F


@pytest.fixture(scope="module")
def photos():
    """Two photos (2, 256, 256, 3) of 0..1."""
    images = torch.from_numpy(np.stack(load_sample_images().images)).float() / 255
    return F.interpolate(
        images.movedim(-1, 1), (256, 256), mode="bilinear", antialias=True
    ).movedim(1, -1)


def moved(image, shift=0, zoom=1.0):
    """An image (1, H, W, 3), shifted to the right by pixels, or with a border cut off and scaled
    back.
    """
    if zoom > 1:
        cut = round(image.shape[1] * (1 - 1 / zoom) / 2)
        part = image[:, cut:-cut, cut:-cut].movedim(-1, 1)
        return F.interpolate(part, image.shape[1:3], mode="bilinear").movedim(1, -1)
    return torch.roll(image, shift, 2)


def embed(images):
    """An embedding that knows nothing of small details: colors of a coarse grid, without the
    mean.
    """
    coarse = F.adaptive_avg_pool2d(images.movedim(-1, 1), 6).flatten(1)
    return coarse - coarse.mean(1, keepdim=True)


@pytest.mark.parametrize("similarity", [None, embed], ids=["SSIM", "embedding"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_slightly_changed_copy_is_a_replica(photos, number, similarity):
    """Pixel SSIM alone gives .36 to .67 for these (a photo against itself, shifted or zoomed)."""
    photo, other = photos[[number]], photos[[1 - number]]
    copies = [photo, moved(photo, 5), moved(photo, -10), moved(photo, zoom=1.1), photo.flip(2)]
    found = compare_images(torch.cat(copies), photo, similarity).to_reference
    strange = compare_images(other, photo, similarity).replication
    assert found[0] == pytest.approx(1, abs=1e-4)
    assert float(found.min()) > max(0.7, strange + 0.2)


def test_two_flat_images_are_separated_by_an_embedding_only():
    """SSIM takes different small objects on white for the same image."""
    flat = torch.ones(2, 256, 256, 3)
    flat[0, 40:60, 40:60], flat[1, 180:210, 150:170] = 0.2, torch.tensor([0.9, 0.1, 0.1])
    assert compare_images(flat[:1], flat[1:]).replication > 0.8
    assert compare_images(flat[:1], flat[1:], embed).replication < 0.5


def test_pairs_and_sameness_use_the_embedding(photos):
    batch = torch.cat([photos, photos])
    found = compare_images(batch, None, embed)
    cosine = float(F.cosine_similarity(*embed(photos), dim=0))
    assert found.between[0, 1] == pytest.approx(cosine, abs=1e-5) and found.between[
        0, 2
    ] == pytest.approx(1, abs=1e-5)
    assert torch.allclose(
        compare_pairs(photos, photos.flip(0), embed), torch.full((2,), cosine), atol=1e-5
    )


def test_the_first_variant_is_the_image_itself(photos):
    variants = image_similarity.transformed(photos[:1])
    assert variants.shape == (22, 256, 256, 3) and torch.equal(variants[:1], photos[:1])
    assert torch.equal(variants[11], photos[0].flip(1))


def test_comparing_stops_between_images(photos):
    """The tracker goes over the images (and over their pairs), and what it raises ends the
    comparison.
    """
    seen = []

    def stopping(items):
        for number, item in enumerate(items):
            if number == 1:
                raise KeyboardInterrupt
            seen.append(number)
            yield item

    for compare in (compare_images, compare_to_reference):
        with pytest.raises(KeyboardInterrupt):
            compare(photos, photos, embed, stopping)
    assert seen == [0, 0, 0]  # the one pair and the first image, then the first image
    assert torch.equal(
        compare_to_reference(photos, photos, embed),
        compare_images(photos, photos, embed).to_reference,
    )


def test_batches_of_different_sizes_are_refused(photos):
    with pytest.raises(ValueError, match="same seed and batch"):
        compare_pairs(photos, photos[:1])
    assert compare_images(photos[:1], None).sameness is None


def test_the_replication_threshold_lies_between_controls_and_untouched_images():
    found = calibrate_replication([0.9, 0.95, 0.8], [0.1, 0.3, 0.2])
    assert found.value == pytest.approx(0.6)
    rate, low, high = found.false_positives
    assert (rate, low) == (0, 0) and high == pytest.approx(0.5615, abs=1e-3)
    with pytest.raises(ValueError, match="three or more"):
        calibrate_replication([0.9, 0.9], [0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="not more similar"):
        calibrate_replication([0.4, 0.5, 0.4], [0.1, 0.2, 0.6])


@pytest.fixture(scope="module")
def state():
    """The state dict of an SSCD network with random weights, with the official names."""
    from tools.launcher.boot import cure_torchvision

    cure_torchvision()
    from torchvision.models import resnet50

    torch.manual_seed(0)
    return {
        f"backbone.{name}": value for name, value in resnet50(num_classes=512).state_dict().items()
    }


def test_sscd_is_a_resnet_with_generalized_mean_pooling(state, tmp_path, photos):
    save_file(state, tmp_path / "sscd.safetensors")
    torch.save(state, tmp_path / "sscd.pt")
    found = [sscd.load_sscd(tmp_path / name)(photos) for name in ("sscd.safetensors", "sscd.pt")]
    assert torch.equal(*found) and torch.allclose(found[0].norm(dim=1), torch.ones(2))
    network = sscd.Sscd(
        {name.removeprefix("backbone."): value for name, value in state.items()}
    ).network
    x = F.interpolate(photos.movedim(-1, 1), (320, 320), mode="bilinear", antialias=True)
    x = (x - torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) / torch.tensor(
        [0.229, 0.224, 0.225]
    ).view(3, 1, 1)
    with torch.inference_mode():
        x = network.maxpool(network.relu(network.bn1(network.conv1(x))))
        x = network.layer4(network.layer3(network.layer2(network.layer1(x))))
        pooled = (x.clamp(min=1e-6) ** 3).mean((2, 3)) ** (1 / 3)
        expected = F.normalize(pooled @ network.fc.weight.T + network.fc.bias)
    assert torch.allclose(found[0], expected, atol=1e-5)


@pytest.mark.parametrize("content", [b"", b"<html>", {"a": torch.zeros(2)}, [1, 2]])
def test_other_files_are_no_sscd_weights(tmp_path, content):
    path = tmp_path / "x.pt"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(ValueError, match="holds no SSCD weights"):
        sscd.load_sscd(path)


def read(images):
    """Labels: which third of the range each channel's mean is in; faces: 1 where an image is not
    dark.
    """
    means = images.mean((1, 2))
    return (means * 3).long(), (means.mean(1) > 0.2).long()


def test_remains_are_the_median_similarity_the_equal_labels_and_the_faces(photos):
    reference = photos[:1]
    batch = torch.cat([reference, photos[1:], torch.zeros_like(reference)])
    found = remains(batch, reference, embed, read)
    each = compare_to_reference(batch, reference, embed)
    assert found.similarity == pytest.approx(float(each.median())) and float(
        each[0]
    ) == pytest.approx(1.0, abs=1e-5)
    equal = sum(int((read(image[None])[0] == read(reference)[0]).sum()) for image in batch)
    assert found.labels == pytest.approx(equal / 9) and 1 / 3 < found.labels < 1
    assert found.faces == pytest.approx(2 / 3)
    assert remains(batch, reference, embed) == Remains(found.similarity)


GENERIC = Remains(0.5, 0.3, 1.0)


@pytest.mark.parametrize(
    ("left", "excess", "verdict"),
    [
        (Remains(0.54, 0.39, 1.0), -0.01, "Gone"),
        (Remains(0.54, 0.92, 1.0), 0.52, "Not gone"),
        (Remains(0.70, 0.31, 0.75), 0.15, "Not gone"),
        (Remains(0.13, 0.25, 0.25), 0.75, "Broken"),
    ],
)
def test_an_image_is_gone_where_a_generic_prompt_has_as_much_of_it(left, excess, verdict):
    assert left.excess(GENERIC) == pytest.approx(excess) and left.verdict(GENERIC).startswith(
        verdict
    )


def test_without_labels_the_similarity_decides():
    assert Remains(0.6).excess(Remains(0.5)) == pytest.approx(0.05)
    assert (
        Remains(0.5).verdict(Remains(0.5)).startswith("Gone")
        and str(Remains(0.5)) == "similarity 0.500"
    )
    assert str(GENERIC) == "similarity 0.500, labels 0.30, one face 1.00"


def test_a_broken_image_is_never_gone_however_little_is_left_of_it():
    for similarity in (-1.0, 0.0, 0.4, 0.9):
        for labels in (0.0, 0.3, 1.0):
            broken = Remains(similarity, labels, 0.49)
            assert broken.end(GENERIC) == image_similarity.BROKEN and broken.excess(GENERIC) > 0.5
    assert Remains(0.5, 0.3, 0.5).end(GENERIC) == image_similarity.GONE
    assert Remains(0.5, 0.3, 0.0).excess(Remains(0.5, 0.3, 0.0)) < 0  # a prompt that shows no face
