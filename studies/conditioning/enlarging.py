"""Higher Resolution beside what else makes a larger image: enlarging a native one, and two passes.

At twice the trained size, on the first scenes of the other parts: the stock model, the node,
a native image enlarged (Lanczos), and that image through half of the run again (image to image at a
denoise of .5, the usual second pass). The judge reads faces of the trained size only (control: the
same renders with smaller faces), so captions are read in a window of the trained size around the
face, of ways with large faces in the image at the trained size. One face is one region of skin, as
in `higher`, where faces are about 64 pixels high. Sharpness is the mean size of the Laplacian.
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image, ImageColor
from scipy import ndimage

from ..common import host, results
from ..world.faces import SKIN
from ..world.scenes import render
from . import higher, resolution, sampled_images

SIDE, COUNT, DENOISE = 2 * resolution.TRAINED, 12, 0.5
#: Of the run, as the node has it by default.
_END_PERCENT = 0.5
#: Ways whose faces are as large in the image as those of a native one.
_LARGE_FACES = ("enlarged", "two passes")
#: Sides of the renders that the control puts into an image of the trained size.
_CONTROLS = (128, 96, 80, 64)
#: Levels by which skin may differ in each channel.
_TOLERANCE = 32
WHAT = {
    "captions obeyed": (
        "fraction of requested attributes that the judge finds in a face of the trained size",
        "fraction",
    ),
    "one face": (
        "fraction of images with one connected region of the requested skin color",
        "fraction",
    ),
    "sharpness": ("mean size of the Laplacian of the large image, of 255 levels", "levels"),
}


def measure(quick: bool) -> dict[str, dict]:
    """Each way's images, and its gain over plain enlargement on the same captions."""
    generator, network = sampled_images.load()
    downscaled = host.pack("nodes.conditioning.feature_downscale_comfy").with_downscaled_features
    sigma = host.pack("nodes.host.evaluate").sigmas_of(generator.model, 0, _END_PERCENT)[1]
    node = downscaled(generator.model, resolution.TRAINED, sigma)
    requested = sampled_images.scenes(5 if quick else COUNT)
    prompts = sampled_images.encoded(generator, sampled_images.texts(requested))
    enlarged = enlarge(sampled_images.generated(generator, prompts))
    images = {
        "enlarged": enlarged,
        "two passes": second_pass(generator, prompts, enlarged),
        "higher resolution": sampled_images.generated(generator, prompts, node, SIDE, batch=4),
        "stock": sampled_images.generated(generator, prompts, side=SIDE, batch=4),
    }
    skins = [scene.face.skin for scene in requested]
    renders = [render(scene) for scene in requested]
    numbers = _control(network, requested, renders)
    of_enlarged: dict[str, np.ndarray] = {}
    for way, made in images.items():
        small = resolution.shrunk(made)
        large = way in _LARGE_FACES
        faces = small if large else around_faces(made, renders, skins)
        values = {
            "captions obeyed": sampled_images.obeyed(network, faces, requested),
            "one face": higher._is_one(halved(small) if large else small, skins),
            "sharpness": sharpness(made),
        }
        of_enlarged = of_enlarged or values
        for what, (about, unit) in WHAT.items():
            numbers[f"{way}: {what}"] = results.bootstrap(values[what], about, unit)
            if way != "enlarged":
                numbers[f"{way} less enlarged: {what}"] = results.bootstrap(
                    values[what] - of_enlarged[what], f"{about}; paired by caption", unit
                )
    return numbers


def _control(network, requested: list, renders: list[np.ndarray]) -> dict[str, dict]:
    """What the judge reads in renders whose faces are smaller than those that it was trained on."""
    numbers = {}
    for side in _CONTROLS:
        images = np.stack([smaller(image, side) for image in renders])
        numbers[f"control, renders at {side} of {resolution.TRAINED} pixels: captions obeyed"] = (
            results.bootstrap(
                sampled_images.obeyed(network, images, requested),
                "fraction of the attributes of a render that the judge finds",
                "fraction",
            )
        )
    return numbers


