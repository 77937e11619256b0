"""The table of a card on docs/gpu.md, and how it is measured."""

import csv
import itertools

import pytest
from long_runs import only_long

from scripts import time_device

FILE = time_device.PAGE.parents[1] / "benchmarks" / "devices.csv"


@pytest.mark.slow
def test_the_page_has_the_table_of_the_file():
    with FILE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    table = time_device.PAGE.read_text().split(time_device.BEGIN)[1].split(time_device.END)[0]
    assert table == time_device.table(rows)
    assert "10 searches of the card asked the same as the CPU's" in table
    assert table.count("torch's passes") == 5
    as_measured = [{**row, "same": row["same"] and row["same"] == "True"} for row in rows]
    assert time_device.table(as_measured) == table
    rows[1]["same"] = "False"
    assert "did NOT ask the same" in time_device.table(rows)


def test_the_page_has_the_table_of_whole_searches():
    with FILE.with_name("devices_whole.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    page = time_device.PAGE.read_text()
    table = page.split(time_device.WHOLE)[1].split(time_device.END)[0]
    assert table == time_device.table_of_whole(rows)
    assert "2 of the card asked the same as the CPU's" in table
    rows[1]["same"] = "False"
    assert "did NOT ask the same" in time_device.table_of_whole(rows)


@only_long
@pytest.mark.slow
def test_whole_searches_are_timed_and_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(time_device, "WHOLE_USD", 0.2)
    path = tmp_path / "whole.csv"
    with pytest.raises(SystemExit) as ended:
        time_device.main(["--whole", "1", "--devices", "cpu", "cpu", "--out", str(path)])
    assert ended.value.code == 0
    with path.open(newline="") as file:
        one, other = csv.DictReader(file)
    assert (one["same"], other["same"]) == ("", "True")
    assert one["asked"] == other["asked"]
    assert int(one["observations"]) > 300


@pytest.mark.slow
def test_a_search_is_timed_and_compared(tmp_path, capsys, monkeypatch):
    how = ["--devices", "cpu", "cpu", "--worlds", "data_imputation", "--methods", "scope"]
    path = tmp_path / "steps.csv"
    with pytest.raises(SystemExit) as ended:
        time_device.main([*how, "--out", str(path)])
    assert ended.value.code == 0
    with path.open(newline="") as file:
        one, other = csv.DictReader(file)
    assert (one["same"], other["same"]) == ("", "True")
    assert int(one["steps"]) > 20
    assert float(one["median_ms"]) > 0
    assert capsys.readouterr().out.count("data_imputation scope cpu") == 2

    real = time_device.search
    asked = iter([0, 1])
    monkeypatch.setattr(
        time_device, "search", lambda *of: (real(*of)[0], [next(asked)])
    )  # another query each time
    with pytest.raises(SystemExit) as ended:
        time_device.main(how)
    assert ended.value.code == 1
    for nothing in (["--devices", "cpu", "--worlds", "chain_of_6"], [*how, "--write"]):
        asked = itertools.count()
        with pytest.raises(SystemExit) as ended:
            time_device.main(nothing)
        assert ended.value.code == 2
    assert "nothing was measured on a card" in capsys.readouterr().err
