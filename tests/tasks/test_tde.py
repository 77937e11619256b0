from pathlib import Path

import pytest

from scope_torch.errors import InputError
from scope_torch.tasks.tde import read_transformation, tde

ROWS = "//to hex  http://x.org/a\r\n1\t\tA\r\n2\tB\r\n3\t\t\tC\r\n \t\tD d\r\n5\t\té"


def write(folder: Path, semantic: str = ROWS, other: str = ROWS) -> str:
    names = {
        "benchmark-bing-query-logs/semantic_10.txt": ROWS,
        "benchmark-bing-query-logs/semantic_2.txt": semantic,
        "benchmark-bing-query-logs/unit_1.txt": ROWS,
        "benchmark-stackoverflow/1.txt": other,
    }
    for name, content in names.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode("cp1252"))
    return str(folder)


def test_rows_after_the_third_are_queries(tmp_path):
    dataset = tde(write(tmp_path, semantic="//two\n" + "a\t\tb\n" * 4), check_counts=False)
    assert [q.fields["instruction"] for q in dataset.queries] == [
        "two",
        "to hex  http://x.org/a",
        "to hex  http://x.org/a",
    ]
    query = dataset.queries[1]
    assert query.fields["demonstrations"] == [["1", "A"], ["2", "B"], ["3", "C"]]
    assert (query.fields["source"], query.gold) == (" ", "D d")  # a space can be a source
    assert [q.gold for q in dataset.held_out] == ["D d", "é"]


@pytest.mark.parametrize(("output", "quality"), [(" d D\n", 1), ("D", 0), ("", 0)])
def test_metric(tmp_path, output, quality):
    dataset = tde(write(tmp_path), check_counts=False)
    assert dataset.metric(output, dataset.queries[0]) == quality


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the first line must be //"),
        ("1\t\tA\n", "the first line must be //"),
        ("//do\n" + "1\t\tA\n" * 3, "3 rows, but 3 demonstrations and a row to ask for"),
        (ROWS + "\r\n77", "the row '77' has no target"),
        (ROWS + "\r\n77\t\t", "has no target"),
    ],
)
def test_bad_files_are_named(tmp_path, content, message):
    path = tmp_path / "2.txt"
    path.write_bytes(content.encode("cp1252"))
    with pytest.raises(InputError, match=message):
        read_transformation(path)


def test_wrong_counts_and_absent_files_are_named(tmp_path):
    folder = write(tmp_path)
    with pytest.raises(
        InputError, match=r"4 queries in semantic_\*\.txt, but the data set has 102"
    ):
        tde(folder)
    (tmp_path / "benchmark-stackoverflow" / "1.txt").unlink()
    with pytest.raises(InputError, match=r"benchmark-stackoverflow has no \*\.txt; take"):
        tde(folder, check_counts=False)
    with pytest.raises(InputError, match=r"no data folder 'absent' .*Transform-Data-by-Example"):
        tde("absent")


def test_real_files(real_folder):
    dataset = tde(real_folder("tde"))
    assert (len(dataset.queries), len(dataset.held_out)) == (102, 710)
    assert all(len(q.fields["demonstrations"]) == 3 for q in (*dataset.queries, *dataset.held_out))
    assert all(dataset.metric(q.gold.upper(), q) == 1 for q in dataset.held_out)
