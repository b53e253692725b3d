"""Joining the results of pieces: the files are those of a single run over the whole list."""

import csv
import filecmp
import shutil

import members
import pytest
import torch
from glassbox.nodes.neurons import mask_file, neuron_statistics, statistics_file
from glassbox.nodes.neurons.mask import NeuronMask, SearchRecord, uniform_scales
from glassbox.nodes.neurons.neuron_statistics import Statistics
from glassbox.nodes.weights import member_sources, space_builder
from PIL import Image

from tools.launcher.batch.job import Piece
from tools.launcher.batch.joining import JOINS, results
from tools.launcher.batch.store import Store

PATH = "middle_block.1.transformer_blocks.0.attn2.to_v"


class Pieces:
    """Pieces in a store, each made by a function that is given the folder to write to."""

    def __init__(self, folder, makes, labels=(), texts=None):
        self.store, self.todo = Store(folder / "store"), []
        self.out = folder
        for number, (value, make) in enumerate(makes.items()):
            key = f"{number:064x}"
            self.todo.append(Piece(number, key, {"prompt": value}, dict(labels)))
            if make is not None:
                self.store.begin()
                make(self.store.work)
                self.store.finish(
                    key,
                    {"values": {"prompt": value}, "texts": {"7": texts[value]} if texts else {}},
                )

    def join(self, name):
        return JOINS[name](results(self.store, self.todo), self.out)


def test_the_index_names_every_piece_that_has_a_result(tmp_path):
    pieces = Pieces(
        tmp_path,
        {
            "a, b": lambda work: (work / "x.txt").write_text("x"),
            "failed": None,
            "c": lambda work: 0,
        },
    )
    pieces.join("index")
    rows = list(csv.DictReader((tmp_path / "index.csv").open()))
    assert [(row["piece"], row["prompt"], row["files"]) for row in rows] == [
        ("0", "a, b", "1"),
        ("2", "c", "0"),
    ]


def test_scores_become_one_table_and_a_histogram(tmp_path):
    tables = {
        name: f"prompt,score,is_memorized\n{name},{score},{score > 0.5}\n"
        for name, score in (("a", 0.25), ("b", 0.75), ("c", 0.255))
    }

    def writing(table):
        return lambda work: (work / "scores_00001_.csv").write_text(table)

    Pieces(tmp_path, {name: writing(table) for name, table in tables.items()}).join("scores")
    table = "prompt,score,is_memorized\na,0.25,False\nb,0.75,True\nc,0.255,False\n"
    assert (tmp_path / "scores.csv").read_text() == table
    assert (tmp_path / "memorized.txt").read_text() == "b\n"
    counted = {
        row["from"]: int(row["prompts"])
        for row in csv.DictReader((tmp_path / "histogram.csv").open())
    }
    assert (counted["0.25"], counted["0.75"], sum(counted.values())) == (2, 1, 3)
    with Image.open(tmp_path / "histogram.png") as image:
        assert image.size[0] > 100


def test_statistics_are_those_of_all_prompts(tmp_path):
    values = torch.randn(30, 5, 6, generator=torch.Generator().manual_seed(0))

    def of(part):
        return Statistics(
            len(part), neuron_statistics.layer_moments({PATH: part}), {PATH: (1.0, 2.0)}, "test"
        )

    def writing(part):
        return lambda work: statistics_file.write(of(part), work / "statistics.safetensors")

    Pieces(
        tmp_path, {str(number): writing(part) for number, part in enumerate(values.split(7))}
    ).join("statistics")
    joined, whole = statistics_file.read(tmp_path / "statistics.safetensors", []), of(values)
    assert joined.count == 30
    for name in ("mean", "squares", "low", "high"):
        torch.testing.assert_close(
            getattr(joined.layers[PATH], name), getattr(whole.layers[PATH], name), rtol=1e-9, atol=0
        )


