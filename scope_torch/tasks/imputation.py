"""Data imputation: each query asks for a missing value of a record."""

from __future__ import annotations

from collections.abc import Sequence

from scope_torch.errors import whole_number
from scope_torch.tasks.dataset import Query
from scope_torch.tasks.lexical import LexicalIndex, Record

NUM_RECORDS = 3


def imputation_queries(
    rows: Sequence[Record],
    pool: Sequence[Record],
    attribute: str,
    num_records: int = NUM_RECORDS,
) -> tuple[Query, ...]:
    """Makes a query from every row, with the most similar records of a pool.

    Records are compared by the text of their other attributes. So retrieval costs nothing and gives
    the same records in every run.

    Args:
        rows: Complete records; a query asks for the value of `attribute`.
        pool: Complete records for retrieval.
        attribute: Name of the attribute to impute.
        num_records: Number of records for each query.

    Returns:
        Queries with the fields `records` (most similar first), `target` (the row without the
        attribute) and `attribute`; gold is the value of the attribute.

    Raises:
        InputError: If `num_records` is no whole number of at least 0.
    """
    num_records = whole_number("num_records", num_records, 0)
    index = LexicalIndex([_without(record, attribute) for record in pool])
    queries = []
    for row in rows:
        target = _without(row, attribute)
        found = [i for i, _ in index.nearest(target, num_records)]
        # If a row shares words with too few records, the first other records fill the gap.
        found += [i for i in range(len(pool)) if i not in found][: num_records - len(found)]
        records = [dict(pool[i]) for i in found]
        fields = {"records": records, "target": target, "attribute": attribute}
        queries.append(Query(fields, row[attribute]))
    return tuple(queries)


def _without(record: Record, attribute: str) -> dict[str, str]:
    return {name: value for name, value in record.items() if name != attribute}
