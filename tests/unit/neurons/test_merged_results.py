"""What pieces of a job become together is what one run over the whole list gives."""

import itertools

import numpy as np
import pytest
import torch
from glassbox.nodes.neurons import merged_results, neuron_statistics
from glassbox.nodes.neurons.mask import NeuronMask, SearchRecord, merge_masks, uniform_scales
from glassbox.nodes.neurons.neuron_statistics import Statistics

PATH = "middle_block.1.transformer_blocks.0.attn2.to_v"
HEAD = "prompt,score,norm\n"
ROWS = [f'"a cat, {number}",{number / 10:.6f},1.0\n' for number in range(11)]


@pytest.mark.parametrize("cuts", [[], [3], [1, 2, 9], range(1, 11)])
def test_score_tables_in_any_pieces_are_one_table(cuts):
    edges = [0, *cuts, len(ROWS)]
    pieces = [HEAD + "".join(ROWS[first:last]) for first, last in itertools.pairwise(edges)]
    whole = HEAD + "".join(ROWS)
    assert "".join(merged_results.merge_tables(pieces)) == whole
    counts = sum(map(merged_results.count_scores, pieces))
    assert np.array_equal(counts, merged_results.count_scores(whole)) and counts.sum() == len(ROWS)


def test_scores_count_in_the_bin_that_holds_them():
    counts = merged_results.count_scores("prompt,score\na,-0.2\nb,0.005\nc,0.5\nd,1.0\n")
    assert (counts[0], counts[50], counts[-1], counts.sum()) == (2, 1, 1, 4)


def test_prompts_over_the_threshold_are_listed_in_order():
    table = 'prompt,score,is_memorized\n"a cat, 1",0.9,True\nb,0.1,False\nc,0.8,True\n'
    assert merged_results.memorized_prompts(table) == ["a cat, 1", "c"]


def test_tables_of_other_columns_are_refused():
    with pytest.raises(ValueError, match="different columns"):
        list(merged_results.merge_tables([HEAD, "prompt,score\n"]))
    assert list(merged_results.merge_tables([])) == []


def _statistics(values):
    return Statistics(
        len(values), neuron_statistics.layer_moments({PATH: values}), {PATH: (1.0, 2.0)}, "test"
    )


def test_statistics_of_parts_are_those_of_all_prompts():
    values = torch.randn(37, 5, 6, generator=torch.Generator().manual_seed(0))
    parts = [_statistics(part) for part in values.split([1, 20, 4, 12])]
    merged, whole = merged_results.merge_statistics(iter(parts)), _statistics(values)
    assert merged.count == whole.count == 37
    for name in ("mean", "squares", "low", "high"):
        torch.testing.assert_close(
            getattr(merged.layers[PATH], name), getattr(whole.layers[PATH], name), rtol=1e-9, atol=0
        )


def _mask(prompt, *neurons, converged=True):
    found = SearchRecord(prompt, {PATH: neurons}, converged)
    return NeuronMask(
        uniform_scales((PATH, index) for index in neurons),
        (found,),
        {PATH: (1.0, 2.0)},
        ("NeMo Localize",),
    )


def test_masks_of_pieces_are_that_of_all_prompts():
    masks = [_mask("a", 1, 5), _mask("b", 5, 7, converged=False), _mask("c", 0)]
    merged = merge_masks(iter(masks))
    assert merged.scales == {PATH: {0: 0.0, 1: 0.0, 5: 0.0, 7: 0.0}}
    assert merged.searches == tuple(search for mask in masks for search in mask.searches)
    assert merged.history == ("NeMo Localize",)
    assert list(merged_results.mask_rows(merged)) == [
        ["a", 2, True],
        ["b", 2, False],
        ["c", 1, True],
    ]


def test_nothing_cannot_be_merged():
    with pytest.raises(ValueError, match="There are no"):
        merged_results.merge_statistics([])
    assert merge_masks([]).count == 0
