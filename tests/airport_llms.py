"""Stand-ins for the LLMs of task=airport_city, on an endpoint of this machine."""

import functools
import re
import zlib

import pytest

from scope_torch.tasks import live
from scope_torch.tasks.airport_city import airport_city, read_airports
from scope_torch.tasks.dataset import Dataset

SHARE_RIGHT = {"smollm2-135m": 5, "qwen2.5-coder-0.5b": 60, "qwen2.5-coder-1.5b": 90}  # in percent


@functools.cache
def cities() -> dict[str, str]:
    return {row["iata"]: row["city"] for row in read_airports()}


def airport_llm(request: dict) -> str:
    """Keeps to the prompts of UniDM-DI; some models know more cities than others."""
    task, text = request["messages"][0]["content"], request["messages"][-1]["content"]
    if "ewrite the record" in task:
        return text
    if "rite the new record" in task:
        target = text.partition("New record:")[2]
        return f"Airport {re.findall('iata: (...)', target)[0]} is in the city of ____."
    assert "blank ____" in task
    code = re.findall("Airport (...) is", text)[0]
    knows = zlib.crc32(f"{request['model']} {code}".encode()) % 100
    return cities()[code] if knows < SHARE_RIGHT[request["model"]] else "Nowhere"


@functools.cache
def _few_airports(*, num_records: int = 1) -> Dataset:
    """24 queries to search on and 10 to deploy on, with one record each."""
    whole = airport_city(num_records=num_records)
    return whole._replace(queries=whole.queries[:24], held_out=whole.held_out[:10])


@pytest.fixture(name="_few_airports", autouse=True)
def few_airports(monkeypatch: pytest.MonkeyPatch) -> None:
    """task=airport_city in a module that imports this: reading all of it takes a second."""
    pairing = live.DATASETS["airport_city"]._replace(load=_few_airports)
    monkeypatch.setitem(live.DATASETS, "airport_city", pairing)
