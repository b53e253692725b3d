"""The scripts read texts as the nodes read them."""

import itertools
import random
from decimal import Decimal

import pytest
from glassbox.nodes.activations import point_list, select_ids
from glassbox.nodes.common import named_strengths
from glassbox.nodes.neurons import mask_operations as neuron_edits
from glassbox.nodes.neurons.mask import NeuronMask, uniform_scales

from tools.launcher.comfyui import PACK_NAME

_IDS = [
    f"up-level{level}-repeat{repeat}-{part}"
    for level in range(3)
    for repeat in range(2)
    for part in ("res-out", "vit-block0-self-q", "vit-block0-cross-q", "vit-out")
]
_EDITS = [
    "",
    "beard: 0.8, glasses: -0.5",
    "a:1\nb: 2;c : +3e-1",
    "x: .5, x: 1.",
    "with: colon: 2",
    " , ;\n",
    "beard",
    "beard:",
    ": 1",
    "beard: one",
    "a: 1, b",
    "a: 1 2",
    "a: inf",
    "a: 1e999",
    "beard 1",
    "beard=1, hat = -0.5",
    "long hair -.5\nPC 2 1",
    "PC 1",
    "beard 1_0",
    "a = b: 2",
]
_LISTS = [
    "up-level1-*",
    "*-out",
    "up-level?-repeat0-res-out, up-level2-*",
    "*[!t]",
    "up-level[01]-*-self-q",
    "up-level0-repeat0-res-out # a note\n\n*-cross-q",
    "[",
    "up-level0[-]*",
    "*-vit-block0-[cs]*-q",
]
_POINTS = [
    "64, 48",
    "50%, 30%\n(10 20)",
    "1,2;3 , 4;\n\n5.5 6",
    "[[1, 2], [3.5, 4]]",
    '[{"x": 1, "y": 2}]',
    "1",
    "1, 2 x",
    "1, 500",
    "-1, 0",
    "[[1]]",
    "[{",
    "1e1, 2",
]
_SIZE = (96, 128)
_BLOCKS = ("input_blocks.1.1", "input_blocks.11.1", "middle_block.1")
_LAYERS = [
    *(f"{block}.transformer_blocks.0" for block in _BLOCKS),
    "middle_block.1.transformer_blocks.1",
]
_NEURONS = [(f"{layer}.attn2.to_v", index) for layer in _LAYERS for index in (1, 2, 10)]
_NAMES = [
    "input_blocks.1.1",
    "input_blocks.1.1 1, 10",
    "middle_block.1 2",
    "middle_block.1.transformer_blocks.1 1 2",
    f"{_NEURONS[0][0]} 1,2\n\nmiddle_block.1",
    "middle_block",
    "input_blocks.1",
    "nose",
    "input_blocks.1.1 x",
]


@pytest.fixture(scope="module")
def call(browser, server):
    """Call a function of a script with plain arguments; the page has the front end's address and no
    more.
    """
    page = browser.new_page()
    page.goto(f"{server.url}/system_stats")

    def evaluate(module: str, body: str, arguments: list):
        address = f"/extensions/{PACK_NAME}/text/{module}"
        return page.evaluate(
            f"async given => {{ const text = await import('{address}'); {body} }}", arguments
        )

    return evaluate


@pytest.mark.parametrize("text", _EDITS)
def test_edits_parse_as_in_python(call, text):
    found = call(
        "edits.mjs",
        "const {strengths, unread} = text.read(given[0]); return [[...strengths], unread]",
        [text],
    )
    try:
        expected = {}
        for name, strength in named_strengths.parse(text):
            expected[name] = expected.get(name, 0) + strength
    except ValueError as error:
        assert found[1] and f"'{found[1][0]}'" in str(error)
        return
    assert found == [[list(pair) for pair in expected.items()], []]


def test_ten_thousand_ranges_are_on_the_grid_of_their_step(call):
    """As the browser steps: 0 is a place of every slider, and dust beside it is 0."""
    draw = random.Random(1)
    directions = []
    for _ in range(10_000):
        ends = sorted(draw.uniform(-1, 1) * 10 ** draw.uniform(-3, 3) for _ in range(2))
        directions.append({"low": ends[0], "high": ends[1], "raw": 10 ** draw.uniform(-2, 7)})
    body = """
        return given.map((direction, number) => {
            const range = text.range(direction, number % 2 > 0)
            const { low, high, step } = range
            const dust = [0.49, -0.49, 1e-12, -1e-16].map(part => part * step)
            const places = [0.123, 0.5, 0.987].map(part => low + part * (high - low))
            return {
                low, high, step,
                zeros: dust
                    .flatMap(value => [text.onGrid(value, range), text.settled(value, range)])
                    .filter(value => !Object.is(value, 0)).length,
                places: places.map(place => [place, text.onGrid(place, range)]),
            }
        })"""
    for number, (direction, range_) in enumerate(
        zip(directions, call("ranges.mjs", body, directions), strict=True)
    ):
        low, high, step = (Decimal(repr(range_[name])) for name in ("low", "high", "step"))
        assert low % step == 0 and high % step == 0 and low <= 0 <= high
        assert step.log10() % 1 == 0
        factor = direction["raw"] if number % 2 else 1
        assert float(low) <= direction["low"] * factor + 1e-5 * float(step)
        assert float(high) >= direction["high"] * factor - 1e-5 * float(step)
        assert range_["zeros"] == 0
        for place, snapped in range_["places"]:
            assert Decimal(repr(snapped)) % step == 0
            assert abs(snapped - place) <= 0.5001 * float(step)


