"""Tables as other programs write them: identifiers stay text, in every format and separator."""

import gzip
import json

import polars as pl
import pytest

from scope_torch.cli.record_table import write_table
from scope_torch.errors import InputError
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.tasks.frames import in_order, read_frame
from scope_torch.tasks.matrix import load_matrices
from scope_torch.tasks.table import listed_configurations, load_table

LONG = "1234567890123456789012345678901234567890"
LLMS = ["001", "1", "1e5", "100000", "4.1", "4.10", "TRUE"]
QUERIES = ["1", "01", LONG, LONG[:-1] + "1", "2.50", "2.5"]
ROWS = [
    {"llm": llm, "query": query, "quality": number / 10, "cost_usd": 1e-5 * number}
    for number, llm in enumerate(LLMS)
    for query in QUERIES
]


def lines_of(separator: str, comma: str = ".") -> str:
    cells = ([str(value) for value in row.values()] for row in ROWS)
    lines = [
        separator.join([*keys, *(n.replace(".", comma) for n in numbers)])
        for *keys, a, b in cells
        for numbers in [(a, b)]
    ]
    return "\n".join([separator.join(ROWS[0]), *lines])


def json_lines() -> str:
    """Identifiers as numbers where JSON has such a number, such as 4.10."""
    lines = []
    for row in ROWS:
        llm, query = (
            row[name] if row[name].startswith(("0", "T")) else f"@{row[name]}@"
            for name in ("llm", "query")
        )
        line = json.dumps({**row, "llm": llm, "query": query})
        lines.append(line.replace('"@', "").replace('@"', ""))
    return "\n".join(lines)


def parquet(path):
    pl.DataFrame(ROWS).write_parquet(path)
    return path.read_bytes()


@pytest.mark.parametrize(("separator", "comma"), [("\t", "."), (";", ","), ("|", ".")])
def test_a_matrix_whose_column_names_have_commas_is_read(tmp_path, separator, comma):
    """The name of the column of queries tells which separator is meant."""
    names = "a=x,b=y,c=z", "a=x,b=z,c=z"
    for outcome, values in (("quality", ("1", "0")), ("cost_usd", ("0.1", "0.2"))):
        rows = ["query", *names], ["q 1", *(value.replace(".", comma) for value in values)]
        (tmp_path / outcome).write_text("".join(separator.join(row) + "\n" for row in rows))
    (tmp_path / "columns").write_text(json.dumps({names[0]: {"b": "y"}, names[1]: {"b": "z"}}))
    paths = {outcome: tmp_path / outcome for outcome in ("quality", "cost_usd")}
    table = load_matrices(paths, tmp_path / "columns")
    assert (table.llms, table.queries) == ((("y", "z"),), ("q 1",))
    assert table.cost_usd.tolist() == [[0.1], [0.2]]


def test_the_first_line_is_limited_behind_that_of_excel_too(tmp_path):
    (tmp_path / "runs").write_text("sep=;\n" + ";".join(f"c{i}" for i in range(9)) + "\n")
    with pytest.raises(InputError, match="first line is above 20 bytes"):
        read_frame(tmp_path / "runs", [], header_bytes=20)


def test_a_point_in_a_column_that_nobody_reads_is_none_of_a_number(tmp_path):
    (tmp_path / "runs").write_text("llm;query;note;quality;cost_usd\na;1;4.5;0,5;1,5\n")
    assert load_table(tmp_path / "runs", ["llm"]).cost_usd.tolist() == [[1.5]]


FILES = {
    "comma": lambda _: lines_of(",").encode(),
    "semicolon": lambda _: lines_of(";").encode(),
    "semicolon, decimal comma": lambda _: lines_of(";", ",").encode(),
    "of Excel": lambda _: ("sep=;\r\n" + lines_of(";", ",")).encode("utf-8-sig"),
    "tab": lambda _: lines_of("\t").encode(),
    "bar": lambda _: lines_of("|").encode(),
    "utf-8 with a mark": lambda _: lines_of(",").encode("utf-8-sig"),
    "utf-16": lambda _: lines_of("\t").encode("utf-16"),
    "utf-16, big end first": lambda _: b"\xfe\xff" + lines_of(",").encode("utf-16-be"),
    "other line ends": lambda _: lines_of(",").replace("\n", "\r\n").encode(),
    "blank lines": lambda _: (lines_of(",") + "\n\n,,,\n  \n\n").encode(),
    "spaces around numbers": lambda _: (
        lines_of(",").replace(",0.", ", 0. ").replace(". ", ".").encode()
    ),
    "gzipped": lambda _: gzip.compress(lines_of(";").encode()),
    "json lines": lambda _: json_lines().encode(),
    "json lines, blank ones": lambda _: ("\ufeff" + json_lines() + "\n\n").encode(),
    "json list": lambda _: f"[{json_lines()}]".replace("}\n{", "},\n{").encode(),
    "parquet": parquet,
}


