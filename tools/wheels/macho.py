"""Reads what a loader reads of a 64-bit Mach-O file: libraries, imports, exports. Refuses fat and 32-bit files."""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAGIC = 0xFEEDFACF
ARM64 = 0x0100000C
FLAT = "flat lookup"  # library of a symbol that any loaded image may provide

_LC_SYMTAB, _LC_CODE_SIGNATURE, _LC_BUILD_VERSION = 0x2, 0x1D, 0x32
_LC_RPATH, _LC_DYLD_INFO, _LC_DYLD_INFO_ONLY, _LC_EXPORTS_TRIE = 0x8000001C, 0x22, 0x80000022, 0x80000033
_LC_LIBRARIES = (0xC, 0x80000018, 0x8000001F)  # load, weak, re-export
_PLATFORM_MACOS = 1
_N_STAB, _N_TYPE, _N_EXT = 0xE0, 0x0E, 0x01
_NO_LIBRARY = (0, 254, 255)  # ordinals of the image itself, any image, the executable


@dataclass(frozen=True)
class Image:
    """One dylib or extension module, as its load commands describe it."""

    cpu: int
    minos: tuple[int, int] | None  # None without a macOS build version
    libraries: tuple[str, ...]
    rpaths: tuple[str, ...]
    signed: bool
    imports: dict[str, str]  # symbol: install name of the library it is bound to, or FLAT
    exports: frozenset[str]

    def imported_from(self, library: str) -> set[str]:
        """Symbols bound to one library."""
        return {symbol for symbol, origin in self.imports.items() if origin == library}


def parse(data: bytes) -> Image:
    """The image in a file's bytes. Raises ValueError for anything that is no thin 64-bit Mach-O file."""
    try:
        return _parse(data)
    except (struct.error, IndexError) as error:
        raise ValueError(f"cut Mach-O file: {error}") from None


def _parse(data: bytes) -> Image:
    magic, cpu, _, _, n_commands, _, _, _ = struct.unpack_from("<8I", data)
    if magic != MAGIC:
        raise ValueError(f"magic {magic:#x}, expected a thin 64-bit Mach-O file")
    libraries: list[str] = []
    rpaths: list[str] = []
    minos: tuple[int, int] | None = None
    signed = False
    symbols = (0, 0, 0)  # offset, count, offset of the strings
    trie = (0, 0)
    at = 32
    for _ in range(n_commands):
        command, size = struct.unpack_from("<2I", data, at)
        if size < 8:
            raise ValueError(f"load command of {size} bytes at {at}")
        if command in _LC_LIBRARIES:
            libraries.append(_text(data, at + struct.unpack_from("<I", data, at + 8)[0]))
        elif command == _LC_RPATH:
            rpaths.append(_text(data, at + struct.unpack_from("<I", data, at + 8)[0]))
        elif command == _LC_BUILD_VERSION:
            platform, version = struct.unpack_from("<2I", data, at + 8)
            minos = (version >> 16, version >> 8 & 0xFF) if platform == _PLATFORM_MACOS else None
        elif command == _LC_CODE_SIGNATURE:
            signed = struct.unpack_from("<2I", data, at + 8)[1] > 0
        elif command == _LC_SYMTAB:
            symbols = struct.unpack_from("<3I", data, at + 8)
        elif command in (_LC_DYLD_INFO, _LC_DYLD_INFO_ONLY):
            trie = struct.unpack_from("<2I", data, at + 40)
        elif command == _LC_EXPORTS_TRIE:
            trie = struct.unpack_from("<2I", data, at + 8)
        at += size
    imports = _imports(data, *symbols, libraries)
    return Image(cpu, minos, tuple(libraries), tuple(rpaths), signed, imports, _exports(data, *trie))


def _text(data: bytes, at: int) -> str:
    end = data.find(b"\0", at)
    if end < 0:
        raise IndexError(f"no end of the text at {at}")
    return data[at:end].decode()


def _imports(data: bytes, offset: int, count: int, strings: int, libraries: list[str]) -> dict[str, str]:
    """Undefined external symbols of the symbol table; the high byte of n_desc is the library's ordinal."""
    found = {}
    for i in range(count):
        name, kind, _, desc, _ = struct.unpack_from("<IBBHQ", data, offset + 16 * i)
        if kind & _N_STAB or kind & _N_TYPE or not kind & _N_EXT:
            continue
        ordinal = desc >> 8
        found[_text(data, strings + name)] = FLAT if ordinal in _NO_LIBRARY else libraries[ordinal - 1]
    return found


def _exports(data: bytes, offset: int, size: int) -> frozenset[str]:
    """Names in the export trie: a node is its payload's size, the payload, then (edge text, child's offset) pairs."""
    trie = data[offset : offset + size]
    names = []
    open_nodes = [(0, "")] if trie else []
    while open_nodes:
        at, prefix = open_nodes.pop()
        payload, at = _uleb128(trie, at)
        if payload:
            names.append(prefix)
        at += payload
        n_children, at = trie[at], at + 1
        for _ in range(n_children):
            edge = _text(trie, at)
            child, at = _uleb128(trie, at + len(edge) + 1)
            open_nodes.append((child, prefix + edge))
        if len(names) > size or len(open_nodes) > size:
            raise ValueError("the export trie has a cycle")
    return frozenset(names)


def _uleb128(data: bytes, at: int) -> tuple[int, int]:
    """A variable-length number and the offset behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
