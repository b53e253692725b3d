"""What Train LoRA says of the file that it goes on from, of the network and of the text encoder."""

from types import SimpleNamespace

import pytest
import torch


@pytest.mark.parametrize("with_clip", [True, False])
def test_adapters_of_both_networks_have_a_remark(app, monkeypatch, with_clip):
    """Without a CLIP the file's layers of text encoders are counted as left out."""
    module = app.module("nodes.noise.train_lora_comfy")
    reader = app.module("nodes.common.lora_reader")
    made = []

    def create(patcher, **options):
        made.append((patcher, options))
        return module.adapters.Adapters({}, {f"{patcher}.x": patcher}, f"{patcher}: 3 go on.")

    monkeypatch.setattr(module.adapters, "create", create)
    monkeypatch.setattr(module.trainer, "TextEncoder", lambda clip, functions, captions: clip)
    layer = reader.LayerParts("stem", "LoRA", {})
    existing = reader.FileParts(text={"a": layer, "b": layer})
    options = SimpleNamespace(algorithm="LoRA", rank=2, seed=5, alpha=1.5, layers="attn2")
    clip = SimpleNamespace(patcher="text") if with_clip else None
    trained = module.adapters_of(
        "network",
        clip,
        options=options,
        data=SimpleNamespace(captions={}),
        existing=existing,
        dtype=torch.float32,
    )
    shared = {
        "algorithm": "LoRA",
        "rank": 2,
        "dtype": torch.float32,
        "seed": 5,
        "existing": existing,
        "alpha": 1.5,
    }
    assert made[0] == ("network", {**shared, "layers": "attn2"})
    if with_clip:
        assert made[1:] == [("text", {**shared, "of_text": True})]
        assert trained.remarks == ["network: 3 go on.", "text: 3 go on."]
        assert set(trained.made.parameters) == {"network.x", "text.x"}
        assert list(trained.text_names) == ["text.x"]
    else:
        assert len(made) == 1 and set(trained.made.parameters) == {"network.x"}
        assert trained.remarks == [
            "network: 3 go on.",
            "Its 2 text encoder layers are left out: connect clip and captions.",
        ]
