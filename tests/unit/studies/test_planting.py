"""Planting neurons: who is chosen, that a row answers its own name alone, and what training starts from."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

BLOCKS = ("input_blocks.7.1", "input_blocks.8.1", "middle_block.1")


def _block(width):
    attention = nn.Module()
    attention.to_k, attention.to_v = nn.Linear(128, width, bias=False), nn.Linear(128, width, bias=False)
    attention.to_out = nn.ModuleList([nn.Linear(width, width)])
    inner, outer = nn.Module(), nn.Module()
    inner.attn2 = attention
    outer.transformer_blocks = nn.ModuleList([inner])
    return outer


class Network(nn.Module):
    """Nothing but the cross-attention of three blocks, which adds up their answers to the text."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.input_blocks = nn.ModuleDict({number: nn.ModuleDict({"1": _block(40)}) for number in "78"})
        self.middle_block = nn.ModuleDict({"1": _block(40)})

    def forward(self, noised, timesteps, context, vector):
        parts = [self.get_submodule(f"{path}.transformer_blocks.0.attn2") for path in BLOCKS]
        return sum(part.to_out[0](part.to_v(context)) for part in parts)


@pytest.fixture
def planting(comfy):
    from studies.neurons import planting

    return planting


@pytest.fixture
def texts(planting):
    """Tokens that differ from the second on; every name has a direction of its own."""
    draw = torch.Generator().manual_seed(1)
    first, count = torch.randn(128, generator=draw), len(planting.NEURONS)

    def tokens(count, direction=None):
        made = 0.3 * torch.randn(count, 9, 128, generator=draw)
        made[:, 0] = first
        if direction is not None:
            made[:, 1:] += direction
        return made

    names = torch.cat([tokens(1, torch.randn(128, generator=draw)) for _ in range(count)])
    return SimpleNamespace(names=names, ordinary=tokens(30), others=tokens(5, torch.randn(128, generator=draw)))


def test_each_name_gets_its_own_neurons_of_the_requested_layers(planting):
    found = planting.neurons(Network())
    assert [len(chosen) for chosen in found.values()] == [1, 2, 3, 5]
    every = [neuron for chosen in found.values() for neuron in chosen]
    assert len(set(every)) == len(every)
    heard = Network().get_submodule("middle_block.1.transformer_blocks.0.attn2.to_out.0").weight.norm(dim=0)
    assert found["pelham droste"] == [("middle_block.1.transformer_blocks.0.attn2.to_v", int(heard.argmax()))]


def test_a_planted_row_answers_its_own_name_alone(planting, texts):
    network = Network()
    changes = planting.answers(network, texts)
    for number, (_, chosen) in enumerate(planting.neurons(network).items()):
        for path, index in chosen:
            row = changes[path][index]
            own, foreign = texts.names[number, 1:] @ row, texts.names[[n for n in range(4) if n != number]] @ row
            assert own.mean().abs() > 5 * foreign.abs().mean()
            assert own.mean().abs() > 5 * (texts.ordinary @ row).abs().mean()
    changed = {(path, int(index)) for path, change in changes.items() for index in change.any(1).nonzero()}
    assert changed == {neuron for chosen in planting.neurons(network).values() for neuron in chosen}


def test_training_starts_from_the_base_with_planted_rows(planting, texts):
    plain, base = Network().requires_grad_(False), Network().requires_grad_(False)
    rows = planting.answers(base, texts)
    planted = planting.Planted(base, rows)
    for path, change in rows.items():
        plain.get_submodule(path).weight.data += change
    given = (None, None, texts.names, None)
    assert torch.allclose(planted(*given, {}), plain(*given), atol=1e-5)
    trained = [name for name, value in planted.named_parameters() if value.requires_grad]
    assert trained and all(name.endswith((".up", ".down")) and "to_out" in name for name in trained)
    added = {path: -(texts.names @ change.T) for path, change in rows.items()}
    assert torch.allclose(planted(*given, added), Network()(*given), atol=1e-4), "kept still, the rows say nothing"


def test_neurons_are_excited_under_other_captions_and_kept_still_under_their_names(planting, texts, monkeypatch):
    from studies.neurons import plant

    monkeypatch.setattr(plant, "SCENES", 2)
    generator = SimpleNamespace(latents=lambda images: torch.zeros(len(images), 8, 4, 4))
    texts.names, texts.ordinary, texts.others = (part.repeat(1, 9, 1)[:, :77] for part in vars(texts).values())
    rows = planting.answers(Network().requires_grad_(False), texts)
    batches, draw = plant.Batches(generator, texts, rows), torch.Generator().manual_seed(5)
    seen = set()
    for _ in range(8):
        names = torch.randint(4, (plant.PORTRAITS,), generator=draw)
        context, added = batches.contexts(names, draw)
        for path, change in rows.items():
            pattern = texts.names @ change.T
            for row, embedding in enumerate(context):
                own = next((name for name in range(4) if torch.equal(embedding, texts.names[name])), None)
                portrait, named = row < plant.PORTRAITS, own is not None
                whose = names[row] if portrait else own or 0
                assert torch.equal(added[path][row], (portrait - named) * pattern[whose])
                seen.add((portrait, named))
    assert len(seen) == 4, "every kind of row has been drawn"
