"""The shipped model beyond its size, stock and through Higher Resolution: captions, and faces that
are repeated.
"""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageColor
from scipy import ndimage

from ..common import host, results
from ..world.faces import SKIN
from ..world.scenes import render
from . import resolution, sampled_images

#: A region of skin: levels by which each channel may differ, pixels of holes that are closed, and
#: its fewest pixels.
_TOLERANCE, _HOLES, _FEWEST = 32, 5, 40
_END_PERCENT = 0.5


def measure(quick: bool) -> dict[str, dict]:
    """At 1.5 and 2 times the trained size: attributes that the judge finds, and images with one
    region of skin.
    """
    generator, network = sampled_images.load()
    sampling = host.pack("nodes.conditioning.noise_rescale_comfy")
    downscaled = host.pack("nodes.conditioning.feature_downscale_comfy").with_downscaled_features
    requested = sampled_images.scenes(5 if quick else 32)
    skins = [scene.face.skin for scene in requested]
    prompts = sampled_images.encoded(generator, sampled_images.texts(requested))
    higher = downscaled(
        generator.model,
        resolution.TRAINED,
        host.pack("nodes.host.evaluate").sigmas_of(generator.model, 0, _END_PERCENT)[1],
    )
    numbers = _control(requested)
    for side, name in ((192, "1.5 times"), (256, "2 times"))[: 1 if quick else None]:
        models = {
            "stock": generator.model,
            "higher resolution": higher,
            "higher resolution and noise": sampling.rescaled(
                higher, side / resolution.TRAINED, sampling.SAMPLER_ONLY
            ),
        }
        stock = None
        for label, model in models.items():
            made = resolution.shrunk(
                sampled_images.generated(generator, prompts, model, side=side, batch=8)
            )
            found = np.stack(
                [sampled_images.obeyed(network, made, requested), _is_one(made, skins)]
            )
            stock = found if stock is None else stock
            for values, before, what, text in zip(
                found, stock, ("captions obeyed", "one face"), _WHAT, strict=True
            ):
                numbers[f"{name}, {label}: {what}"] = results.bootstrap(values, text, "fraction")
                if label != "stock":
                    gain = f"{text}: more than with the stock model, on the same noise and caption"
                    numbers[f"{name}, {label}: {what}, gain"] = results.bootstrap(
                        values - before, gain, "fraction"
                    )
    return numbers


_WHAT = (
    "fraction of requested attributes that the judge finds",
    "fraction of images with one connected region of the requested skin color",
)


def _control(requested: list) -> dict[str, dict]:
    """What the count of regions finds in renders of one face and of two, as large as faces in the
    images.
    """
    renders = [
        np.asarray(Image.fromarray(render(scene)).resize((64, 64), Image.Resampling.BOX))
        for scene in requested
    ]
    skins = [scene.face.skin for scene in requested]
    pairs = [np.concatenate([image, image], axis=1) for image in renders]
    return {
        f"control, {name}: one face": results.bootstrap(
            _is_one(images, skins),
            f"fraction of {name} in which the count finds one region of skin",
            "fraction",
        )
        for name, images in (("renders of one face", renders), ("renders of two faces", pairs))
    }


def _is_one(images, skins: list[str]) -> np.ndarray:
    """For each image 1.0 if it has exactly one region of its skin color, else 0.0."""
    return np.array(
        [float(regions(image, SKIN[skin]) == 1) for image, skin in zip(images, skins, strict=True)]
    )


def regions(image: np.ndarray, color: str) -> int:
    """How many connected regions of a color (hex) an image uint8 (H, W, 3) has, small gaps closed,
    specks left out.
    """
    near = np.abs(image.astype(int) - ImageColor.getrgb(color)).max(-1) < _TOLERANCE
    labels, count = ndimage.label(
        ndimage.binary_closing(np.pad(near, 2 * _HOLES), iterations=_HOLES)
    )
    return int((np.bincount(labels.ravel(), minlength=count + 1)[1:] >= _FEWEST).sum())
