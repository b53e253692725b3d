"""Statistics: against plain formulas, merged in any order, and read from files that are what they
should be.
"""

import json
import pickle

import pytest
import torch
from glassbox import kernels
from glassbox.nodes.neurons import neuron_statistics, statistics_file
from glassbox.nodes.neurons.neuron_layers import NeuronLayer
from glassbox.nodes.neurons.neuron_statistics import LayerStatistics, Statistics
from safetensors.torch import load_file, save_file

PATH = "input_blocks.1.1.transformer_blocks.0.attn2.to_v"
WIDTHS = [320, 320, 640, 640, 1280, 1280, 1280]
SD1 = [
    NeuronLayer(
        f"{block}.transformer_blocks.0.attn2.to_v", "middle" if "middle" in block else "down", width
    )
    for block, width in zip(
        [*(f"input_blocks.{number}.1" for number in (1, 2, 4, 5, 7, 8)), "middle_block.1"],
        WIDTHS,
        strict=True,
    )
]


def values(count=40, width=5, seed=0):
    return torch.randn(count, 7, width, generator=torch.Generator().manual_seed(seed))


def of(part):
    return Statistics(
        len(part), neuron_statistics.layer_moments({PATH: part}), {PATH: (1.0, 2.0)}, "test"
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_moments_are_those_of_the_formula(dtype):
    given = values().to(dtype)
    activations = given.double().abs().mean(dim=1)
    found = of(given)
    assert torch.allclose(found.layers[PATH].mean, activations.mean(0), atol=1e-6)
    assert torch.allclose(found.deviation(PATH), activations.std(0), atol=1e-6)
    assert torch.allclose(found.layers[PATH].low, activations.amin(0), atol=1e-6)
    assert torch.allclose(found.layers[PATH].high, activations.amax(0), atol=1e-6)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (3, 4)])
def test_moments_of_nothing_are_refused(shape):
    with pytest.raises(ValueError, match="Neuron moments need"):
        kernels.neuron_moments(torch.zeros(shape))


def test_merging_parts_gives_the_whole():
    given = values()
    merged = neuron_statistics.merge(
        neuron_statistics.merge(of(given[:1]), of(given[1:30])), of(given[30:])
    )
    whole = of(given)
    assert merged.count == 40
    for part in ("mean", "squares", "low", "high", "peak"):
        assert torch.allclose(
            getattr(merged.layers[PATH], part), getattr(whole.layers[PATH], part), atol=1e-9
        )


def test_merging_what_does_not_belong_together_is_refused():
    good = of(values())
    with pytest.raises(ValueError, match="different layers"):
        neuron_statistics.merge(good, of(values(width=6)))
    with pytest.raises(ValueError, match="different models"):
        neuron_statistics.merge(good, Statistics(3, good.layers, {PATH: (1.0, 3.0)}))
    with pytest.raises(ValueError, match="cannot be merged"):
        neuron_statistics.merge(good, Statistics(0, good.layers))


@pytest.fixture(scope="module")
def layer():
    """A value layer's weights (320, 768), and its fingerprint with other weights."""
    generator = torch.Generator().manual_seed(0)
    weight, probe = (
        torch.randn(320, 768, generator=generator),
        torch.randn(64, 768, generator=generator),
    )
    return weight, lambda weight: neuron_statistics.fingerprint({PATH: probe @ weight.float().T})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_fingerprint_ignores_rounding_to_16_bits(layer, dtype):
    weight, fingerprint = layer
    assert neuron_statistics.same_model(fingerprint(weight), fingerprint(weight.to(dtype)))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("rank", [1, 4, 320])
def test_a_fingerprint_notices_a_change_of_1_percent(layer, seed, rank):
    weight, fingerprint = layer
    generator = torch.Generator().manual_seed(100 + seed)
    change = torch.randn(320, rank, generator=generator) @ torch.randn(
        rank, 768, generator=generator
    )
    changed = weight + 0.01 * change * weight.norm() / change.norm()
    assert not neuron_statistics.same_model(fingerprint(weight), fingerprint(changed))


def test_fingerprints_are_compared_on_shared_layers():
    first = {PATH: (1.0, 2.0)}
    assert neuron_statistics.same_model(first, {}) and neuron_statistics.same_model(
        first, {"another layer": (5.0, 5.0)}
    )
    assert not neuron_statistics.same_model(first, {PATH: (1.0, 2.1)})


def test_z_is_two_sided_and_0_where_nothing_varies():
    zeros = torch.zeros(3, dtype=torch.float64)
    moments = LayerStatistics(
        torch.ones(3).double(), torch.tensor([4.0, 4.0, 0.0]).double(), zeros, zeros, zeros
    )
    z = Statistics(2, {PATH: moments}).z(PATH, torch.tensor([5.0, -3.0, 9.0]))
    assert z.tolist() == [2.0, -2.0, 0.0]