def smaller(image: np.ndarray, side: int) -> np.ndarray:
    """An image uint8 (H, H, 3) at ``side`` pixels, on the lower edge of its ground."""
    height = len(image)
    found = np.tile(image[2:3, 2:3], (height, height, 1))
    left = (height - side) // 2
    shrunk = Image.fromarray(image).resize((side, side), Image.Resampling.BOX)
    found[height - side :, left : left + side] = np.asarray(shrunk)
    return found


def around_faces(images: np.ndarray, renders: list[np.ndarray], skins: list[str]) -> np.ndarray:
    """A window of the trained size from each image uint8 (N, H, W, 3), in which the largest region
    of skin stands where it does in the render; edges are repeated.
    """
    side = resolution.TRAINED
    windows = []
    for image, truth, skin in zip(images, renders, skins, strict=True):
        top, left = np.round(skin_center(image, SKIN[skin]) - skin_center(truth, SKIN[skin]))
        wide = np.pad(image, ((side, side), (side, side), (0, 0)), mode="edge")
        first = int(np.clip(top + side, 0, len(wide) - side))
        second = int(np.clip(left + side, 0, wide.shape[1] - side))
        windows.append(wide[first : first + side, second : second + side])
    return np.stack(windows)


def skin_center(image: np.ndarray, color: str) -> np.ndarray:
    """Row and column of the middle of the largest region of a color (hex); of the image where it
    has none.
    """
    near = np.abs(image.astype(int) - ImageColor.getrgb(color)).max(-1) < _TOLERANCE
    labels, count = ndimage.label(near)
    if not count:
        return (np.array(image.shape[:2]) - 1) / 2
    largest = int(np.bincount(labels.ravel())[1:].argmax()) + 1
    return np.argwhere(labels == largest).mean(0)


def halved(images: np.ndarray) -> np.ndarray:
    """Images uint8 (N, side, side, 3) at half their side, by averaging."""
    count, side = images.shape[:2]
    pooled = images.reshape(count, side // 2, 2, side // 2, 2, 3).astype(np.float64).mean((2, 4))
    return pooled.round().astype(np.uint8)


def enlarge(images: np.ndarray) -> np.ndarray:
    """Images uint8 (N, side, side, 3) at ``SIDE`` pixels, by Lanczos."""
    size = (SIDE, SIDE)
    return np.stack(
        [np.asarray(Image.fromarray(one).resize(size, Image.Resampling.LANCZOS)) for one in images]
    )


@torch.inference_mode()
def second_pass(generator, prompts: list[torch.Tensor], images: np.ndarray) -> np.ndarray:
    """Image to image over ``DENOISE`` of the run, uint8 (N, side, side, 3)."""
    import comfy.sample

    latent = generator.vae.encode(torch.from_numpy(images).float() / 255)
    nothing = sampled_images.encoded(generator, [""])[0]
    made = []
    for number, (rows, start) in enumerate(zip(prompts, latent.split(1), strict=True)):
        noise = comfy.sample.prepare_noise(start, sampled_images.SEED + number)
        done = comfy.sample.sample(
            generator.model,
            noise,
            sampled_images.STEPS,
            sampled_images.CFG,
            "euler",
            "normal",
            [[rows, {}]],
            [[nothing, {}]],
            start,
            denoise=DENOISE,
            disable_pbar=True,
            seed=sampled_images.SEED,
        )
        made.append((generator.vae.decode(done) * 255).round().to(torch.uint8).numpy())
    return np.concatenate(made)


def sharpness(images: np.ndarray) -> np.ndarray:
    """The mean size of the Laplacian of each image's brightness, (N,), in levels."""
    gray = images.astype(np.float64).mean(-1)
    inner = gray[:, 1:-1, 1:-1]
    around = gray[:, :-2, 1:-1] + gray[:, 2:, 1:-1] + gray[:, 1:-1, :-2] + gray[:, 1:-1, 2:]
    return np.abs(around - 4 * inner).mean((1, 2))
