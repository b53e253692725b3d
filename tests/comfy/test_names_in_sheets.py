"""Sheets of images, as the nodes make them: each name stands at its own image.

Every image has one shade of gray, from which it is known again.
"""

import figures
import numpy as np
import pytest
import torch


@pytest.fixture
def sheets(app, monkeypatch):
    """What the nodes of a module draw, read off before it becomes an image."""
    image_output = app.module("nodes.host.image_output")
    to_image = image_output.to_image

    def of(module):
        drawn = []

        def read(figure):
            drawn.append(figures.read(figure))
            return to_image(figure)

        monkeypatch.setattr(module, "to_image", read)
        return drawn

    return of


def gray(shade, side=16):
    return torch.full((1, side, side, 3), float(shade))


def shade(panel, column=0):
    """Of the image of a panel, rounded to a hundredth; ``column``: from the left, in pixels."""
    return round(float(np.asarray(panel.images[0])[0, column, 0]), 2)


def test_size_sheet(app, monkeypatch, sheets):
    """Columns are multiples of the image's own size; the gated row is below."""
    module = app.module("nodes.conditioning.nodes_size_sheet")
    drawn = sheets(module)
    model, clip, vae = app.run("GBX_LoadDemoModel", weights="avatars-v2")

    def sample(patcher, vae, positive, negative, shape, count, seed, **how):
        gated = 0.5 if patcher is not model else 0.0
        return gray(gated + positive[0][1]["width"] / 1000)

    monkeypatch.setattr(module, "sample_images", sample)
    text = app.run("CLIPTextEncode", clip=clip, text="portrait")[0]
    given = {"field": "original_size", "values": "2, 0.25, 1", "gate_exponent": 2.0}
    app.run(
        "GBX_SizeSheet",
        model=model,
        positive=text,
        negative=text,
        vae=vae,
        latent={"samples": torch.zeros(1, 24, 16, 24)},
        apply_to="both",
        seed=3,
        steps=1,
        cfg=2.0,
        **given,
    )
    (sheet,) = drawn
    assert sheet.title == "original_size, 192 x 128 pixels, seed 3"
    named = {(panel.title, panel.ylabel): shade(panel) for panel in sheet.panels}
    assert named == {
        ("2 x", "stock"): 0.38,
        ("0.25 x", ""): 0.05,
        ("1 x", ""): 0.19,
        ("", "gated"): 0.88,
        ("", ""): 0.69,  # of two panels the last: 1 x, gated
    }
    assert [shade(panel) for panel in sheet.panels] == [0.38, 0.05, 0.19, 0.88, 0.55, 0.69]


def test_seed_scout(app, monkeypatch, sheets):
    """The best is first, each under its own seed; of three two are kept."""
    module = app.module("nodes.activations.nodes_seed_scout")
    drawn = sheets(module)
    model, clip, vae = app.run("GBX_LoadDemoModel", weights="avatars-v2")
    text = app.run("CLIPTextEncode", clip=clip, text="portrait")[0]
    half = app.module("nodes.activations.seed_scout_comfy")
    scores = app.module("nodes.activations.seed_scout").Scores

    def decoded(sample, vae, seeds, batch_size, read):
        return torch.cat([gray(seed / 100) for seed in seeds])

    def scorer(*args, **kwargs):
        return lambda images: scores(torch.tensor([0.2, 0.9, 0.5]), "likeness")

    monkeypatch.setattr(half, "decoded_images", decoded)
    monkeypatch.setattr(half, "image_scorer", scorer)
    seeds, images, _, report, _ = app.run(
        "GBX_SeedScout",
        model=model,
        positive=text,
        negative=text,
        vae=vae,
        latent={"samples": torch.zeros(1, 24, 16, 16)},
        ranking="layout_likeness",
        prompt="",
        words="",
        seed=40,
        count=3,
        keep=2,
        steps=1,
        cfg=2.0,
        batch_size=2,
        reference=gray(0.5),
    )
    (sheet,) = drawn
    named = {panel.title.splitlines()[0]: shade(panel) for panel in sheet.panels}
    assert named == {"seed 41": 0.41, "seed 42": 0.42, "seed 40": 0.4}
    assert [panel.title.splitlines()[1] for panel in sheet.panels] == ["0.9", "0.5", "0.2"]
    assert seeds == [41, 42]
    torch.testing.assert_close(images[:, 0, 0, 0], torch.tensor([0.41, 0.42, 0.40]))
    assert [panel.frame[0] for panel in sheet.panels] == [4, 4, 1]
    assert report.splitlines()[1].startswith("1. seed 41  0.9000")


