"""The study of the activations family: its scores against the pack's own, and its answers on
made-up measurements.
"""

import functools
import json

import numpy as np
import pytest
import torch

from studies.activations import (
    claims,
    labeled_faces,
    measure,
    new_images,
    scores,
    steering_scan,
    words,
)
from studies.common import host, results


@pytest.fixture(scope="module")
def faces():
    pytest.importorskip("python_avatars")
    return labeled_faces.drawn(3, seed=0)


def test_images_come_with_their_truth(faces):
    assert faces.images.shape == (3, 128, 128, 3) and faces.points.shape == (3, 4, 2)
    assert faces.points.amin() > 0 and faces.points.amax() < 128
    fractions = torch.nn.functional.one_hot(faces.labels, 6).float().mean((0, 1, 2))
    assert fractions[0] > 0.3 and fractions[1] > 0.05 and fractions.sum() == pytest.approx(1)
    pairs = labeled_faces.pairs(10)
    assert len(pairs) == len(set(pairs)) == 20 and all(a != b for a, b in pairs)


def test_hits_are_those_of_the_packs_correspondence(faces):
    feature = torch.randn(3, 8, 16, 16, generator=torch.Generator().manual_seed(0))
    nearest = host.pack("nodes.activations.correspondence").nearest_points
    expected = []
    for source, target in labeled_faces.pairs(3):
        place, _ = nearest(
            feature[source], feature[target], (faces.points[source] + 0.5) / 2 - 0.5, 64
        )
        distance = ((place + 0.5) * 2 - 0.5 - faces.points[target]).norm(dim=1)
        expected.append(distance <= 0.1 * faces.heights[target])
    assert torch.equal(scores.hits(feature, faces), torch.stack(expected))


def test_a_feature_that_is_the_part_finds_the_points_and_the_parts(faces):
    grid = torch.stack(torch.meshgrid(torch.arange(128.0), torch.arange(128.0), indexing="ij"))
    to_points = [(grid - points.flip(1)[:, :, None, None]).norm(dim=1) for points in faces.points]
    known = torch.stack([(-distance / 6).exp() for distance in to_points])
    assert scores.hits(known, faces).float().mean() > 0.9
    assert scores.same_place_hits(faces).float().mean() < 0.9


class Quality:
    """Stands in for a measured quality."""

    def __init__(self, noise, granularity, locality):
        self.noise, self.granularity, self.locality = noise, granularity, locality


@pytest.fixture
def found():
    """A world in which everything is as the paper says."""
    parts = (
        "res-increment",
        "res-out",
        "vit-block0-self-q",
        "vit-block0-self-k",
        "vit-block0-self-v",
        "vit-block0-cross-q",
        "vit-block0-ffn-inner",
        "vit-block0-out",
        "vit-out",
    )
    ids = [
        f"{stage}-level{level}-repeat{repeat}-{part}"
        for stage in ("down", "up")
        for level in range(3)
        for repeat in range(3)
        for part in parts
    ]
    rng, made = np.random.default_rng(0), measure.Found(ids=ids)
    made.filters = {
        "general rule": {id_ for id_ in ids if id_.startswith("up-level1") and id_.endswith("-out")}
    }
    made.sets = {"ours by analogy": ("a",), "legacy": ("b",)}
    for number, id_ in enumerate(ids):
        late = id_.startswith("up-level2") or id_.startswith("up-level1-repeat2")
        noise = 0.5 if id_.startswith("down") or late else 0.1
        noise += 0.2 * id_.endswith(("increment", "ffn-inner", "self-v"))
        made.quality[id_] = Quality(noise, number / len(ids), 0.5 if "self" in id_ else 0.0)
        made.miou[id_] = 0.4 if id_ in made.filters["general rule"] else 0.2
        made.hits.setdefault(measure.RECIPE, {})[id_] = rng.random((20, 4)) < made.miou[id_] * 2
    made.set_hits = {
        measure.RECIPE: {"ours by analogy": np.ones((20, 4)), "legacy": np.zeros((20, 4))}
    }
    made.set_miou = {"ours by analogy": np.array([0.5, 0.6]), "legacy": np.array([0.3, 0.4])}
    made.guess = np.zeros((20, 4))
    return made