@pytest.mark.parametrize(
    ("written", "names", "meant"),
    [
        ("Beard", ["beard", "hat"], "beard"),
        ("beard", ["Beard", "beard"], "beard"),
        ("BEARD", ["Beard", "beard"], None),
        ("horns", ["beard"], None),
    ],
)
def test_names_are_found_in_upper_and_lower_case_as_in_python(call, written, names, meant):
    assert call("edits.mjs", "return text.named(...given) ?? null", [written, names]) == meant
    assert named_strengths.matching_name(written, names) == meant


@pytest.mark.parametrize(
    ("before", "name", "strength", "after"),
    [
        ("", "beard", 0.5, "beard: 0.5"),
        ("beard: 0.8, glasses: -0.5", "beard", 0.1, "beard: 0.1, glasses: -0.5"),
        ("beard: 0.8, glasses: -0.5", "beard", None, "glasses: -0.5"),
        ("beard: 0.8, glasses: -0.5", "glasses", None, "beard: 0.8"),
        ("beard: 0.8\nglasses: 1\n", "hat", 1 / 3, "beard: 0.8\nglasses: 1\nhat: 0.333333"),
        ("a: 1, b: 1, a: 2", "a", 0.5, "a: 0.5, b: 1"),
        ("a: 1", "b", None, "a: 1"),
        ("a: 1, nonsense", "a", 2, "a: 2, nonsense"),
    ],
)
def test_an_edit_changes_nothing_else(call, before, name, strength, after):
    assert call("edits.mjs", "return text.write(...given)", [before, name, strength]) == after


@pytest.mark.parametrize("text", _LISTS)
def test_lists_parse_as_in_python(call, text):
    chosen, unknown = call(
        "ids.mjs",
        "const {chosen, unknown} = text.read(...given); return [[...chosen], unknown]",
        [text, _IDS],
    )
    try:
        expected = select_ids.match_ids(_IDS, text)
    except select_ids.NoSuchActivationError as error:
        assert f"'{unknown[0]}'" in str(error)
        return
    assert (sorted(chosen), unknown) == (sorted(expected), [])


def test_every_switch_is_what_python_reads(call):
    """Random switches, starting from lists with wildcards and comments: the text always names what
    was switched on.
    """
    generator = random.Random(1)
    for start in _LISTS[:3]:
        switches = [
            (generator.sample(_IDS, generator.randint(1, 3)), generator.random() < 0.5)
            for _ in range(12)
        ]
        body = """const texts = []; let now = given[0];
            for (const [some, on] of given[2]) {
                now = text.write(now, given[1], some, on); texts.push(now)
            }
            return texts"""
        texts = call("ids.mjs", body, [start, _IDS, switches])
        expected = set(select_ids.match_ids(_IDS, start))
        for (some, on), now in zip(switches, texts, strict=True):
            expected = expected | {*some} if on else expected - {*some}
            assert set(select_ids.match_ids(_IDS, now)) == expected


@pytest.mark.parametrize("text", _POINTS)
def test_points_parse_as_in_python(call, text):
    height, width = _SIZE
    found = call(
        "points.mjs", "return text.read(...given)", [text, {"width": width, "height": height}]
    )
    try:
        expected = point_list.parse(text, _SIZE).tolist()
    except ValueError:
        assert found["problem"]
        return
    assert found["problem"] is None
    assert [[point["x"], point["y"]] for point in found["points"]] == [
        pytest.approx(pair) for pair in expected
    ]


@pytest.mark.parametrize(
    ("before", "number", "point", "after"),
    [
        ("1, 2\n50%, 50%\n3, 4", 1, {"x": 7.04, "y": 8}, "1, 2\n7, 8\n3, 4"),
        ("1, 2\n50%, 50%\n3, 4", 0, None, "50%, 50%\n3, 4"),
        ("1, 2; 3, 4", 1, None, "1, 2"),
        ("[[1, 2], [3, 4]]", 1, {"x": 5, "y": 6}, "1, 2\n5, 6"),
        ("nonsense\n1, 2", 0, {"x": 5, "y": 6}, "nonsense\n5, 6"),
    ],
)
def test_a_moved_point_changes_nothing_else(call, before, number, point, after):
    size = {"width": 128, "height": 96}
    assert call("points.mjs", "return text.move(...given)", [before, number, point, size]) == after


