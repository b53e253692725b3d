"""The icon and the banner of the ComfyUI registry: `python -P tools/registry_images.py` draws
docs/registry/*.png.

A glass cube with five layers inside, one for each family of nodes.
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "registry"
_SCALE = 4  # drawn larger and reduced, for smooth edges
_BACKGROUND, _EDGE = (24, 27, 34), (205, 228, 240)
_LAYERS = [(86, 156, 214), (106, 190, 130), (232, 194, 92), (226, 132, 92), (192, 118, 190)]
_HALF_WIDTH, _HALF_DEPTH, _HEIGHT = 0.36, 0.19, 0.40  # of the cube, in units of the icon's side


def cube(side: int) -> Image.Image:
    """The glass cube on a transparent square."""
    image = Image.new("RGBA", (side, side))

    def face(points: list[tuple[float, float]], fill: tuple[int, ...], edge: int) -> None:
        layer = Image.new("RGBA", image.size)
        scaled = [((0.5 + x) * side, (0.5 + y) * side) for x, y in points]
        draw = ImageDraw.Draw(layer)
        draw.polygon(scaled, fill=fill)
        draw.line([*scaled, scaled[0]], fill=(*_EDGE, edge), width=side // 90, joint="curve")
        image.alpha_composite(layer)

    def slab(height: float, scale: float) -> list[tuple[float, float]]:
        width, depth = _HALF_WIDTH * scale, _HALF_DEPTH * scale
        return [(0, height - depth), (width, height), (0, height + depth), (-width, height)]

    top, bottom = slab(-_HEIGHT / 2, 1), slab(_HEIGHT / 2, 1)
    face(bottom, (255, 255, 255, 14), 110)
    for number, color in enumerate(_LAYERS):
        face(slab(_HEIGHT * (0.38 - 0.19 * number), 0.74), (*color, 205), 60)
    face([top[3], top[2], bottom[2], bottom[3]], (190, 225, 245, 34), 230)
    face([top[1], top[2], bottom[2], bottom[1]], (190, 225, 245, 20), 230)
    face(top, (215, 238, 250, 44), 230)
    return image


def icon(side: int = 400) -> Image.Image:
    """A square with round corners."""
    large = side * _SCALE
    image = Image.new("RGBA", (large, large))
    ImageDraw.Draw(image).rounded_rectangle(
        (0, 0, large - 1, large - 1), large // 6, fill=_BACKGROUND
    )
    image.alpha_composite(cube(large))
    return image.resize((side, side), Image.Resampling.LANCZOS)


def banner(width: int = 1260, height: int = 540) -> Image.Image:
    """The cube beside the name and the five families, at 21:9."""
    image = Image.new("RGBA", (width, height), _BACKGROUND)
    image.alpha_composite(
        cube(height * _SCALE).resize((height, height), Image.Resampling.LANCZOS), (40, 0)
    )
    draw = ImageDraw.Draw(image)
    draw.text((height + 90, 170), "Glassbox", _EDGE, ImageFont.load_default(104))
    names = ("weights", "activations", "conditioning", "noise", "neurons")
    left, font = height + 96, ImageFont.load_default(24)
    for name, color in zip(names, _LAYERS, strict=True):
        draw.text((left, 320), name, color, font)
        left += draw.textlength(name, font) + 18
    return image.convert("RGB")


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    icon().save(FOLDER / "icon.png", optimize=True)
    banner().save(FOLDER / "banner.png", optimize=True)
