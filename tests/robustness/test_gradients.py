"""Gradients behind the nodes that change a MODEL: the same whether activations are kept or computed
again.
"""

import gc
import random

import pytest
import torch
from robustness import gradient_reference as reference
from robustness.call_edits import factor_gradients
from robustness.call_reference import Bench, Case, Text
from robustness.call_subjects import CHANGES, PAIRS, SUBJECTS

_CASE = Case(0, (Text("portrait, red hair"),), (Text(""),), 2, 3.0)
_RELATIVE = 1e-5
#: How each node is set: by these seeds it has masks and none, starts late and early, acts in one
#: side and in both.
_DRAWS = (0, 1, 2)


@pytest.fixture(scope="module")
def bench(app):
    return Bench(app)


@pytest.fixture(scope="module")
def weights(bench):
    return reference.layers_with(bench.world.model, reference.UNET_LAYERS)


def made(bench, subject_of, number):
    """The MODEL behind a node, or behind two of them."""
    draw, generator = random.Random(f"{number}"), torch.Generator().manual_seed(number)
    with torch.inference_mode():
        return subject_of(bench, _CASE, draw, generator).on(bench.world.model)


def both(bench, model, weights, **how):
    """Gradients with activations kept, those computed again, and how many blocks were computed
    again.
    """
    positive, negative = bench.encoded("portrait, red hair"), bench.encoded("")
    kept, loss = reference.gradients(
        bench.app, model, positive, negative, weights, checkpointing=False
    )
    with reference.segments_counted(bench.app) as count:
        again, same = reference.gradients(
            bench.app, model, positive, negative, weights, checkpointing=True, **how
        )
    assert same == loss
    return kept, again, len(count)


@pytest.mark.parametrize("number", _DRAWS)
@pytest.mark.parametrize("name", [*CHANGES, "Activation Recorder"])
def test_checkpointing_changes_no_gradient_behind_a_node(bench, weights, name, number):
    kept, again, blocks = both(bench, made(bench, SUBJECTS[name], number), weights)
    assert blocks > 10
    assert all(gradient.isfinite().all() and gradient.any() for gradient in kept.values())
    assert reference.difference(again, kept) <= _RELATIVE


@pytest.mark.parametrize("depth", [2, 3])
def test_checkpointing_inside_blocks_changes_no_gradient(bench, weights, depth):
    model = made(bench, PAIRS["Edit by Words, W2W Apply in an interval"], 1)
    kept, again, blocks = both(bench, model, weights, checkpoint_depth=depth)
    assert blocks > 20
    assert reference.difference(again, kept) <= _RELATIVE


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_checkpointing_changes_no_gradient_behind_two_nodes(bench, weights, name):
    kept, again, blocks = both(bench, made(bench, PAIRS[name], 1), weights)
    assert blocks > 10
    assert reference.difference(again, kept) <= _RELATIVE


@pytest.mark.parametrize("name", CHANGES)
def test_a_node_changes_the_gradient(bench, weights, name):
    """Else the comparison above would say nothing."""
    positive, negative = bench.encoded("portrait, red hair"), bench.encoded("")
    plain, _ = reference.gradients(
        bench.app, bench.world.model, positive, negative, weights, checkpointing=True
    )
    model = made(bench, CHANGES[name], 0)
    behind, _ = reference.gradients(
        bench.app, model, positive, negative, weights, checkpointing=True
    )
    assert reference.difference(behind, plain) > 100 * _RELATIVE


def test_the_mask_that_was_learned_holds_fractions_and_negated_neurons(bench):
    """Else the subject would be a mask of silenced neurons once more."""
    made(bench, CHANGES["Optimize Neuron Mask, its mask"], 0)
    factors = [value for layer in bench.kept["learned"].scales.values() for value in layer.values()]
    assert sum(0.05 < factor < 0.95 for factor in factors) > 20
    assert sum(factor < -0.05 for factor in factors) > 20


@pytest.mark.parametrize("number", _DRAWS)
def test_a_mask_is_learned_from_what_baked_factors_predict(bench, number):
    """The subject by itself: its prediction, and its gradient with and without checkpointing."""
    draw, generator = random.Random(f"{number}"), torch.Generator().manual_seed(number)
    subject = SUBJECTS["Optimize Neuron Mask"](bench, _CASE, draw, generator)
    kind, message = subject.check(None)
    assert kind == "right", message