def test_a_world_as_in_the_paper_answers_yes(found, monkeypatch):
    monkeypatch.setattr(claims, "bootstrap", functools.partial(results.bootstrap, draws=200))
    numbers = claims.numbers(found)
    positive = [
        "set ours minus legacy: PCK",
        "set ours minus legacy: mIoU",
        "noise: down-stage minus early half",
        "noise: up-stage, later half minus early half",
        "noise: res-increment minus output",
        "granularity: along up-level1",
        "locality: self-q and self-k minus cross-q",
        "general rule: mean mIoU kept minus dropped",
        "agreement of the two scores",
    ]
    lowest = {name: numbers[name].get("low", numbers[name]["value"]) for name in positive}
    assert {name: low > 0 for name, low in lowest.items()} == dict.fromkeys(positive, True)
    assert numbers["general rule: best PCK lost"]["value"] < 0.05
    assert numbers["general rule: best 10 by mIoU kept"]["value"] == 0.9  # it keeps nine in all
    for number in numbers.values():
        low, high = number.get("low", number["value"]), number.get("high", number["value"])
        assert low <= number["value"] + 1e-9 and number["value"] <= high + 1e-9
        assert np.isfinite([number["value"], low, high]).all()


def test_the_table_has_a_line_an_activation(found, tmp_path):
    measure.write_table(found, tmp_path / "table.csv")
    lines = (tmp_path / "table.csv").read_text("utf-8").splitlines()
    assert lines[0] == "id,pck_t50,miou,noise,granularity,locality,general_rule" and len(
        lines
    ) == 1 + len(found.ids)


TRAITS = {
    "skin": "pale", "hair": "bob", "hair_color": "black", "facial_hair": "none",
    "accessory": "none",
    "clothing": "hoodie", "clothing_color": "red", "mouth": "sad",
}  # fmt: skip
RED_BOB = "portrait, pale skin, red bob, shaven, no glasses, red hoodie, sad"


class Recorded(words.Edited):
    """Keeps what it is given to sample, and returns the image that it began with."""

    model, clip, blank = "model", None, torch.zeros(1, 4, 4, 4)

    def __init__(self):
        self.sampled = []
        self.inverted = []

    def names(self, images):
        return [dict(TRAITS) for _ in images]

    def encode(self, text):
        return text

    def timed(self, before, after, start):
        return before, after, start

    def latents(self, images):
        return images

    def edit(self, text, prompt, start):
        return text, prompt, start

    def own_noise(self, positive, latent, *, seed, denoise, corrections):
        self.inverted.append((positive, seed, denoise, corrections))
        return latent

    def images(self, model, positive, latent, seeds, cfg, denoise):
        self.sampled.append((model, positive, tuple(seeds), cfg, denoise))
        return latent


def test_a_row_of_an_existing_image_has_every_method_at_its_setting():
    edited = Recorded()
    row = words.existing_row(edited, torch.rand(1, 8, 8, 3), number=3)
    reached = {"hair_color": 0.0, "clothing_color": 0.0, "skin": 0.0, "accessory": 0.0}
    assert {key.partition("/")[0]: value[0] for key, value in row.items()} == reached
    assert len(row) == 4 * len(words.EXISTING) and all(
        value[1:] == [1, 0] for value in row.values()
    )
    plain, seeds = RED_BOB.replace("red bob", "black bob"), (words.SEED + 3,)
    assert edited.sampled[:3] == [
        ("model", RED_BOB, seeds, 3.0, 0.6),
        (("black bob -> red bob: 2.0", plain, 0.0), plain, seeds, 3.0, 0.6),
        (("black bob -> red bob: 2.0", "", 0.0), plain, seeds, 3.0, 0.6),
    ]
    own = {(0.6, corrections) for corrections in words.OWN_NOISE.values()}
    assert set(edited.inverted) == {(plain, *seeds, *start) for start in own}


def test_what_an_image_has_already_is_not_requested():
    assert words.words(TRAITS, "clothing_color", "red") is None
    assert words.words(TRAITS | {"hair": "bald"}, "hair_color", "red") is None  # nothing shows it
    assert words.words(TRAITS, "accessory", "sunglasses") == ("no glasses", "sunglasses")


def test_captions_of_new_images_differ_in_what_is_requested_alone():
    for seed in (*new_images.REPORTED, *new_images.CHOSEN_ON):
        scene = new_images.scene_of(seed)
        for attributes in [(name,) for name in new_images.TARGETS] + list(
            new_images.SEVERAL.values()
        ):
            before, after, wanted = new_images.texts(scene, attributes)
            parts = before.split(", ")
            if wanted.get("accessory") == "sunglasses":  # nobody sees the eyes
                parts = [one for one in parts if not one.endswith(" eyes")]
            pairs = list(zip(parts, after.split(", "), strict=True))
            changed = [(one, other) for one, other in pairs if one != other]
            assert len(changed) == len({new_images.TARGETS[name][2] for name in attributes})
            for name, value in wanted.items():
                was = scene.background if name == "background" else getattr(scene.face, name)
                assert value in new_images.TARGETS[name][:2] and value != was


