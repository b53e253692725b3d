"""Activations as data, and the pure pieces that work on them."""

from dataclasses import replace

import pytest
import torch
from glassbox.nodes.activations import activations as features
from glassbox.nodes.activations import attention_maps, point_list, select_ids, tap
from glassbox.nodes.activations.activations import Activations, Row


def activations(**tensors):
    rows = len(next(iter(tensors.values())))
    named = {name.replace("_", "-"): value for name, value in tensors.items()}
    return Activations(named, tuple(Row(index) for index in range(rows)), 0.2, 50.0)


def test_stacking_brings_all_to_the_finest_size():
    fine, coarse = torch.randn(2, 3, 6, 4), torch.randn(2, 5, 3, 2).half()
    stacked = activations(a_out=coarse, b_out=fine).joined("raw")
    assert stacked.shape == (2, 8, 6, 4) and stacked.dtype == torch.float32
    assert torch.equal(stacked[:, 5:], fine)
    enlarged = torch.nn.functional.interpolate(coarse.float(), size=(6, 4), mode="bilinear", align_corners=False)
    assert torch.equal(stacked[:, :5], enlarged)


def test_equal_weighting_gives_each_activation_unit_length():
    long, short = torch.randn(2, 5, 4, 4) * 100, torch.randn(2, 3, 2, 2)
    joined = activations(a_out=long, b_out=short).joined()
    assert torch.allclose(joined[:, :5].norm(dim=1), torch.ones(2, 4, 4))
    assert torch.allclose(joined[:, 5:].norm(dim=1), torch.ones(2, 4, 4))
    assert torch.equal(activations(a_out=long).joined(), long)


def test_a_mean_needs_the_same_rows():
    with pytest.raises(ValueError, match="different rows"):
        features.mean([activations(a_out=torch.ones(1, 1, 1, 1)), activations(a_out=torch.ones(2, 1, 1, 1))])


def test_maps_alone_are_refused():
    with pytest.raises(ValueError, match="attention maps only"):
        activations(a_self_map=torch.zeros(1, 2, 4, 4)).joined()


def test_half_precision_clamps_and_always_copies():
    big = torch.tensor([1e6, -1e6, 3.0])
    assert features.cpu_copy(big, torch.float16).tolist() == [65504.0, -65504.0, 3.0]
    kept = features.cpu_copy(big, torch.float32)
    big += 1
    assert kept.tolist() == [1e6, -1e6, 3.0]


def test_the_mean_of_fp16_is_summed_in_fp32():
    values = [torch.full((1, 1, 1, 1), value, dtype=torch.float16) for value in (60000.0, 60000.0, 30048.0)]
    result = features.mean(activations(a_out=value) for value in values).tensors["a-out"]
    assert result.item() == 50016 and result.dtype == torch.float16  # the sum does not fit into float16


@pytest.mark.parametrize("size", [(512, 512), (37, 53), (8, 5)])
def test_values_at_is_interpolation_then_indexing(size):
    feature = torch.randn(7, 8, 5, generator=torch.Generator().manual_seed(0))
    whole = torch.nn.functional.interpolate(feature[None], size=size, mode="bilinear", align_corners=False)[0]
    rows, columns = torch.randint(0, size[0], (50,)), torch.randint(0, size[1], (50,))
    found = features.values_at(feature, rows, columns, size)
    assert (found - whole[:, rows, columns].T).abs().max() < 2e-5  # float32 weights


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("all", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ("last", [9]),
        ("0, 3-5\nlast", [0, 3, 4, 5, 9]),
        ("0%; 50%, 100%", [0, 5, 9]),
        (" 12 ", []),
        ("25%", [2]),
    ],
)
def test_step_ranges(text, chosen):
    choose = select_ids.parse_steps(text)
    assert [step for step in range(10) if choose(step, 10)] == chosen


@pytest.mark.parametrize("text", ["", "first", "-1", "1..3", "101%", "3 4"])
def test_steps_that_cannot_be_read(text):
    with pytest.raises(ValueError, match="all, steps such as"):
        select_ids.parse_steps(text)


def test_refused_steps_of_two_lines_are_quoted_in_one():
    with pytest.raises(ValueError, match="is not a step") as caught:
        select_ids.parse_steps("a woman\nan old man")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "10, 20\n30.5, 40",
        "10 20; 30.5 40",
        "(10, 20)\n(30.5, 40)",
        "[[10, 20], [30.5, 40]]",
        '[{"x": 10, "y": 20}, {"x": 30.5, "y": 40}]',
        "10%, 40%; 30.5%, 80%",
    ],
)
def test_points_in_every_notation(text):
    assert point_list.parse(text, (50, 100)).tolist() == pytest.approx(torch.tensor([[10, 20], [30.5, 40]]).numpy())