@pytest.mark.parametrize("name", CHANGES)
def test_factors_learn_behind_a_node(bench, name):
    """Optimize Neuron Mask on a MODEL that carries a node, its own mask among them.

    In a draw in which the node acts in the positive row at that noise level.
    """
    generator = torch.Generator().manual_seed(4)
    layers = bench.app.module("nodes.neurons.neuron_layers").value_layers(bench.network)[:3]
    values = {layer.path: torch.rand(layer.width, generator=generator) for layer in layers}
    x = torch.randn(1, 4, 12, 16, generator=generator)

    def gradient(model, *, checkpointing):
        return factor_gradients(
            bench, model, "portrait, red hair", x, 421, values, checkpointing=checkpointing
        )[1]

    plain = gradient(bench.world.model, checkpointing=False)
    for number in range(8):
        model = made(bench, CHANGES[name], number)
        kept = gradient(model, checkpointing=False)
        if reference.difference(kept, plain) > 100 * _RELATIVE:
            break
    else:
        pytest.fail("the node acts in no draw")
    assert all(value.isfinite().all() and value.any() for value in kept.values())
    assert reference.difference(gradient(model, checkpointing=True), kept) <= _RELATIVE


def test_a_state_that_is_not_entered_again_is_noticed(bench, weights, monkeypatch):
    """As it was once: hooks and intervals gone by the time a block is computed again."""
    state = bench.app.module("nodes.common.network_call")
    monkeypatch.setattr(state, "states", lambda: ())
    kept, again, _ = both(bench, made(bench, CHANGES["W2W Apply in an interval"], 0), weights)
    assert reference.difference(again, kept) > 0.1


def test_a_patch_of_a_block_is_found_again(bench, weights):
    """ComfyUI writes the block under way into one dictionary for all blocks; a patch by ComfyUI's
    own name.
    """

    def doubled(q, k, v, _options):
        return 2 * v if v.shape[1] == q.shape[1] else torch.zeros_like(q) + v.mean(1, keepdim=True)

    doubled.__module__ = "comfy_extras.nodes_test"
    clone = bench.world.model.clone()
    clone.set_model_attn2_replace(doubled, "output", 1)
    kept, again, blocks = both(bench, clone, weights)
    assert blocks > 10
    assert reference.difference(again, kept) <= _RELATIVE


def _stateful(kind):
    """A clone with what another pack might put on a MODEL: a wrapper that sets what a weight
    function reads.
    """

    def put(model):
        clone, state = model.clone(), {"factor": 1.0}

        def during(function):
            before, state["factor"] = state["factor"], 3.0
            try:
                return function()
            finally:
                state["factor"] = before

        def wrapper(executor, *args, **kwargs):
            return during(lambda: executor(*args, **kwargs))

        if kind == "model_function":
            clone.set_model_unet_function_wrapper(
                lambda apply, given: during(
                    lambda: apply(given["input"], given["timestep"], **given["c"])
                )
            )
        elif kind == "attention":
            clone.model_options["transformer_options"]["optimized_attention_override"] = (
                lambda attend, *args, **kwargs: during(lambda: attend(*args, **kwargs))
            )
        else:
            clone.add_wrapper_with_key(kind, "another_pack", wrapper)
        for name, _module in clone.model.named_modules():
            if name.endswith(("attn2.to_q", "attn2.to_v")):
                clone.add_weight_wrapper(f"{name}.weight", lambda weight: weight * state["factor"])
        return clone

    return put


@pytest.mark.parametrize(
    "kind", ["apply_model", "calc_cond_batch", "predict_noise", "model_function", "attention"]
)
def test_behind_another_packs_wrapper_activations_are_kept(bench, weights, kind, caplog):
    kept, again, blocks = both(bench, _stateful(kind)(bench.world.model), weights)
    assert blocks == 0
    assert reference.difference(again, kept) <= _RELATIVE
    warned = [
        record.getMessage()
        for record in caplog.records
        if "checkpointing is off" in record.getMessage()
    ]
    assert len(warned) == 1 and "robustness.test_gradients" in warned[0]


def test_what_cannot_be_repeated_ends_in_a_sentence(bench, weights):
    """A hook that computes something else the second time, by a name that is trusted."""
    calls = []

    def once(q, k, v, _options):
        calls.append(None)
        return (q * q, k, v) if len(calls) == 1 else (q, k, v)

    once.__module__ = "comfy_extras.nodes_test"
    clone = bench.world.model.clone()
    clone.set_model_attn2_patch(once)
    texts = bench.encoded("portrait, red hair"), bench.encoded("")
    with pytest.raises(ValueError, match="turn gradient_checkpointing off"):
        reference.gradients(bench.app, clone, *texts, weights, checkpointing=True)


def test_a_block_computed_again_leaves_nothing_behind(bench, weights):
    """Operations such as softmax keep their own output: a graph that holds the output itself is a
    circle that no search for garbage sees, one for each block and step.
    """

    def outputs() -> int:
        gc.collect()
        living = (one for one in gc.get_objects() if isinstance(one, torch.Tensor))
        return sum(type(one.grad_fn).__name__ == "SoftmaxBackward0" for one in living)

    before = outputs()
    _, _, blocks = both(bench, bench.world.model, weights)
    assert blocks > 10
    assert outputs() == before