def test_save_and_load(tmp_path):
    statistics_file.write(of(values()), tmp_path / "s.safetensors")
    again = statistics_file.read(tmp_path / "s.safetensors", [])
    assert (again.count, again.fingerprint, again.source) == (40, {PATH: (1.0, 2.0)}, "test")
    assert torch.equal(again.layers[PATH].squares, of(values()).layers[PATH].squares)
    assert [path.name for path in tmp_path.iterdir()] == ["s.safetensors"]


def official(tmp_path, widths=WIDTHS):
    content = (
        [torch.full((w,), float(w)) for w in widths],
        [torch.full((w,), 0.5) for w in widths],
    )
    torch.save(content, tmp_path / "official.pt")
    return tmp_path / "official.pt"


def test_the_official_file(tmp_path):
    found = statistics_file.read(official(tmp_path), SD1)
    assert found.count == 0 and list(found.layers) == [layer.path for layer in SD1]
    assert found.layers[SD1[2].path].mean[0] == 640
    assert found.deviation(SD1[2].path)[0] == pytest.approx(0.5)
    found.check(SD1)


def test_the_official_file_of_another_model(tmp_path):
    with pytest.raises(ValueError, match=r"SD1\.4"):
        statistics_file.read(official(tmp_path, WIDTHS[:3]), SD1)


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


def test_a_pickle_is_never_executed(tmp_path, capsys):
    path = tmp_path / "evil.pt"
    path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ValueError, match="cannot be read safely"):
        statistics_file.read(path, SD1)
    torch.save(([Evil()], [Evil()]), path)
    with pytest.raises(ValueError, match="cannot be read safely"):
        statistics_file.read(path, SD1)
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "content", [torch.zeros(3), {"a": 1}, ([torch.zeros(3)], [torch.zeros(2)]), ([], [])]
)
def test_other_pt_files(tmp_path, content):
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(ValueError, match="not the official statistics file"):
        statistics_file.read(tmp_path / "x.pt", SD1)


@pytest.mark.parametrize("text", [b"", b"no file", b"<!DOCTYPE html><html>", b"\x00" * 100])
def test_broken_files(tmp_path, text):
    for name in ("x.safetensors", "x.pt"):
        (tmp_path / name).write_bytes(text)
        with pytest.raises(ValueError, match="cannot be read"):
            statistics_file.read(tmp_path / name, SD1)


@pytest.mark.parametrize(
    ("about", "change", "reason"),
    [
        ({"count": "x"}, {}, r"has statistics\.count = 'x', which must be a whole number"),
        ({"count": -3}, {}, r"has statistics\.count = -3, which must be a whole number"),
        ({"fingerprint": 3}, {}, r"has statistics\.fingerprint = 3, which must be an object"),
        ({"fingerprint": {PATH: [float("nan")]}}, {}, r"= \[nan\], which must be a finite number"),
        ({}, {"mean": torch.full((5,), torch.nan)}, "is damaged"),
        ({}, {"squares": torch.full((5,), -1.0)}, "is damaged"),
        ({}, {"mean": torch.zeros(5, 2)}, "is damaged"),
        ({}, {"low": torch.zeros(4)}, "is damaged"),
    ],
)
def test_damaged_statistics_are_refused(tmp_path, about, change, reason):
    statistics_file.write(of(values()), tmp_path / "s.safetensors")
    tensors = load_file(tmp_path / "s.safetensors") | {
        f"{PATH}.{part}": value for part, value in change.items()
    }
    header = {
        "format": statistics_file.FORMAT,
        "format_version": str(statistics_file.FORMAT_VERSION),
    }
    header["statistics"] = json.dumps(
        {"count": 40, "fingerprint": {PATH: (1.0, 2.0)}, "source": "test"} | about
    )
    save_file(tensors, tmp_path / "x.safetensors", header)
    with pytest.raises(ValueError, match=rf"^x\.safetensors .*{reason}|^x\.safetensors {reason}"):
        statistics_file.read(tmp_path / "x.safetensors", SD1)


def test_a_deeply_nested_header_is_refused(tmp_path):
    header = {"format": statistics_file.FORMAT, "format_version": "1", "statistics": "[" * 100_000}
    save_file(
        {f"{PATH}.{part}": torch.zeros(5) for part in ("mean", "squares", "low", "high", "peak")},
        tmp_path / "x",
        header,
    )
    with pytest.raises(ValueError, match=r"^x has statistics = .*, which must be JSON"):
        statistics_file.read(tmp_path / "x", SD1)


def test_a_newer_format_version_is_named(tmp_path):
    header = {"format": statistics_file.FORMAT, "format_version": "2", "statistics": "{}"}
    save_file(
        {f"{PATH}.{part}": torch.zeros(5) for part in ("mean", "squares", "low", "high", "peak")},
        tmp_path / "x",
        header,
    )
    with pytest.raises(ValueError, match="format version 2 and this Glassbox reads 1"):
        statistics_file.read(tmp_path / "x", SD1)