def test_masks_become_a_folder_with_an_index_and_a_union(tmp_path):
    def writing(prompt, *neurons):
        found = SearchRecord(prompt, {PATH: neurons}, True)
        mask = NeuronMask(
            uniform_scales((PATH, index) for index in neurons), (found,), {PATH: (1.0, 2.0)}
        )
        return lambda work: mask_file.write(mask, work / "mask_00001_.json")

    Pieces(tmp_path, {"a cat": writing("a cat", 1, 2), "a dog": writing("a dog", 2, 3)}).join(
        "masks"
    )
    rows = list(csv.DictReader((tmp_path / "masks" / "index.csv").open()))
    assert [(row["file"], row["prompt"], row["neurons"]) for row in rows] == [
        ("000000_a_cat.json", "a cat", "2"),
        ("000001_a_dog.json", "a dog", "2"),
    ]
    union = mask_file.from_json((tmp_path / "mask.json").read_text(), "mask.json")
    assert union.neurons == [(PATH, 1), (PATH, 2), (PATH, 3)] and len(union.searches) == 2
    assert mask_file.from_json((tmp_path / "masks" / rows[1]["file"]).read_text(), "x").neurons == [
        (PATH, 2),
        (PATH, 3),
    ]


def test_a_space_of_pieces_is_that_of_the_folder_of_loras(tmp_path):
    folder = members.write_folder(tmp_path / "loras", 6)
    files = sorted(folder.glob("*.safetensors"))

    def writing(file):
        return lambda work: shutil.copyfile(file, work / "lora_00001_.safetensors")

    pieces = Pieces(
        tmp_path, {f"people/{file.name}": writing(file) for file in files}, {"age": "young"}
    )
    pieces.join("space")
    population = sorted((tmp_path / "population").iterdir())
    assert all(
        filecmp.cmp(one, other, shallow=False) for one, other in zip(population, files, strict=True)
    )
    rows = list(csv.DictReader((tmp_path / "labels.csv").open()))
    assert [row["member"] for row in rows] == [one.stem for one in population] and rows[0][
        "age"
    ] == "young"
    single = space_builder.build(
        member_sources.file_sources(tmp_path / "population"),
        space_builder.BuildSettings(),
        tmp_path / "single" / "space.safetensors",
    )
    assert single.members == tuple(one.stem for one in population)
    assert filecmp.cmp(
        tmp_path / "space.safetensors", tmp_path / "single" / "space.safetensors", shallow=False
    )


@pytest.mark.parametrize("count", [1, 61])
def test_images_come_on_sheets(tmp_path, count):
    def write(work):
        Image.new("RGB", (8, 8), "red").save(work / "image_00001_.png")

    Pieces(tmp_path, {str(number): write for number in range(count)}).join("images")
    sheets = sorted((tmp_path / "sheets").iterdir())
    assert [sheet.name for sheet in sheets] == [
        f"sheet_{number:04}.png" for number in range(1, 2 + (count > 60))
    ]
    with Image.open(sheets[0]) as image:
        assert (255, 0, 0) in {color for _, color in image.convert("RGB").getcolors(1 << 24)}


def test_texts_of_activations_are_joined(tmp_path):
    head = "ID     noise  granularity  locality\n"
    tables = [
        f"{head}a-out  0.100        0.200     0.300",
        f"{head}b      0.400        0.500     0.600  kept",
    ]
    texts = {"1": ["a note", tables[0]], "2": [tables[1], "image 0: hair 1.0%; uncertainty 0.1"]}
    pieces = Pieces(tmp_path, {"1": lambda work: 0, "2": lambda work: 0}, texts=texts)
    pieces.join("quality")
    rows = [line.split() for line in (tmp_path / "quality.txt").read_text().splitlines()]
    assert rows[1:] == [
        ["a-out", "0.100", "0.200", "0.300"],
        ["b", "0.400", "0.500", "0.600", "kept"],
    ]
    pieces.join("few_shot")
    assert (tmp_path / "few_shot.txt").read_text() == "image 0: hair 1.0%; uncertainty 0.1\n"


@pytest.mark.parametrize("name", ["statistics", "quality"])
def test_nothing_to_join_is_an_error(tmp_path, name):
    with pytest.raises(ValueError, match="There are no"):
        Pieces(tmp_path, {"a": lambda work: (work / "x.txt").write_text("x")}).join(name)
