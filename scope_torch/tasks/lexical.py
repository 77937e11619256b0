"""Retrieval of similar records by shared text: deterministic and without an LLM."""

from __future__ import annotations

import heapq
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from scope_torch.tasks.grading import ascii_fold

Record = Mapping[str, str]


def word_features(record: Record) -> set[str]:
    """The words of a record, each with its attribute."""
    return {
        f"{name}={word}"
        for name, value in record.items()
        for word in re.findall(r"[a-z0-9]+", ascii_fold(value).lower())
    }


class LexicalIndex:
    """Finds the records with most words in common, where rare words count most.

    Similarity is the cosine of inverse document frequencies.

    Args:
        records: What is searched.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self._postings: dict[str, list[int]] = defaultdict(list)
        of_record = [sorted(word_features(record)) for record in records]
        for index, names in enumerate(of_record):
            for name in names:
                self._postings[name].append(index)
        self._weight = {
            name: math.log(1 + len(records) / len(found)) ** 2
            for name, found in self._postings.items()
        }
        self._norm = [math.sqrt(sum(map(self._weight.__getitem__, names))) for names in of_record]

    def nearest(self, record: Record, count: int) -> list[tuple[int, float]]:
        """The records most similar to one that need not be among them.

        Args:
            record: What to compare with.
            count: How many are wanted.

        Returns:
            Index and similarity in [0, 1], most similar first, then by index; fewer than `count`
            if fewer have anything in common.
        """
        names = sorted(word_features(record))  # a set's order, and so a sum's rounding, varies
        new = math.log(1 + len(self._norm)) ** 2  # weight of a word that no record has
        norm = math.sqrt(sum(self._weight.get(name, new) for name in names))
        shared: dict[int, float] = defaultdict(float)
        for name in names:
            for index in self._postings.get(name, ()):
                shared[index] += self._weight[name]
        scored = ((-round(s / (norm * self._norm[i]), 9), i) for i, s in shared.items())
        return [(i, -negative) for negative, i in heapq.nsmallest(count, scored)]
