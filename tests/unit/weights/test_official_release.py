"""The official release's files, made small: read without executing a pickle, negative deviations
kept.
"""

import members
import pytest
import release as release_files
import torch
from glassbox.nodes.common import lora_reader
from glassbox.nodes.weights import directions, edit_text, official_release, points
from glassbox.nodes.weights.flat_layout import Layout
from glassbox.nodes.weights.space import Point

MEMBERS, COMPONENTS, KNOWN = 40, 12, 6


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """The files as torch.save writes them, and the numbers in them."""
    folder = tmp_path_factory.mktemp("release") / "files"
    return folder, release_files.write(folder, members.LAYERS, MEMBERS, COMPONENTS, KNOWN)


@pytest.fixture
def labeled(release):
    folder, tensors = release
    release_files.write_labels(folder, tensors["proj_1000pc"], ["Bald", "Chubby"])
    yield folder, tensors
    (folder / "identity_df.csv").unlink()


def test_the_release_becomes_a_space(labeled, tmp_path):
    folder, tensors = labeled
    space, report = official_release.convert(folder, tmp_path / "people.safetensors", 10, "float32")
    assert (space.components, space.known, len(space.members)) == (10, KNOWN, MEMBERS)
    assert torch.equal(space.basis, tensors["V"][:, :10].T)
    assert torch.equal(space.mean, tensors["mean"]) and torch.equal(space.deviation, tensors["std"])
    assert (space.deviation < 0).sum() > 0 and "are negative and are kept" in report
    assert space.layout.scale == 27 and space.members[0] == "7000"
    assert list(space.labels) == ["Bald", "Chubby"]


def test_models_are_rebuilt_as_the_official_code_does(release, tmp_path):
    """theta = (beta @ V[:, :k].T) * std + mean, split by weight_dimensions; and y = x (W + 27 B
    A)^T.
    """
    folder, tensors = release
    space, _ = official_release.convert(
        folder, tmp_path / "people.safetensors", COMPONENTS, "float32"
    )
    beta = torch.randn(1, COMPONENTS, generator=members.generator(5))
    theta = (beta @ tensors["V"].T) * tensors["std"] + tensors["mean"]
    point = Point(space, beta[0])
    torch.testing.assert_close(point.flat, theta[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(space.project(point.flat), beta[0], atol=2e-5, rtol=1e-5)
    name, (inputs, outputs) = sorted(members.LAYERS.items())[0]
    down, up = theta[0, :inputs].view(1, -1), theta[0, inputs : inputs + outputs].view(-1, 1)
    x, weight = torch.randn(3, inputs), torch.randn(outputs, inputs)
    made_up, made_down = point.layers()[name].matrices()
    torch.testing.assert_close(
        x @ (weight + made_up @ made_down).T, x @ (weight + 27 * up @ down).T, atol=1e-4, rtol=1e-5
    )


def test_its_labels_give_the_official_directions(labeled, tmp_path):
    """`get_direction`: pinverse of the projections times the labels."""
    folder, tensors = labeled
    space, _ = official_release.convert(folder, tmp_path / "people.safetensors", 10, "float32")
    fitted = directions.fit(space, space.labels, 1000, directions.FitMethod.LEAST_SQUARES)
    wanted = torch.linalg.pinv(tensors["proj_1000pc"].double()) @ space.labels["Bald"].double()
    torch.testing.assert_close(fitted["Bald"].vector[:KNOWN].double(), wanted, atol=1e-6, rtol=1e-5)
    point = points.sample(space.with_directions(fitted), 3, 1, 1000, 1.0)[0]
    assert not point.coefficients[KNOWN:].any()
    moved = edit_text.edit(point, "Bald: -800000", units=edit_text.Units.RAW)
    torch.testing.assert_close(
        moved.coefficients, point.coefficients - 800000 * fitted["Bald"].vector
    )


def test_the_layout_is_that_of_its_lora_files(release, tmp_path):
    space, _ = official_release.convert(release[0], tmp_path / "people.safetensors", 4, "float32")
    lora = lora_reader.parse_tensors(
        members.peft(members.factors(0), "identity1"), {"r": 1, "lora_alpha": 27}
    )
    shapes = {
        name: (tuple(one.down.shape), tuple(one.up.shape)) for name, one in lora.layers.items()
    }
    assert space.layout == Layout.of(shapes, 1, 27.0)


def test_pickled_labels_are_refused_with_instructions(release, tmp_path):
    folder, _ = release
    (folder / "identity_df.pt").write_bytes(b"a pickle")
    _, report = official_release.convert(folder, tmp_path / "people.safetensors", 4, "int8")
    assert "identity_df.pt is a pickled table" in report
    (folder / "identity_df.pt").unlink()


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("name", ["mean.pt", "weight_dimensions.pt"])
def test_a_pickle_is_never_executed(release, tmp_path, name):
    kept = (release[0] / name).read_bytes()
    torch.save({"x": Harmful(tmp_path / "harm.txt")}, release[0] / name)
    try:
        with pytest.raises(ValueError, match=f"{name} holds more than tensors"):
            official_release.convert(release[0], tmp_path / "people.safetensors", 4, "float32")
    finally:
        (release[0] / name).write_bytes(kept)
    assert not (tmp_path / "harm.txt").exists()


def test_missing_or_foreign_files_are_refused(release, tmp_path):
    folder, tensors = release
    with pytest.raises(ValueError, match=r"lacks V.pt, mean.pt"):
        official_release.convert(tmp_path, tmp_path / "people.safetensors", 4, "float32")
    torch.save(tensors["mean"][:-1], folder / "mean.pt")
    with pytest.raises(ValueError, match="do not belong together"):
        official_release.convert(folder, tmp_path / "people.safetensors", 4, "float32")
    torch.save(tensors["mean"], folder / "mean.pt")