@pytest.mark.parametrize("kind", FILES)
def test_identifiers_are_text_and_numbers_numbers(tmp_path, kind):
    path = tmp_path / "runs"
    content = FILES[kind](path)
    path.write_bytes(content)
    table = load_table(path, ["llm"])
    assert table.llms == (tuple(sorted(LLMS)),)
    assert set(table.queries) == set(QUERIES)
    for row in ROWS:
        cell = table.llms[0].index(row["llm"]), table.queries.index(row["query"])
        assert (table.quality[cell], table.cost_usd[cell]) == (row["quality"], row["cost_usd"])


@pytest.mark.parametrize("missing", ["", "NaN", "nan", '""', "  "])
@pytest.mark.parametrize("column", ["quality", "cost_usd"])
def test_empty_and_nan_are_missing(tmp_path, missing, column):
    row = {"quality": "1", "cost_usd": "0.1", column: missing}
    path = tmp_path / "runs.csv"
    path.write_text(
        f"llm,query,quality,cost_usd\na,1,1,1\na,2,{row['quality']},{row['cost_usd']}\n"
    )
    with pytest.raises(InputError, match=r"1 cells are missing, first .*'a'.*, query 2"):
        load_table(path, ["llm"])
    assert load_table(path, ["llm"], on_missing="drop_queries").queries == ("1",)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_missing_numbers_of_every_format_are_alike(tmp_path, suffix):
    frame = pl.DataFrame(
        {"llm": ["a"] * 3, "query": [1, 2, 3], "quality": [1.0, None, float("nan")],
         "cost_usd": [1, 1, 1]}
    )  # fmt: skip
    path = tmp_path / f"runs.{suffix}"
    if suffix == "csv":
        frame.write_csv(path)
    elif suffix == "parquet":
        frame.write_parquet(path)
    else:
        lines = ({k: v for k, v in row.items() if v is not None} for row in frame.to_dicts())
        path.write_text("\n".join(map(json.dumps, lines)))
    assert load_table(path, ["llm"], on_missing="drop_queries").queries == ("1",)