def test_scan_report(app, monkeypatch, sheets):
    """A page holds so many prompts; the last page has the last ones under their own titles."""
    module = app.module("nodes.neurons.nodes_report")
    neuron_figures = app.module("nodes.neurons.neuron_figures")
    monkeypatch.setattr(neuron_figures, "SHEET_COLUMNS", 2)
    monkeypatch.setattr(neuron_figures, "SHEET_LINES", 1)
    drawn = sheets(module)
    model, clip, vae = app.run("GBX_LoadDemoModel", weights="avatars-v2")
    masked = model.clone()
    shades = {"a": 0.1, "b": 0.2, "c": 0.3}
    encoded = []
    encode = module.encode

    def noted(clip, text):
        encoded.append(text)
        return encode(clip, text)

    def sample(patcher, vae, **given):
        return gray(shades[encoded[-1]] + (0.5 if patcher is masked else 0.0))

    monkeypatch.setattr(module, "encode", noted)
    monkeypatch.setattr(module, "sample_images", sample)
    app.run(
        "GBX_MemorizationReport",
        model=model,
        clip=clip,
        vae=vae,
        table="prompt,score,is_memorized\na,0.5,False\nb,0.9,True\nc,0.7,True\n",
        threshold=0.6,
        image_count=3,
        steps=1,
        cfg=2.0,
        seed=1,
        width=64,
        height=64,
        filename_prefix="",
        masked_model=masked,
    )
    pages = [drawing for drawing in drawn if drawing.title.startswith("Left")]
    (histogram,) = [drawing for drawing in drawn if drawing not in pages]
    assert histogram.panels[0].title == "Scores of 3 prompts"
    panels = [panel for page in pages for panel in page.panels if panel.images]
    named = {panel.title: (shade(panel), shade(panel, -1)) for panel in panels}
    assert named == {
        "1. 0.900 memorized\nb": (0.2, 0.7),
        "2. 0.700 memorized\nc": (0.3, 0.8),
        "3. 0.500 not memorized\na": (0.1, 0.6),
    }
    assert [len([panel for panel in page.panels if panel.images]) for page in pages] == [2, 1]


def test_neuron_report(app, sheets):
    """Rows by what they hold: the reference, without the mask, with it, the generic prompt."""
    drawn = sheets(app.module("nodes.neurons.nodes_report"))
    mask = app.module("nodes.neurons.mask").NeuronMask({"a.to_v": {1: 0.0}})
    app.run(
        "GBX_MemorizationReport",
        mask=mask,
        images_before=torch.cat([gray(0.2, 64), gray(0.25, 64)]),
        images_after=torch.cat([gray(0.4, 64), gray(0.45, 64)]),
        reference_image=gray(0.8, 64),
        generic_images=gray(0.6, 64),
    )
    sheet = next(drawing for drawing in drawn if any(panel.images for panel in drawing.panels))
    rows = {}
    for panel in sheet.panels:
        if panel.texts:
            name = panel.texts[0].splitlines()[0]
            rows[name] = []
        if panel.images:
            rows[name].append(shade(panel))
    assert rows == {
        "the image": [0.8],
        "without the mask": [0.2, 0.25],
        "with the mask": [0.4, 0.45],
        "generic prompt": [0.6],
    }


@pytest.mark.parametrize("columns", [0, 2])
def test_w2w_sheet(app, sheets, columns):
    """Batches of other lengths, one label for each image."""
    drawn = sheets(app.module("nodes.weights.nodes_space_report"))
    labels = ["anna", "bert", "carl"]
    images = [torch.cat([gray(0.1), gray(0.2)]), gray(0.3)]
    app.run("GBX_W2WSheet", images=images, labels=labels, columns=[columns], title=["people"])
    (sheet,) = drawn
    named = {panel.title: shade(panel) for panel in sheet.panels if panel.images}
    assert named == {"anna": 0.1, "bert": 0.2, "carl": 0.3}
    assert sheet.title == "people"