class Listed(new_images.NewImages):
    """Images without a model: what they read, and whether a mask came, is known."""

    def __init__(self, edited, scene, seeds):
        self._seeds, self.before = seeds, (None, new_images.METHODS["prompt"])

    def changed(self, attributes, method, mask=None):
        return attributes, method

    def read(self, attributes, found):
        return np.array(
            [[len(attributes), method_number(found[1]), seed + 1] for seed in self._seeds], float
        )

    def in_area(self, attribute):
        return {
            name: [[1.0] * len(self._seeds), [0.5] * len(self._seeds)]
            for name in ("in the area", "everywhere")
        }


def method_number(method):
    return list(new_images.METHODS.values()).index(method)


def test_rows_of_new_images_come_seed_by_seed_and_are_taken_together(monkeypatch, tmp_path):
    monkeypatch.setattr(new_images, "NewImages", Listed)
    monkeypatch.setattr(results, "KEPT", tmp_path)
    settings = {"methods": new_images.METHODS, "further": True}
    rows = new_images.measured(None, "listed", settings, (700, 701), ((0,), (1,)))
    kept = list(json.loads((tmp_path / "listed_rows.json").read_text("utf-8"))["rows"])
    assert kept == [f"caption {one}, seeds ({seed},)" for seed in (0, 1) for one in (700, 701)]
    assert len(rows) == 2 and rows[0]["skin/prompt"] == [[[1, 0, 1]], [[1, 0, 2]]]
    assert rows[0]["three/prompt"] == [
        [[3, 0, 1]]
    ]  # several at once, and the other methods: the first seeds alone
    assert all(
        len(rows[1][f"skin/{name}"]) == 1 + (name in new_images.MAIN) for name in new_images.METHODS
    )
    numbers = new_images.summary(rows, {"all": list(new_images.TARGETS)}, new_images.METHODS)
    assert (
        numbers["all: chosen edit"]["value"] == 1
        and numbers["all: chosen edit, pixels changed"]["value"] == 1.5
    )
    other = numbers["all: edit 2 from 25 % minus prompt, other attributes changed"]
    assert (
        other["value"] == method_number(new_images.METHODS["edit 2 from 25 %"]) and other["n"] == 2
    )
    # What only the first seeds have is compared with the prompt of these seeds.
    assert numbers["all: prompt at CFG 6, pixels changed"]["value"] == 1
    for name in ("prompt at CFG 6", "chosen edit"):
        assert numbers[f"all: {name}, pixels over the prompt's"]["value"] == 1


def test_silent_captions_lack_the_attribute_alone():
    for number in (*new_images.REPORTED, *new_images.CHOSEN_ON):
        scene = new_images.scene_of(number)
        for attribute, (value, other, _) in steering_scan.TARGETS.items():
            plain, one, two = (
                steering_scan.caption(scene, attribute, each).split(", ")
                for each in (None, value, other)
            )
            assert (
                len(one) == len(two) == len(plain) + 1
                and [a == b for a, b in zip(one, two, strict=True)].count(False) == 1
            )
            assert [part for part in one if part in two] == plain and not any(
                part.endswith(" eyes") for part in one
            )


def test_the_best_of_the_scan_is_compared_with_its_rivals(monkeypatch, tmp_path):
    best, measured = ("residual blocks", 1.0), []

    def row(edited, number, seed, along, settings, random):
        measured.append((number, seed, random))
        names = [steering_scan.named(*one) for one in settings]
        names += [*steering_scan.RIVALS, steering_scan.RANDOM] if random else []
        # The strongest reaches as much as the best, and changes more; the rivals reach nothing.
        reached = {
            steering_scan.named(*best): [1.0, 0.1, 0.2],
            "residual blocks, strength 2": [1.0, 0.5, 0.4],
        }
        return {
            f"{name}/{one}": reached.get(one, [0.0, 0.0, 0.0])
            for name in steering_scan.TARGETS
            for one in names
        }

    monkeypatch.setattr(steering_scan, "row", row)
    monkeypatch.setattr(steering_scan, "directions", lambda edited, attribute: {})
    monkeypatch.setattr(results, "KEPT", tmp_path)
    numbers = steering_scan.report(None, quick=False)
    assert measured == [
        (900, 50, None),
        (901, 50, None),
        *((number, 0, best) for number in new_images.REPORTED),
    ]
    assert numbers["skin: best of the scan minus random direction"]["value"] == 1
    assert numbers["all: residual blocks, strength 2, other attributes changed"]["value"] == 0.5
    assert (
        numbers["scan: all transformers, strength 0.3"]["n"] == 2
        and numbers["all: prompt"]["n"] == 10
    )
