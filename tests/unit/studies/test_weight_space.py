"""What the study of the weight space makes of factors: sums of changes, smaller spaces, fractions
of attributes.
"""

import numpy as np
import pytest
import torch

from studies.common import host


@pytest.fixture(scope="module")
def space(app):
    """Forty made-up members of two layers, all their components."""
    layouts, spaces = host.pack("nodes.weights.flat_layout"), host.pack("nodes.weights.space")
    shapes = {"mid_block.attn1.to_q": ((1, 6), (5, 1)), "mid_block.attn2.to_v": ((1, 8), (5, 1))}
    layout = layouts.Layout.of(shapes, 1, 2.0)
    flats = torch.randn(
        16, layout.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    mean, deviation = flats.mean(0), flats.std(0)
    left, values, basis = torch.linalg.svd((flats - mean) / deviation, full_matrices=False)
    parts = [part.float() for part in (mean, deviation, basis, left * values)]
    names = tuple(f"m{row}" for row in range(16))
    labels = {"red hair": torch.arange(16.0) % 2}
    return spaces.Space(layout, *parts, names, values.float(), labels=labels)


def change(layout, flat):
    return {
        name: part.scale * torch.mm(part.up, part.down)
        for name, part in layout.unflatten(flat).items()
    }


def test_summed_changes_are_the_sum(space):
    from studies.weights import lora_sums

    flats = [
        torch.stack([space.rebuild(row) for row in space.coefficients[start : start + 2]])
        for start in (0, 2, 4)
    ]
    wide, summed = lora_sums.summed(space.layout, flats, (1.0, 0.5, -2.0))
    assert wide.rank == 3 and summed.shape == (2, wide.size)
    for row in range(2):
        found, parts = (
            change(wide, summed[row]),
            [change(space.layout, part[row]) for part in flats],
        )
        for layer, product in found.items():
            torch.testing.assert_close(
                product,
                sum(f * p[layer] for f, p in zip((1, 0.5, -2), parts, strict=True)),
                atol=1e-4,
                rtol=1e-4,
            )


def test_a_subset_is_the_space_of_its_members(space):
    from studies.weights import space_size

    part = space_size.subset(space, 6, 0)
    assert len(part.members) == 6 and part.components == 5
    rows = [space.members.index(name) for name in part.members]
    for number, row in enumerate(rows):
        torch.testing.assert_close(
            part.rebuild(part.coefficients[number]),
            space.rebuild(space.coefficients[row]),
            atol=1e-4,
            rtol=1e-4,
        )
    torch.testing.assert_close(part.basis @ part.basis.T, torch.eye(5), atol=1e-4, rtol=0)
    assert torch.equal(part.labels["red hair"], space.labels["red hair"][rows])
    assert part.coefficients.mean(dim=0).abs().max() < 1e-4


def test_fractions_count_visible_attributes_only():
    from studies.weights import setup

    known = np.array([[0, 1, -1, 2, 0], [3, 0, 2, 0, 1]])
    seen = np.array([[0, 2, 5, 2, 0], [3, 0, 2, 0, 1]])
    assert setup.fractions(seen, known).tolist() == [0.75, 1.0]
    assert setup.fractions(seen, known, [1, 2]).tolist() == [0.0, 1.0]


def test_pencil_drawings_are_paler(app):
    from studies.weights import people, styles
    from studies.world.scenes import render

    scenes = [one.scenes[0] for one in people.people(3)]
    drawn, plain = (
        np.stack([draw(scene) for scene in scenes]) for draw in (styles.pencil_drawing, render)
    )
    assert drawn.shape == plain.shape and drawn.dtype == np.uint8
    assert (styles.saturation(drawn) < 0.5 * styles.saturation(plain)).all()
    assert (
        styles.pencil_fraction(drawn)["value"] == 1.0
        and styles.pencil_fraction(plain)["value"] == 0.0
    )


@pytest.mark.parametrize("contender", ["this pack", "floor"])
def test_the_benchmark_builds_spaces_of_the_real_layout(app, contender):
    from benchmarks.weights import building, network

    assert network.sd15_layout().size == 99_648
    with building._members(4) as file:
        assert building.build_with(contender, 4, file)["seconds"] > 0


def test_the_benchmark_of_updates_has_the_layers_of_kohyas_trainer(app):
    """722 layers, and as many numbers at rank 32 as such files hold: 170 MB in half precision."""
    from benchmarks.weights import updates

    shapes = updates.layer_shapes()
    assert len(shapes) == 722 and 64 * sum(map(sum, shapes.values())) == pytest.approx(
        170e6, rel=0.01
    )


def test_curves_are_compared_at_the_rivals_loss():
    """Reached 0, 0.4, 0.6 where 1, 0.8, 0.5 are kept: 0.2 at 0.9, 0.5 at 0.65, and 0.6 below
    0.5.
    """
    from studies.weights import matched

    kept, reached = np.array([1.0, 0.8, 0.5]), np.array([0.0, 0.4, 0.6])
    found = [matched.reached_at(goal, kept, reached) for goal in (1.0, 0.9, 0.65, 0.3)]
    assert found == pytest.approx([0.0, 0.2, 0.5, 0.6])
    curve = np.stack([reached, kept], axis=1)[None].repeat(4, axis=0)
    rival = np.array([[0.0, 0.9], [1.0, 0.9], [0.0, 0.9], [0.0, 0.9]])
    assert matched.matched_difference(curve, rival) == pytest.approx(0.2 - 0.25)


def test_labels_are_averaged_by_attribute(app):
    from studies.weights import fits, people

    assert set(fits.ATTRIBUTE) == set(people.LABELS)
    found = fits._by_attribute(["beard", "bald", "moustache"], np.array([0.2, 0.5, 0.4]))
    assert found == pytest.approx([0.3, 0.5])


def test_a_twin_differs_in_the_attribute_of_every_scene():
    from dataclasses import replace

    from studies.weights import ceiling, people

    one = people.person(3)
    for name, changed in ceiling.CHANGED.items():
        found = ceiling.twin(one, name)
        assert found.name == one.name and found.further == one.further
        for before, after in zip(one.scenes, found.scenes, strict=True):
            assert after == replace(before, face=replace(before.face, **changed)) != before


def test_the_node_is_measured_as_it_runs(app, tmp_path, monkeypatch):
    """Two steps of Adam, whose rate rises and falls; a point that is there is not trained again."""
    from studies.weights import node_inversion, setup
    from studies.world.scenes import render

    study = setup.load(1)
    monkeypatch.setattr(node_inversion, "POINTS", tmp_path)
    (one,), settings = node_inversion.held_out(1), node_inversion.Settings(2, 0.1, 1, 1)
    images = [render(scene) for scene in one.scenes[:2]]
    point = node_inversion.invert(study, images, "portrait", settings)
    moved = float((point.coefficients / study.space.spread[1]).abs().max())
    assert moved == pytest.approx(0.1 * (0.1 + 0.2 * 0.55), rel=0.01)
    study.sampler.generator = None
    assert torch.equal(
        node_inversion.invert(study, images, "portrait", settings).coefficients, point.coefficients
    )


def test_a_collected_space_that_is_not_there_is_a_sentence(app, tmp_path, monkeypatch):
    from studies.weights import setup

    monkeypatch.setattr(setup, "FILE", tmp_path / "none.safetensors")
    with pytest.raises(ValueError, match="study weights train release"):
        setup.load(1, setup.FILE)