def test_a_sheet_of_rows_and_columns(app, sheets):
    """Labels of W2W Sweep: each image stands in the row and the column of its label."""
    drawn = sheets(app.module("nodes.weights.nodes_space_report"))
    labels = [f"hat {across}, beard {down}" for down in (0, 1) for across in (0, 1, 2)]
    images = [gray(number / 10) for number in range(6)]
    app.run("GBX_W2WSheet", images=images, labels=labels, columns=[0], title=[""])
    (sheet,) = drawn
    assert [shade(panel) for panel in sheet.panels] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert [panel.title for panel in sheet.panels[:3]] == ["hat 0", "hat 1", "hat 2"]
    assert [sheet.panels[place].ylabel for place in (0, 3)] == ["beard 0", "beard 1"]


@pytest.fixture
def lines(app, monkeypatch):
    """Names and images of the lines of every contact sheet of activations."""
    overlays = app.module("nodes.activations.overlays")
    sheet = overlays.contact_sheet
    found = []

    def noted(tiles, *args, **given):
        found.append(dict(tiles))
        assert len(found[-1]) == len(tiles)
        return sheet(tiles, *args, **given)

    monkeypatch.setattr(overlays, "contact_sheet", noted)
    return found


def _activations(app, tensors):
    module = app.module("nodes.activations.activations")
    rows = tuple(module.Row(number) for number in range(len(next(iter(tensors.values())))))
    return module.Activations(tensors, rows, 0.2, 50.0)


def test_a_sheet_of_activations(app, lines):
    """Each ID over the colors of its own activation."""
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"mid-{name}-out": torch.randn(2, 6, 4, 5, generator=generator) for name in ("a", "b", "c")
    }
    app.run(
        "GBX_ActivationPicture",
        activations=_activations(app, tensors),
        mode="contact_sheet",
        joint_fit=True,
        channel=0,
        size=256,
    )
    (sheet,) = lines
    colors = app.module("nodes.activations.pca").pca_colors
    assert list(sheet) == list(tensors)
    for name, images in sheet.items():
        torch.testing.assert_close(images, colors(tensors[name], True), rtol=0, atol=1e-4)


def test_a_sheet_of_features(app, lines):
    """Three features, each bright in a cell of its own: its number stands over its own maps, first
    in the chosen image and then in the image where it is strongest.
    """
    module = app.module("nodes.activations.sparse_autoencoder")
    encoder = torch.eye(4)
    autoencoder = module.SparseAutoencoder(
        "mid-a-out", 4, encoder, encoder, torch.zeros(4), torch.zeros(4), torch.ones(4)
    )
    cells = {1: (0, 1), 2: (2, 3), 3: (1, 0)}
    values = torch.zeros(2, 4, 4, 4)
    for feature, (y, x) in cells.items():
        values[0, feature, y, x] = 0.5 * feature
        values[1, feature, 3 - y, 3 - x] = 4.0
    app.run(
        "GBX_SparseFeatures",
        autoencoder=autoencoder,
        activations=_activations(app, {"mid-a-out": values}),
        image=torch.zeros(2, 32, 32, 3),
        image_index=0,
        count=3,
        top_images=1,
        opacity=1.0,
    )
    (sheet,) = lines
    assert list(sheet) == ["feature 3", "feature 2", "feature 1"]  # by their mean in the image
    for feature, (y, x) in cells.items():
        here, strongest = sheet[f"feature {feature}"].sum(-1)
        assert divmod(int(here.flatten().argmax()), 32) == pytest.approx(
            (8 * y + 4, 8 * x + 4), abs=4
        )
        there = divmod(int(strongest.flatten().argmax()), 32)
        assert there == pytest.approx((8 * (3 - y) + 4, 8 * (3 - x) + 4), abs=4)
        assert strongest.max() > here.max() + 0.1  # on one scale: 4 beside half of the feature