@pytest.mark.parametrize("value", ['""', "  ", ""])
@pytest.mark.parametrize("at", [0, 1])
def test_a_row_without_an_identifier_is_refused(tmp_path, value, at):
    cells = ["a", "2", "1", "1"]
    cells[at] = value
    path = tmp_path / "runs.csv"
    path.write_text("llm,query,quality,cost_usd\na,1,1,1\n" + ",".join(cells) + "\n")
    with pytest.raises(InputError, match="has an empty cell; fill it"):
        load_table(path, ["llm"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PK\x03\x04\x14\0", "is an Excel workbook or a zip archive; save the sheet as CSV"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", "is an old Excel workbook"),
        (b"ARROW1\0\0", "save it as Parquet"),
        (b"\x28\xb5\x2f\xfd\0", "zstd"),
        ("llm,query,quality,cost_usd\nmá,1,1,1".encode("latin-1"), "save it as CSV in UTF-8"),
        (b'{"llm": "a"}\n{"llm": ', "line 2 is not JSON"),
        (b"\rllm,query,quality,cost_usd\na,1,1,1", "new-line character seen"),
        (b"llm,query,quality,cost_usd\ra,1,1,1", "save it as CSV in UTF-8"),
        (b'{"llm": "a"}\n{"quality": 0, "quality": 1}', "line 2: the key 'quality' is there twice"),
        (b'[{"llm": "a"}, 7]', "has '7' in the place of an object"),
        (b"llm;query;quality;cost_usd\na;1;1,000.5;1", "'1,000.5', which is not a number"),
        (b'llm,query,quality,cost_usd\na,1,"0,5",1', "'0,5', which is not a number"),
        (  # 1234 and 0.2 in one country, 1.234 and 20 in none
            b"llm;query;quality;cost_usd\na;1;1;1.234\nb;1;1;0,20",
            "'0,20', which is not a number; write all numbers with a point, or all with a comma",
        ),
        (b"llm;query;quality;cost_usd\na;1;1;1,234\nb;1;1;0.5", "'1,234', which is not a number"),
        (b"sep=;\nllm;query;quality;cost_usd\na;1;1;1\nb;1;1;1;1", "line 4 has more cells than"),
        (b"llm;query;quality;cost_usd\na;1;0,5;1.234", "'0,5', which is not a number; write all"),
    ],
)
def test_what_cannot_be_read_says_how_to_mend_it(tmp_path, content, words):
    path = tmp_path / "runs"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_table(path, ["llm"])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_columns_of_one_name_are_refused(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("plan,query,quality,quality,cost_usd\na,1,1,0,0.5\n")
    with pytest.raises(InputError, match="two columns 'quality'; delete one"):
        load_table(path, ["plan"])


def test_matrices_have_identifiers_as_text_too(tmp_path):
    columns = tmp_path / "columns.json"
    columns.write_text('{"a": {"llm": "4.1"}, "b": {"llm": "4.10"}}')
    paths = {}
    for name in ("quality", "cost_usd"):
        paths[name] = tmp_path / f"{name}.csv"
        paths[name].write_text("query;a;b\n001;0,5;1\n1;1;NaN\n\n")
    table = load_matrices(paths, columns, on_missing="restrict")
    assert table.queries == ("001", "1")
    assert table.llms == (("4.1", "4.10"),)
    assert table.quality[0].tolist() == [0.5, 1.0]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (["10", "9", "2"], ["2", "9", "10"]),
        (["1.5", "-1", "1e1", "01", "1"], ["-1", "01", "1", "1.5", "1e1"]),
        (["10", "9", "q1"], ["10", "9", "q1"]),
        ([LONG, LONG[:-1] + "1"], [LONG, LONG[:-1] + "1"]),
    ],
)
def test_numbers_are_in_the_order_of_numbers(found, expected):
    assert in_order(pl.Series(found, dtype=pl.String)).to_list() == expected


@pytest.mark.parametrize("on_missing", ["error", "drop_queries"])
def test_where_no_query_is_complete_the_message_names_restrict(tmp_path, on_missing):
    path = tmp_path / "runs.csv"
    path.write_text("llm,query,quality,cost_usd\na,1,1,1\nb,2,1,1\n")
    with pytest.raises(InputError) as caught:
        load_table(path, ["llm"], on_missing=on_missing)
    assert "no query was run under every configuration" in str(caught.value)
    assert "task.on_missing=restrict" in str(caught.value)
    assert "drop_queries" not in str(caught.value)


def test_names_that_a_spreadsheet_would_calculate_are_read_back(tmp_path):
    """`record_table` writes them with a mark, in headers and lists of configurations too."""
    llms = ("@cf/llama", "pro")
    problem = SelectionProblem(
        "d",
        ("plan", "@answer"),
        (llms, llms),
        2,
        theta_ref=(1, 1),
        reference_quality=1.0,
        reference_cost_usd=0.1,
        epsilon=0.1,
    )
    thetas = [(a, b) for a in (0, 1) for b in (0, 1)]
    observed = [
        Observation(theta, q, 0.1 * (1 + theta[0]), 1.0) for theta in thetas for q in (0, 1)
    ]
    write_table(problem, observed, path := tmp_path / "runs.csv")
    table = load_table(path, ["plan", "@answer"], on_missing="restrict")
    assert table.llms == (llms, llms)
    lines = dict.fromkeys(line.rsplit(",", 3)[0] for line in path.read_text().splitlines())
    (tmp_path / "listed.csv").write_text("\n".join([*lines][:3]))
    listed = listed_configurations(table, tmp_path / "listed.csv").listed
    assert sorted(listed) == [(0, 0), (0, 1)]
