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
    enlarged = torch.nn.functional.interpolate(
        coarse.float(), size=(6, 4), mode="bilinear", align_corners=False
    )
    assert torch.equal(stacked[:, :5], enlarged)


def test_equal_weighting_gives_each_activation_unit_length():
    long, short = torch.randn(2, 5, 4, 4) * 100, torch.randn(2, 3, 2, 2)
    joined = activations(a_out=long, b_out=short).joined()
    assert torch.allclose(joined[:, :5].norm(dim=1), torch.ones(2, 4, 4))
    assert torch.allclose(joined[:, 5:].norm(dim=1), torch.ones(2, 4, 4))
    assert torch.equal(activations(a_out=long).joined(), long)


def test_a_mean_needs_the_same_rows():
    with pytest.raises(ValueError, match="different rows"):
        features.mean(
            [activations(a_out=torch.ones(1, 1, 1, 1)), activations(a_out=torch.ones(2, 1, 1, 1))]
        )


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
    values = [
        torch.full((1, 1, 1, 1), value, dtype=torch.float16)
        for value in (60000.0, 60000.0, 30048.0)
    ]
    result = features.mean(activations(a_out=value) for value in values).tensors["a-out"]
    assert (
        result.item() == 50016 and result.dtype == torch.float16
    )  # the sum does not fit into float16


@pytest.mark.parametrize("size", [(512, 512), (37, 53), (8, 5)])
def test_values_at_is_interpolation_then_indexing(size):
    feature = torch.randn(7, 8, 5, generator=torch.Generator().manual_seed(0))
    whole = torch.nn.functional.interpolate(
        feature[None], size=size, mode="bilinear", align_corners=False
    )[0]
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
    assert point_list.parse(text, (50, 100)).tolist() == pytest.approx(
        torch.tensor([[10, 20], [30.5, 40]]).numpy()
    )


def test_points_on_the_edge_are_inside_and_come_back():
    assert point_list.parse("100, 50", (50, 100)).tolist() == [[99, 49]]
    assert point_list.parse(
        point_list.to_text(point_list.parse("1.25, 2", (9, 9))), (9, 9)
    ).tolist() == [[1.25, 2]]


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


@pytest.mark.parametrize(
    "text", ["1" + " " * 3000 + "x", "1," * 40_000, "((" * 5000, "[[" * 30_000, "1 " * 90_000]
)
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
    attention = torch.rand(2, 6, 6, generator=torch.Generator().manual_seed(0)).softmax(
        -1
    )  # 2 rows of 3 positions
    points = torch.tensor([[0.5, 0.9], [0.99, 0.1], [1.0, 1.0]])  # positions 4, 2 and 5
    found = attention_maps.attention_from(attention, (2, 3), points)
    assert torch.allclose(
        found.flatten(1), (attention[:, 4] + attention[:, 2] + attention[:, 5]) / 3, atol=1e-7
    )


def softmax_of(attention, frames):
    """(rows * frames, heads, positions, count) in float64, one row, frame and head at a time."""
    rows, heads, tokens, channels = attention.query.shape
    groups = heads // attention.key.shape[1]
    query = attention.query.double().unflatten(2, (frames, -1))
    key = attention.key.double().repeat_interleave(groups, 1)
    logits = torch.einsum("rhfpd,rhkd->rfhpk", query, key)
    logits *= channels**-0.5 if attention.scale is None else attention.scale
    if attention.mask is not None:
        full = attention.mask.double().expand(rows, heads, tokens, key.shape[2])
        logits += full.unflatten(2, (frames, -1)).transpose(1, 2)
    kept = slice(attention.begin, attention.begin + attention.count)
    return logits.softmax(-1)[..., kept].flatten(0, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("shared", [4, 2])
@pytest.mark.parametrize("mask", [None, (1, 1, 1), (3, 1, 6), (1, 4, 6)])
def test_attention_maps_in_blocks(monkeypatch, dtype, frames, shared, mask):
    """To rounding, and as many operations as there are blocks, not as there are rows and heads."""
    generator, softmaxes = torch.Generator().manual_seed(1), []
    query, key = (
        torch.randn(3, heads, count, 8, generator=generator).to(dtype)
        for heads, count in ((4, 6), (shared, 5))
    )
    added = None if mask is None else torch.randn(*mask, 5, generator=generator)
    if added is not None:
        added[..., 4] = -torch.inf
    attention = attention_maps.QueriesAndKeys(
        query=query, key=key, begin=1, count=3, mask=added, scale=0.3 if frames > 1 else None
    )
    expected = softmax_of(attention, frames)
    softmax = torch.Tensor.softmax
    monkeypatch.setattr(
        torch.Tensor, "softmax", lambda *args, **how: softmaxes.append(1) or softmax(*args, **how)
    )
    given = {"dtype": dtype, "copies": features.CpuCopies(), "frames": frames}
    found = attention_maps.attention_map(attention, **given)
    assert len(softmaxes) == 1 and found.dtype == dtype
    assert found.shape == (3 * frames, 4, 6 // frames, 3)
    assert (found - expected).abs().max() < (1e-6 if dtype == torch.float32 else 3e-4)
    monkeypatch.setattr(attention_maps, "_CPU_BLOCK", 4 * (6 // frames) * 5 * 5)
    assert torch.equal(attention_maps.attention_map(attention, **given), found)
    blocks = -(-12 * frames // 5)  # rows, frames and heads, five at a time
    assert len(softmaxes) == 1 + blocks
    mean = attention_maps.head_mean_map(attention, (2, 3 // frames), frames)
    assert mean.shape == (3 * frames, 3, 2, 3 // frames)
    assert (mean.flatten(2).mT - expected.mean(1)).abs().max() < 1e-6


def test_rows_that_follow_one_another_are_not_copied():
    whole = activations(a_out=torch.randn(5, 2, 3, 3))
    whole = replace(whole, rows=tuple(features.Row(number) for number in range(5)))
    for rows in ([1, 2, 3], [2], [0, 2], [3, 2], []):
        part = whole.select_rows(rows)
        assert (
            torch.equal(part.tensors["a-out"], whole.tensors["a-out"][rows])
            and [r.image for r in part.rows] == rows
        )
        shared = (
            part.tensors["a-out"].untyped_storage().data_ptr()
            == whole.tensors["a-out"].untyped_storage().data_ptr()
        )
        assert shared == (rows in ([1, 2, 3], [2]))


def test_an_attention_map_is_the_softmax():
    generator = torch.Generator().manual_seed(1)
    query, key = (
        torch.randn(2, 6, 8, generator=generator),
        torch.randn(2, 5, 8, generator=generator),
    )
    attention = attention_maps.QueriesAndKeys.of_projections(query, key, 2)
    found = attention_maps.attention_map(attention, torch.float32, features.CpuCopies())
    for row in range(2):
        for head in range(2):
            q, k = (
                query[row, :, head * 4 : head * 4 + 4].double(),
                key[row, :, head * 4 : head * 4 + 4].double(),
            )
            assert (found[row, head] - (q @ k.T / 2).softmax(-1)).abs().max() < 1e-6
