"""Edits by words: how they are read, and the difference of two attentions."""

import pytest
import torch
from glassbox.nodes.activations.word_edit import (
    EncodedEdit,
    EncodedTexts,
    ReadingPlan,
    WordEdit,
    edited_attention,
    read_edits,
)

PROMPT = "portrait, brown hair, Brown haired dog"


@pytest.mark.parametrize(
    ("text", "prompt", "expected"),
    [
        ("brown hair -> red hair: 2", "", [WordEdit("red hair", "brown hair", 2.0)]),
        ("glasses: 1.5", "", [WordEdit("glasses", "", 1.5)]),
        ("shirt->: -1", "", [WordEdit("", "shirt", -1.0)]),
        (
            "brown hair -> red hair: 2",
            PROMPT,
            [WordEdit("portrait, red hair, Brown haired dog", PROMPT, 2.0)],
        ),
        ("brown -> red: 2", PROMPT, [WordEdit("portrait, red hair, red haired dog", PROMPT, 2.0)]),
        ("glasses: 1", f" {PROMPT}\n", [WordEdit(f"{PROMPT}, glasses", PROMPT, 1.0)]),
        (
            "a: 1, b -> c: 2\nd: -0.5",
            "",
            [WordEdit("a", "", 1.0), WordEdit("c", "b", 2.0), WordEdit("d", "", -0.5)],
        ),
        ("", PROMPT, []),
        ("red: 0, brown hair -> brown hair: 3", PROMPT, []),  # nothing that changes anything
        ("(red:1.3) hair: 2", "", [WordEdit("(red:1.3) hair", "", 2.0)]),
    ],
)
def test_edits_as_they_are_read(text, prompt, expected):
    assert read_edits(text, prompt) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("red hair", "is not an edit"),
        ("brown hair -> red hair", "and a strength, such as brown hair -> red hair: 2, glasses: 1"),
        ("-> : 1", "names no words"),
        ("rown -> red: 1", "'rown' is not in the prompt"),
    ],
)
def test_what_is_no_edit(text, message):
    with pytest.raises(ValueError, match=message):
        read_edits(text, PROMPT)


def test_the_difference_is_that_of_two_softmaxes():
    """By the formula in float64, with texts of other lengths and a batch of texts that repeats over
    the images.
    """
    generator = torch.Generator().manual_seed(0)
    heads, width = 2, 6

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    query, toward = (
        draw(4, 5, heads * width),
        (draw(2, 7, heads * width), draw(2, 7, heads * width)),
    )
    away = (draw(1, 3, heads * width), draw(1, 3, heads * width))

    def attend(query, key, value):
        q, k, v = (
            part.unflatten(2, (heads, width)).transpose(1, 2) for part in (query, key, value)
        )
        return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    prompt, other = torch.zeros(1, 7, 4), torch.ones(1, 3, 4)
    keys_values = (toward, away)
    edits = [
        EncodedEdit(torch.zeros(1, 7, 4), other, 1.5),
        EncodedEdit(other, torch.full((1, 3, 4), 2.0), 0.0),
    ]
    texts = EncodedTexts(edits)
    found = []

    def read(number):
        return attend(
            query, *(tensor.repeat(4 // len(tensor), 1, 1) for tensor in keys_values[number])
        )

    for prompts in ([None], [prompt], [other, other]):
        plan = texts.plan(prompts)
        in_prompt = read(1 if prompts[0] is other else 0)
        found.append(
            edited_attention(plan, in_prompt, [read(number) for number in plan.texts]) - in_prompt
        )
        assert len(plan.texts) == (2 if prompts == [None] else 1), "the prompt is attended to once"
    for image in range(4):
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            expected = 0
            for sign, (keys, values), row in ((1.5, toward, image % 2), (-1.5, away, 0)):
                weights = (query[image, :, part] @ keys[row, :, part].T / width**0.5).softmax(-1)
                expected = expected + sign * weights @ values[row, :, part]
            for change in found:
                assert torch.allclose(change[image, :, part], expected, atol=1e-12)


def test_two_prompts_of_which_one_is_the_text_are_read_apart():
    prompt, other = torch.zeros(1, 7, 4), torch.ones(1, 7, 4)
    texts = EncodedTexts([EncodedEdit(other, prompt, 2.0)])
    assert texts.plan([prompt]) == ReadingPlan(texts=(0,), weights=(2.0,), own=-2.0)
    assert texts.plan([prompt, other]) == ReadingPlan(texts=(0, 1), weights=(2.0, -2.0), own=0.0)
