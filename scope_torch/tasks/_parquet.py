"""Sizes in the footer of a Parquet file, which polars does not show.

The footer is a struct of Thrift's compact protocol. The numbers of its fields are in parquet.thrift
of github.com/apache/parquet-format.
"""

from __future__ import annotations

from typing import Any

_NUMBER_BYTES = 8  # of a cell in memory, however well it is encoded in the file


def decoded_bytes(content: bytes | memoryview) -> int:
    """Bytes of all columns once they are decoded; the footer says how many.

    Raises:
        EOFError: If the footer is damaged.
    """
    length = int.from_bytes(content[-8:-4], "little")
    try:
        footer = _Thrift(content[-8 - length : -8]).struct()
        schema, num_rows, row_groups = footer[2], footer[3], footer[4]
        uncompressed = sum(row_group[2] for row_group in row_groups)
    except (IndexError, KeyError, TypeError, RecursionError) as error:
        raise EOFError("the footer of the Parquet file is damaged") from error
    return max(uncompressed, num_rows * (len(schema) - 1) * _NUMBER_BYTES)


class _Thrift:
    """Reads values of the compact protocol, one after the other."""

    def __init__(self, content: bytes | memoryview) -> None:
        self._content, self._position = content, 0

    def struct(self) -> dict[int, Any]:
        """The values of a struct by the numbers of their fields."""
        values: dict[int, Any] = {}
        field = 0
        while header := self._byte():
            field = field + (header >> 4) if header >> 4 else self._integer()
            values[field] = header & 15 == 1 if header & 15 in (1, 2) else self._value(header & 15)
        return values

    def _value(self, kind: int) -> Any:
        if kind in (1, 2, 3):  # of a list of booleans; a byte
            return self._byte()
        if kind in (4, 5, 6):
            return self._integer()
        if kind == 7:
            return self._bytes(8)
        if kind == 8:
            return self._bytes(self._varint())
        if kind in (9, 10):
            return self._list()
        if kind == 12:
            return self.struct()
        raise KeyError(kind)  # 11, a map: Parquet has none

    def _list(self) -> list[Any]:
        header = self._byte()
        size = header >> 4 if header >> 4 < 15 else self._varint()
        return [self._value(header & 15) for _ in range(size)]

    def _integer(self) -> int:
        number = self._varint()
        return -(number >> 1) - 1 if number & 1 else number >> 1

    def _varint(self) -> int:
        number, shift = 0, 0
        while shift < 64:
            byte = self._byte()
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number
        raise KeyError(shift)

    def _bytes(self, length: int) -> bytes | memoryview:
        self._position += length
        return self._content[self._position - length : self._position]

    def _byte(self) -> int:
        self._position += 1
        return self._content[self._position - 1]