def test_points_on_the_edge_are_inside_and_come_back():
    assert point_list.parse("100, 50", (50, 100)).tolist() == [[99, 49]]
    assert point_list.parse(point_list.to_text(point_list.parse("1.25, 2", (9, 9))), (9, 9)).tolist() == [[1.25, 2]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "There is no point"),
        ("a, b", "'a, b' is not a point"),
        ("1", "is not a point"),
        ("[[1, 2], [3]]", "not valid JSON"),
        ("[{", "not valid JSON"),
        ("101, 2", "outside of the image, which has 100 x 50"),
        ("-1, 2", "outside"),
    ],
)
def test_points_that_cannot_be_read(text, reason):
    with pytest.raises(ValueError, match=reason):
        point_list.parse(text, (50, 100))


@pytest.mark.parametrize("text", ["1" + " " * 3000 + "x", "1," * 40_000, "((" * 5000, "[[" * 30_000, "1 " * 90_000])
def test_hostile_points_are_refused_at_once(text):
    """The pattern for a pair was cubic in spaces: 800 of them took 11 seconds."""
    calls = []
    matched = point_list._PAIR

    class Counted:
        def fullmatch(self, line):
            calls.append(len(line))
            return matched.fullmatch(line)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(point_list, "_PAIR", Counted())
        with pytest.raises(ValueError):
            point_list.parse(text, (50, 100))
    assert all(length <= 80 for length in calls)


def test_pooling_averages_squares():
    feature = torch.arange(16.0).view(1, 1, 4, 4)
    assert tap.pool(feature, 2).flatten().tolist() == [2.5, 4.5, 10.5, 12.5]
    assert tap.pool(feature, 64).item() == 7.5
    assert tap.pool(torch.ones(1, 1, 5, 7), 2).shape == (1, 1, 2, 3)


def test_attention_from_points_is_the_mean_of_their_rows():
    attention = torch.rand(2, 6, 6, generator=torch.Generator().manual_seed(0)).softmax(-1)  # 2 rows of 3 positions
    points = torch.tensor([[0.5, 0.9], [0.99, 0.1], [1.0, 1.0]])  # positions 4, 2 and 5
    found = attention_maps.attention_from(attention, (2, 3), points)
    assert torch.allclose(found.flatten(1), (attention[:, 4] + attention[:, 2] + attention[:, 5]) / 3, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_attention_maps_in_blocks_are_those_of_one_row_and_head(monkeypatch, dtype):
    """To rounding, and as many operations as there are blocks, not as there are rows and heads."""
    generator, softmaxes = torch.Generator().manual_seed(1), []
    query, key = (torch.randn(3, count, 4 * 8, generator=generator).to(dtype) for count in (6, 5))
    softmax = torch.Tensor.softmax
    monkeypatch.setattr(torch.Tensor, "softmax", lambda *args: softmaxes.append(1) or softmax(*args))
    found = attention_maps.attention_map(query, key, 4, dtype, features.CpuCopies(), first=3)
    assert len(softmaxes) == 1 and found.shape == (3, 4, 6, 3) and found.dtype == dtype
    monkeypatch.setattr(attention_maps, "_CPU_BLOCK", 4 * 6 * 5 * 5)
    assert torch.equal(attention_maps.attention_map(query, key, 4, dtype, features.CpuCopies(), first=3), found)
    assert len(softmaxes) == 1 + 3  # 12 rows and heads, five at a time
    for row in range(3):
        for head in range(4):
            q, k = (one[row, :, head * 8 : head * 8 + 8].float() for one in (query, key))
            expected = softmax(q @ k.T * 8**-0.5, -1)[:, :3]
            assert (found[row, head] - expected).abs().max() < (1e-6 if dtype == torch.float32 else 3e-4)


def test_rows_that_follow_one_another_are_not_copied():
    whole = activations(a_out=torch.randn(5, 2, 3, 3))
    whole = replace(whole, rows=tuple(features.Row(number) for number in range(5)))
    for rows in ([1, 2, 3], [2], [0, 2], [3, 2], []):
        part = whole.select_rows(rows)
        assert torch.equal(part.tensors["a-out"], whole.tensors["a-out"][rows]) and [r.image for r in part.rows] == rows
        shared = (
            part.tensors["a-out"].untyped_storage().data_ptr() == whole.tensors["a-out"].untyped_storage().data_ptr()
        )
        assert shared == (rows in ([1, 2, 3], [2]))


def test_an_attention_map_is_the_softmax():
    generator = torch.Generator().manual_seed(1)
    query, key = torch.randn(2, 6, 8, generator=generator), torch.randn(2, 5, 8, generator=generator)
    found = attention_maps.attention_map(query, key, 2, torch.float32, features.CpuCopies())
    for row in range(2):
        for head in range(2):
            q, k = query[row, :, head * 4 : head * 4 + 4].double(), key[row, :, head * 4 : head * 4 + 4].double()
            assert (found[row, head] - (q @ k.T / 2).softmax(-1)).abs().max() < 1e-6
