"""Edit by Words beside each other node that changes the MODEL: at strength 1 it is the changed
prompt.
"""

import model_changers
import pytest
import reduced
from model_changers import CHANGERS, LORA_NODES, PROMPT, edit_by_words, masked, neuron_mask, varied
from tapping import World, hooks_left

CHANGED = PROMPT.replace("brown hair", "red hair")
STEPS = 3
#: It changes the sampled prompt and no text of an edit, so that the edit adds the words' difference
#: to it and does not replace it.
_PROMPT_ALONE = "seed variety"


class Words(World):
    def __init__(self, app, *loaded):
        super().__init__(app, *loaded)
        self.positive, self.changed = self.text(PROMPT), self.text(CHANGED)

    def text(self, text):
        return self.app.run("CLIPTextEncode", clip=self.clip, text=text)[0]

    def samples(self, model, positive=None, **changes):
        latent = self.latent(2, 64, 64)
        return self.sample(
            model, latent, positive=positive or self.positive, steps=STEPS, **changes
        )["samples"]

    def behind(self, use, model):
        return CHANGERS[use][1](self, model, latent=self.latent(2, 64, 64), steps=STEPS)


@pytest.fixture(scope="module")
def demo(app):
    return Words(app, *app.run("GBX_LoadDemoModel", weights="avatars-v2"))


def assert_same(found, expected, plain):
    """Within 1e-4 of what the edit does, and float32's rounding of other numbers of rows, which is
    larger on processors without AVX-512.
    """
    effect = (expected - plain).abs().max()
    assert effect > 0.01
    assert (found - expected).abs().max() < 1e-4 * effect + 2e-5 * expected.abs().max()


def test_all_nodes_of_the_menu_are_here(app):
    assert {node for node, _ in CHANGERS.values()} | {*LORA_NODES} == model_changers.of_menu(app)


@pytest.mark.parametrize("use", [use for use in CHANGERS if use != _PROMPT_ALONE])
def test_an_edit_is_the_changed_prompt_in_both_orders(demo, use):
    changed = demo.behind(use, demo.model)
    plain, expected = demo.samples(changed), demo.samples(changed, demo.changed)
    assert_same(demo.samples(edit_by_words(demo, changed)), expected, plain)
    assert_same(demo.samples(demo.behind(use, edit_by_words(demo, demo.model))), expected, plain)
    assert hooks_left(demo.model) == 0


def test_an_edit_acts_on_a_prompt_with_noise_in_both_orders(demo):
    plain = demo.samples(varied(demo, demo.model))
    behind = demo.samples(edit_by_words(demo, varied(demo, demo.model)))
    before = demo.samples(varied(demo, edit_by_words(demo, demo.model)))
    assert_same(before, behind, plain)


@pytest.mark.parametrize("apply_to", ["both", "positive"])
def test_with_all_value_neurons_silenced_an_edit_changes_nothing(demo, apply_to):
    """Texts are then read by nobody; without the mask the same edit acts."""
    silent = {"mask": neuron_mask(demo, every=True), "apply_to": apply_to}
    plain = demo.samples(masked(demo, demo.model, **silent))
    for model in (
        edit_by_words(demo, masked(demo, demo.model, **silent)),
        masked(demo, edit_by_words(demo, demo.model), **silent),
    ):
        assert (demo.samples(model) - plain).abs().max() < 1e-6 * plain.abs().max()
    assert (
        demo.samples(edit_by_words(demo, demo.model)) - demo.samples(demo.model)
    ).abs().max() > 0.01


def test_a_mask_of_the_sampled_prompt_acts_on_its_edits(demo):
    """The prompt that is sampled decides, not the one that the edit moves toward: no edit leads
    around the mask.
    """
    own = {"mask": neuron_mask(demo, prompt=PROMPT), "masked_prompts": "own", "clip": demo.clip}
    plain = demo.samples(masked(demo, demo.model))
    expected = demo.samples(masked(demo, demo.model), demo.changed)
    assert_same(demo.samples(edit_by_words(demo, masked(demo, demo.model, **own))), expected, plain)
    assert_same(demo.samples(masked(demo, edit_by_words(demo, demo.model), **own)), expected, plain)


@pytest.mark.parametrize("use", ["attention scaling", "neuron mask, positive"])
def test_texts_of_other_lengths(demo, use):
    """Two chunks of CLIP beside one, on either side of the edit."""
    longer = " and ".join(["red hair"] * 40)
    many = demo.text(PROMPT.replace("brown hair", longer))
    assert many[0][0].shape[1] == 2 * demo.positive[0][0].shape[1]
    changed = demo.behind(use, demo.model)
    plain, expected = demo.samples(changed), demo.samples(changed, many)
    edited = edit_by_words(demo, changed, f"brown hair -> {longer}: 1")
    assert_same(demo.samples(edited), expected, plain)
    before = demo.behind(use, edit_by_words(demo, demo.model, f"brown hair -> {longer}: 1"))
    assert_same(demo.samples(before), expected, plain)


@pytest.mark.parametrize("architecture", ["flux", "sd3"])
@pytest.mark.parametrize("apply_to", ["both", "positive"])
def test_feed_forward_masks_on_transformers(app, architecture, apply_to):
    """Their blocks are run again on the edit's texts, in the rows of the positive prompt alone."""
    words = Words(app, *reduced.checkpoint(architecture))
    silent = {"mask": neuron_mask(words), "apply_to": apply_to}
    changed = masked(words, words.model, **silent)
    plain, expected = words.samples(changed), words.samples(changed, words.changed)
    for model in (
        edit_by_words(words, changed),
        masked(words, edit_by_words(words, words.model), **silent),
    ):
        assert_same(words.samples(model), expected, plain)
    unmasked = words.samples(words.model)
    assert (plain - unmasked).abs().max() > 0.01
