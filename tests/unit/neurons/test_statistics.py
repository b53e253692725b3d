"""Statistics: against plain formulas, merged in any order, and read from files that are what they should be."""

import pickle

import pytest
import torch
from glassbox import kernels
from glassbox.nodes.neurons import statistics, statistics_files
from glassbox.nodes.neurons.layers import ValueLayer
from glassbox.nodes.neurons.statistics import LayerStatistics, Statistics

PATH = "input_blocks.1.1.transformer_blocks.0.attn2.to_v"
WIDTHS = [320, 320, 640, 640, 1280, 1280, 1280]
SD1 = [
    ValueLayer(f"{block}.transformer_blocks.0.attn2.to_v", "middle" if "middle" in block else "down", width)
    for block, width in zip(
        [*(f"input_blocks.{number}.1" for number in (1, 2, 4, 5, 7, 8)), "middle_block.1"], WIDTHS, strict=True
    )
]


def values(count=40, width=5, seed=0):
    return torch.randn(count, 7, width, generator=torch.Generator().manual_seed(seed))


def of(part):
    return Statistics(len(part), statistics.measure({PATH: part}), {PATH: 1.0}, "test")


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
    merged = statistics.merge(statistics.merge(of(given[:1]), of(given[1:30])), of(given[30:]))
    whole = of(given)
    assert merged.count == 40
    for part in ("mean", "squares", "low", "high"):
        assert torch.allclose(getattr(merged.layers[PATH], part), getattr(whole.layers[PATH], part), atol=1e-9)


def test_merging_what_does_not_belong_together_is_refused():
    good = of(values())
    with pytest.raises(ValueError, match="different layers"):
        statistics.merge(good, of(values(width=6)))
    with pytest.raises(ValueError, match="different models"):
        statistics.merge(good, Statistics(3, good.layers, {PATH: 2.0}))
    with pytest.raises(ValueError, match="cannot be merged"):
        statistics.merge(good, Statistics(0, good.layers))


def test_a_model_is_known_again_in_another_precision():
    """Rounding is let pass; a LoRA with .15 of the weights' norm is noticed."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 128, generator=generator)
    added = torch.randn(64, 4, generator=generator) @ torch.randn(4, 128, generator=generator)
    probe = torch.randn(16, 128, generator=generator)

    def fingerprint(weight):
        return {PATH: float((probe @ weight.float().T).abs().mean())}

    first = fingerprint(weight)
    for dtype in (torch.float16, torch.bfloat16, torch.float8_e4m3fn):
        assert statistics.same_model(first, fingerprint(weight.to(dtype)))
    changed = weight + 0.15 * added * weight.norm() / added.norm()
    assert not statistics.same_model(first, fingerprint(changed))
    assert statistics.same_model(first, {}) and statistics.same_model(first, {"another layer": 1.0})


def test_z_is_two_sided_and_0_where_nothing_varies():
    zeros = torch.zeros(3, dtype=torch.float64)
    moments = LayerStatistics(torch.ones(3).double(), torch.tensor([4.0, 4.0, 0.0]).double(), zeros, zeros)
    z = Statistics(2, {PATH: moments}).z(PATH, torch.tensor([5.0, -3.0, 9.0]))
    assert z.tolist() == [2.0, -2.0, 0.0]


def test_save_and_load(tmp_path):
    statistics_files.write(of(values()), tmp_path / "s.safetensors")
    again = statistics_files.read(tmp_path / "s.safetensors", [])
    assert (again.count, again.fingerprint, again.source) == (40, {PATH: 1.0}, "test")
    assert torch.equal(again.layers[PATH].squares, of(values()).layers[PATH].squares)
    assert [path.name for path in tmp_path.iterdir()] == ["s.safetensors"]


def official(tmp_path, widths=WIDTHS):
    content = ([torch.full((w,), float(w)) for w in widths], [torch.full((w,), 0.5) for w in widths])
    torch.save(content, tmp_path / "official.pt")
    return tmp_path / "official.pt"


def test_the_official_file(tmp_path):
    found = statistics_files.read(official(tmp_path), SD1)
    assert found.count == 0 and list(found.layers) == [layer.path for layer in SD1]
    assert found.layers[SD1[2].path].mean[0] == 640
    assert found.deviation(SD1[2].path)[0] == pytest.approx(0.5)
    found.check(SD1)


def test_the_official_file_of_another_model(tmp_path):
    with pytest.raises(ValueError, match=r"SD1\.4"):
        statistics_files.read(official(tmp_path, WIDTHS[:3]), SD1)


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


def test_a_pickle_is_never_executed(tmp_path, capsys):
    path = tmp_path / "evil.pt"
    path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ValueError, match="cannot be read safely"):
        statistics_files.read(path, SD1)
    torch.save(([Evil()], [Evil()]), path)
    with pytest.raises(ValueError, match="cannot be read safely"):
        statistics_files.read(path, SD1)
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [torch.zeros(3), {"a": 1}, ([torch.zeros(3)], [torch.zeros(2)]), ([], [])])
def test_other_pt_files(tmp_path, content):
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(ValueError, match="not the official statistics file"):
        statistics_files.read(tmp_path / "x.pt", SD1)


@pytest.mark.parametrize("text", [b"", b"no file", b"\x00" * 100])
def test_broken_files(tmp_path, text):
    for name in ("x.safetensors", "x.pt"):
        (tmp_path / name).write_bytes(text)
        with pytest.raises(ValueError, match="cannot be read"):
            statistics_files.read(tmp_path / name, SD1)
