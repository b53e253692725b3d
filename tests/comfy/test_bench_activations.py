"""The benchmark of taps on a tiny network: the contenders keep the same features, and every number is there."""

import runpy

import pytest
import repository
import torch


@pytest.fixture
def tiny(comfy, monkeypatch):
    """The benchmark's modules with a tiny network."""
    runpy.run_path(str(repository.ROOT / "run.py"))["load_package"]("studies")
    from studies.bench_activations import networks, tapping

    small = {"model_channels": 32, "num_res_blocks": [1, 1], "channel_mult": [1, 2], "transformer_depth": [1, 1],
             "transformer_depth_output": [1, 1, 1, 1], "context_dim": 64}  # fmt: skip
    monkeypatch.setitem(networks.NETWORKS, "tiny", ("SD15", "sd15", small, 16))
    return networks, tapping


def test_hooks_and_tap_keep_the_same_features(tiny):
    networks, tapping = tiny
    bench = networks.Bench("tiny")
    chosen = bench.chosen("all but attention maps")
    tapped = tapping.tap(bench, chosen).tensors
    for kept in (tapping.as_it_is, tapping.copied):
        features = tapping.by_hooks(bench, chosen, kept)
        assert len(features) == len(tapped) == len(chosen) > 20
        for entry, feature in zip(chosen, features, strict=True):
            if entry.kind == "tokens":
                feature = feature.transpose(1, 2)
            ours = tapped[entry.id].float().flatten()
            torch.testing.assert_close(ours, feature.float().flatten(), rtol=1e-3, atol=1e-3)


def test_every_number_is_there(tiny):
    numbers = tiny[1]._network("tiny", 1)
    (whole,) = (name.removeprefix("tiny, ").removesuffix(": kept") for name in numbers if name.endswith(": kept"))
    assert {name.removeprefix("tiny, ") for name in numbers} == {
        "plain evaluation", f"{whole} over plain", "hooks that append over plain",
        "hooks that append copies over plain", "the copies alone over plain", f"{whole} less its copies, over plain",
        f"hooks that append copies over {whole}", f"{whole}: kept",
    }  # fmt: skip
    assert all(number["value"] > 0 for number in numbers.values())
