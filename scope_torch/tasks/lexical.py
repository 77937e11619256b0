"""Retrieval of similar records by their words: deterministic and without an LLM."""

from __future__ import annotations

import heapq
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from scope_torch.tasks.grading import ascii_fold

Record = Mapping[str, str]


def word_features(record: Record) -> set[str]:
    """The words of a record, each with the name of its attribute."""
    return {
        f"{name}={word}"
        for name, value in record.items()
        for word in re.findall(r"[a-z0-9]+", ascii_fold(value).lower())
    }


class LexicalIndex:
    """Finds the records that share most words with a given one; rare words count most.

    Similarity is the cosine of vectors of inverse document frequencies.

    Args:
        records: The records to find.

    Examples:
        >>> index = LexicalIndex([{"name": "red house"}, {"name": "red barn"}, {"name": "inn"}])
        >>> [position for position, _ in index.nearest({"name": "the red barn"}, 2)]
        [1, 0]
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self._postings: dict[str, list[int]] = defaultdict(list)
        words = [sorted(word_features(record)) for record in records]
        for index, names in enumerate(words):
            for name in names:
                self._postings[name].append(index)
        self._weight = {
            name: math.log(1 + len(records) / len(found)) ** 2
            for name, found in self._postings.items()
        }
        self._norm = [math.sqrt(sum(map(self._weight.__getitem__, names))) for names in words]

    def nearest(self, record: Record, count: int) -> list[tuple[int, float]]:
        """The records most similar to `record`, which need not be one of them.

        Args:
            record: The record to compare with.
            count: Largest number of records.

        Returns:
            Index and similarity in [0, 1] of each record, most similar first, then by index; fewer
            than `count` if fewer records share a word.
        """
        names = sorted(word_features(record))  # sorted, because the order decides the rounding
        unseen = math.log(1 + len(self._norm)) ** 2  # weight of a word that no record has
        norm = math.sqrt(sum(self._weight.get(name, unseen) for name in names))
        shared: dict[int, float] = defaultdict(float)
        for name in names:
            for index in self._postings.get(name, ()):
                shared[index] += self._weight[name]
        scored = ((-round(s / (norm * self._norm[i]), 9), i) for i, s in shared.items())
        return [(i, -negative) for negative, i in heapq.nsmallest(count, scored)]