def _named(text: str) -> set[int]:
    mask = NeuronMask(uniform_scales(_NEURONS))
    dropped = set(mask.neurons) - set(neuron_edits.select_named(mask, text, keep=False).neurons)
    return {_NEURONS.index(neuron) for neuron in dropped}


@pytest.mark.parametrize("text", _NAMES)
def test_neurons_parse_as_in_python(call, text):
    neurons = [{"path": path, "index": index} for path, index in _NEURONS]
    body = "const {named, unknown} = text.read(...given); return [[...named], unknown]"
    named, unknown = call("neurons.mjs", body, [text, neurons])
    try:
        expected = _named(text)
    except ValueError as error:
        assert f"'{unknown[0]}'" in str(error)
        return
    assert (set(named), unknown) == (expected, [])


def test_every_switched_neuron_is_what_python_reads(call):
    generator, neurons = (
        random.Random(2),
        [{"path": path, "index": index} for path, index in _NEURONS],
    )
    for start in _NAMES[:5]:
        switches = [
            (generator.randrange(len(_NEURONS)), generator.random() < 0.5) for _ in range(15)
        ]
        body = """const texts = []; let now = given[0];
            for (const [place, on] of given[2]) {
                now = text.write(now, given[1], place, on); texts.push(now)
            }
            return texts"""
        expected = _named(start)
        for (place, on), now in zip(
            switches, call("neurons.mjs", body, [start, neurons, switches]), strict=True
        ):
            expected = expected | {place} if on else expected - {place}
            assert _named(now) == expected


def test_ranges_and_random_strengths(call):
    body = """const ranges = given.map(([low, high, raw]) => text.range({low, high, raw}, true));
        const least = [0.498, 0.5, 0.502].flatMap(
            (draw) => text.randomStrengths([ranges[1]], () => draw));
        return [ranges, text.randomStrengths(ranges, () => 1), least]"""
    ranges, strengths, least = call(
        "ranges.mjs", body, [[-0.83, 1, 1], [-1, 1, 500000], [0, 1, 0.001]]
    )
    for found, (low, high) in zip(ranges, [(-0.83, 1), (-500000, 500000), (0, 0.001)], strict=True):
        assert found["low"] <= low * (1 - 1e-9) and found["high"] >= high * (1 - 1e-9)
        assert 10 <= (found["high"] - found["low"]) / found["step"] <= 2001
    for strength, found in itertools.zip_longest(strengths, ranges):
        assert strength == pytest.approx(found["high"] / 3**0.5, abs=found["step"])
    assert least == [
        pytest.approx(sign * ranges[1]["step"]) for sign in (-1, 1, 1)
    ]  # which would round to 0


def test_curve_scales_ticks_and_text(call):
    """Scales cover the losses, ticks are round numbers inside, and the text gives the last and the
    lowest loss.
    """
    each = [[step, 0.1 + (5 if step == 30 else step / 1000)] for step in range(1, 101)]
    seen = [[0, 0.3], [50, 0.25], [100, 0.28]]
    curve = {"steps": 200, "smooth": 25, "each": each, "mean": [[100, 0.15]], "validation": seen}
    body = """const {low, high} = text.bounds(given);
        const texts = [text.summary(given), text.summaryAt(given, 60)]
        return [low, high, text.ticks(low, high, 5), text.lastStep(given), ...texts]"""
    low, high, ticks, last, summary, at = call("curves.mjs", body, curve)
    assert 0.08 < low < 0.105 and 0.3 < high < 0.35 and last == 200
    assert ticks == pytest.approx([0.1, 0.15, 0.2, 0.25, 0.3])
    assert summary == "Step 100 of 200 · training 0.15 · held-out 0.28 at 100, lowest 0.25 at 50"
    assert at == "Step 100 · training 0.15 · held-out 0.25 at 50"
    empty = {"steps": 9, "smooth": 25, "each": [], "mean": [], "validation": [[0, 0.5]]}
    low, high, ticks, last, summary, _ = call(
        "curves.mjs", body.replace("text.summaryAt(given, 60)", "null"), empty
    )
    assert low < 0.5 < high and ticks and last == 9 and summary == "held-out 0.5 at 0"


def test_sentences_in_the_language_of_the_canvas(call):
    body = """const shown = []
        for (const locale of given) {
            await text.speak(locale); shown.push(text.say('{0} of {1} selected', 2, 5))
        }
        return shown"""
    assert call("words.js", body, ["zh", "fr", "en"]) == [
        "已选 2 / 5",
        "2 of 5 selected",
        "2 of 5 selected",
    ]


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-3, 7), (0.0011, 0.0013), (0, 16), (1e5, 3.2e5)]
)
def test_ticks_are_round_numbers(call, low, high):
    ticks = call("curves.mjs", "return text.ticks(...given, 5)", [low, high])
    assert 2 <= len(ticks) <= 6 and low <= ticks[0] < ticks[-1] <= high
    steps = [after - before for before, after in itertools.pairwise(ticks)]
    assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-3)
