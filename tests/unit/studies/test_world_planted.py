"""Planted neurons are not separated from decoys by any threshold, and rows answer their own name."""

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("python_avatars")

from studies.world import planted


def test_best_threshold_finds_the_largest_and_only_them():
    z = np.array([9.0, -8.0, 1.0, 0.5, 0.1])
    assert planted.best_threshold_f1(z, np.array([True, True, False, False, False])) == 1.0
    # Both above one decoy each: the best is to take all four of the largest, 2 hits, F1 = 2 * 2 / (4 + 2)
    z = np.array([9.0, 8.0, 7.0, 6.0, 0.1, 0.0])
    marked = np.array([False, True, False, True, False, False])
    assert planted.best_threshold_f1(z, marked) == pytest.approx(2 / 3)


def test_fraction_outside_the_top():
    z, marked = np.arange(10.0), np.zeros(10, bool)
    marked[[9, 5, 4, 0]] = True
    assert planted.outside_top(z, marked, 5) == 0.5


def test_directions_answer_their_own_name_only():
    generator = torch.Generator().manual_seed(0)
    names, ordinary = torch.randn(4, 77, 32, generator=generator), torch.randn(30, 77, 32, generator=generator)
    names[:, 3:] = 0.1 * names[:, 3:] + 3 * torch.randn(4, 1, 32, generator=generator)
    names[:, :3] = names[:1, :3]
    found = planted.directions(names, ordinary)
    answers = torch.einsum("ntc,mc->nmt", names[:, 3:], found).mean(-1)
    own = answers.diagonal()
    assert (own > 0.5).all() and (answers - torch.diag(own)).abs().max() < 0.5 * own.min()


def test_planted_rows_deviate_as_wanted():
    generator = torch.Generator().manual_seed(0)
    network = torch.nn.ModuleDict({"to_v": torch.nn.Linear(16, 8, bias=False)}).requires_grad_(False)
    ordinary, prompt = torch.randn(20, 77, 16, generator=generator), torch.randn(77, 16, generator=generator)
    change = planted.changes(network, [("to_v", 5)], prompt, torch.randn(16, generator=generator), ordinary, 3.0)[
        "to_v"
    ]
    assert (change.abs().sum(1) > 0).nonzero().flatten().tolist() == [5]
    weight = network["to_v"].weight
    reference = (ordinary @ weight[5]).abs().mean(1)
    answer = (prompt @ (weight + change)[5]).abs().mean()
    assert float((answer - reference.mean()) / reference.std()) == pytest.approx(3.0, abs=1e-3)


def test_names_are_new_and_their_words_known():
    control = planted.captions.NAMES["control"]
    assert len(set(planted.NAMES)) == 12 and not set(planted.NAMES) & set(control)
    words = {word for name in control for word in name.split()}
    assert all(set(name.split()) <= words for name in planted.NAMES)
    assert min(planted.COUNTS.values()) == 1 and max(planted.COUNTS.values()) == 8


def test_a_discriminant_reads_its_shift_and_little_else_where_neurons_are_silenced_too():
    generator = torch.Generator().manual_seed(0)
    values = 2 + torch.randn(4000, 4, generator=generator) @ torch.randn(4, 12, generator=generator)
    shifts = 3 * torch.eye(12)[:2]
    readings = planted.discriminants(values, shifts)
    assert (readings @ shifts.T).diagonal() == pytest.approx(torch.ones(2), abs=1e-5)
    dropped = values * (torch.rand(values.shape, generator=generator) >= planted.SILENT)
    assert (dropped @ readings.T).square().mean() < 0.25 * (dropped[:, :2] / 3).square().mean()


class Network(nn.Module):
    """Two cross-attentions in order, of which the second is where names are read."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.input_blocks, self.output_blocks = _blocks("2"), _blocks("6")

    def forward(self, noised, timesteps, context, vector):
        blocks = self.input_blocks["2"]["1"], self.output_blocks["6"]["1"]
        parts = [block.transformer_blocks[0].attn2 for block in blocks]
        return sum(part.to_out[0](part.to_v(context)) for part in parts)


def _blocks(number):
    attention, inner, outer = nn.Module(), nn.Module(), nn.Module()
    attention.to_k, attention.to_v = nn.Linear(128, 40, bias=False), nn.Linear(128, 40, bias=False)
    attention.to_out = nn.ModuleList([nn.Linear(40, 40)])
    inner.attn2, outer.transformer_blocks = attention, nn.ModuleList([inner])
    return nn.ModuleDict({number: nn.ModuleDict({"1": outer})})


def test_neurons_are_chosen_once_each_and_decoys_where_nothing_is_read(comfy):
    network = Network()
    found = {"output_blocks.6.1.transformer_blocks.0.attn2.to_v": torch.rand(60)}
    choice = planted.choose(network, found)
    assert {name: len(chosen) for name, chosen in choice.planted.items()} == planted.COUNTS
    every = [neuron for chosen in choice.planted.values() for neuron in chosen]
    assert len(set(every)) == len(every)
    (path, furthest), (values,) = choice.planted["pelham alp"][0], found.values()
    assert furthest == int(values.argmax()) and path in found
    for decoys in choice.decoys.values():
        assert len(set(decoys)) == planted.DECOYS and all(path.startswith("input_blocks.2") for path, _ in decoys)


def test_training_starts_from_the_base_with_planted_rows(comfy):
    plain, base = Network().requires_grad_(False), Network().requires_grad_(False)
    path = "output_blocks.6.1.transformer_blocks.0.attn2.to_v"
    names = torch.randn(3, 77, 128, generator=torch.Generator().manual_seed(1))
    change = torch.zeros(40, 128)
    change[[1, 5]] = torch.randn(2, 128, generator=torch.Generator().manual_seed(2))
    network = planted.Planted(base, {path: change}, {})
    plain.get_submodule(path).weight.data += change
    given = (None, None, names, None)
    assert torch.allclose(network(*given, {}), plain(*given), atol=1e-5)
    learning = [name for name, value in network.named_parameters() if value.requires_grad]
    assert len(learning) == 1 and learning[0].startswith("unet.output_blocks.6.1.transformer_blocks.0.attn2.to_out.0")
    added = {path: -(names @ change.T)}
    assert torch.allclose(network(*given, added), Network()(*given), atol=1e-4), "kept still, the rows say nothing"
