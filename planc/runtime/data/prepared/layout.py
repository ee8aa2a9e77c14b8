"""Names, sizes and headers of prepared files.

Each array is a row of `.npy` files, all full but the last, so `numpy.load` opens any of them. Next to each is
a `.crc32.npy` with the CRC-32 of every block of its data.

    NAME-KEY-CONTENT/index.json               what it was made of, and the SHA-256 of every file
    NAME-KEY-CONTENT/tokens-00000.npy         uint8, uint16 or uint32
    NAME-KEY-CONTENT/tokens-00000.crc32.npy
    NAME-KEY-CONTENT/known.json               states in which the source's files had this content
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

INDEX_NAME, KNOWN_NAME = "index.json", "known.json"
HEADER_BYTES = 128
BLOCK_BYTES = 1 << 14
"""Data is checked in blocks: a sequence of 4_096 tokens touches two or three."""
SHARD_BYTES = 1 << 29
"""Data bytes of a full file: a multiple of BLOCK_BYTES."""
CHECK_DTYPE = np.dtype("<u4")

_MAGIC = b"\x93NUMPY\x01\x00"


def file_name(array: str, number: int) -> str:
    return f"{array}-{number:05}.npy"


def checks_name(array: str, number: int) -> str:
    return f"{array}-{number:05}.crc32.npy"


def header(dtype: np.dtype[Any], *, length: int) -> bytes:
    """The header of a one-dimensional array in NumPy's format 1.0, always of HEADER_BYTES.

    Written here rather than by numpy, whose padding is not part of the format, so a file's header can be
    compared byte by byte.
    """
    fields = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({length},), }}"
    room = HEADER_BYTES - len(_MAGIC) - 2
    return _MAGIC + struct.pack("<H", room) + f"{fields:<{room - 1}}\n".encode()


def little_endian(name: str) -> np.dtype[Any]:
    """The dtype as it is stored."""
    return np.dtype(name).newbyteorder("<")
