"""The factors of an edited point, made from what a space keeps of its origin and its edits."""

import members
import pytest
import torch
from glassbox.nodes.weights import edit_text, member_sources, points, space_builder
from glassbox.nodes.weights import space as space_module
from glassbox.nodes.weights.space import Direction

COUNT = 24


@pytest.fixture(scope="module", params=["as_trained", "weight_updates"])
def large(request, tmp_path_factory):
    """A space of two directions; in weight_updates of cores in a common basis."""
    folder = members.write_folder(tmp_path_factory.mktemp("loras"), COUNT)
    target = tmp_path_factory.mktemp("spaces") / "s.safetensors"
    rank = {"rank": 0} if request.param == "weight_updates" else {}
    settings = space_builder.BuildSettings(form=request.param, **rank)
    space = space_builder.build(member_sources.file_sources(folder), settings, target)
    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(2, space.components, generator=generator)
    return space.with_directions(
        {name: Direction(vector, 2.0) for name, vector in zip("de", vectors, strict=True)}
    )


@pytest.fixture(autouse=True)
def small_limit(monkeypatch):
    """Any basis is one whose rebuild is slow."""
    monkeypatch.setattr(space_module, "_KEPT_BYTES", 1)


@pytest.mark.parametrize("text", ["", "d: 0.7", "d: 0.7, e: -1.3"])
def test_they_are_those_of_the_flat_vector(large, text):
    """Bit for bit the same sums; and the rebuild from all coefficients within 1e-5 of the largest
    number.
    """
    point = edit_text.edit(points.sample(large, 5, 1, 100, 1.0)[0], text)
    layers, flat = point.lazy_layers(), large.layout.unflatten(point.flat)
    rebuilt = large.rebuild(point.coefficients)
    assert list(layers) == list(flat)
    assert len(layers) > 2
    for layer, factors in layers.items():
        assert torch.equal(factors.down, flat[layer].down)
        assert torch.equal(factors.up, flat[layer].up)
        assert factors.scale == flat[layer].scale
    torch.testing.assert_close(point.flat, rebuilt, atol=1e-5 * float(rebuilt.abs().max()), rtol=0)


def test_a_slider_that_moves_reads_no_basis(large, monkeypatch):
    point = points.sample(large, 6, 1, 100, 1.0)[0]
    dict(edit_text.edit(point, "d: 0.1").lazy_layers())
    read, rebuild = [], space_module.flat_weights
    monkeypatch.setattr(
        space_module,
        "flat_weights",
        lambda *given, **more: read.append(given) or rebuild(*given, **more),
    )
    for strength in (0.4, -1.0, 2.0):
        moved = edit_text.edit(point, f"d: {strength}")
        dict(moved.lazy_layers())
        wanted = large.rebuild(moved.coefficients)
        read.remove(read[-1])
        torch.testing.assert_close(
            moved.flat, wanted, atol=1e-5 * float(wanted.abs().max()), rtol=0
        )
    assert not read


def test_a_point_of_many_edits_takes_no_place_among_what_is_kept(large):
    """It is rebuilt at each move, so the next one is another."""
    point = edit_text.edit(points.sample(large, 6, 1, 100, 1.0)[0], "d: 0.1")
    dict(point.lazy_layers())
    before = list(large._kept)
    many = edit_text.edit(point, ", ".join(f"PC {number}: 0.1" for number in range(1, 12)))
    assert many.steps is None
    dict(many.lazy_layers())
    assert list(large._kept) == before


def test_sizes_are_those_of_the_factors(large):
    layers = points.sample(large, 7, 1, 100, 1.0)[0].lazy_layers()
    assert large.layout.matrix_sizes == {
        layer: (factors.up.shape[0], factors.down[0].numel()) for layer, factors in layers.items()
    }


def test_what_is_kept_is_at_most_a_quarter_of_the_basis(large):
    large._kept.clear()
    for row in range(COUNT):
        point = points.member_point(large, large.members[row])
        dict(edit_text.edit(point, f"d: {row}").lazy_layers())
    kept = sum(flat.nbytes for flat in large._kept.values())
    assert 0 < kept <= large.basis.nbytes / 4
