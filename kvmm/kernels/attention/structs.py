"""C structures declared once: the ctypes class that fills one, and the C or CUDA text that reads it.

The text ends in assertions on the offset of every member as ctypes has it, so that a compiler that lays a structure out
in another way refuses the source instead of reading other bytes.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Scalar:
    """A C type of one value and the ctypes class of the same size."""

    c: str
    ctype: Any


INT = Scalar("int", ctypes.c_int)
INT64 = Scalar("int64_t", ctypes.c_int64)
LONG_LONG = Scalar("long long", ctypes.c_longlong)
FLOAT = Scalar("float", ctypes.c_float)
DOUBLE = Scalar("double", ctypes.c_double)


def pointer(to: str) -> Scalar:
    """A pointer; ``to`` is a C type, such as ``const float``."""
    return Scalar(f"{to} *", ctypes.c_void_p)


@dataclass(frozen=True)
class Member:
    """One member of a structure.

    Attributes:
        name: the same in Python and in C.
        type: of one element.
        comment: what C readers are told.
        count: elements of an array, 0 for a member that is none.
    """

    name: str
    type: Scalar | Struct
    comment: str = ""
    count: int = 0

    @property
    def ctype(self) -> Any:
        """The ctypes class of the whole member."""
        return self.type.ctype * self.count if self.count else self.type.ctype

    @property
    def declaration(self) -> str:
        """The member in C, with its comment."""
        kind = self.type.c if isinstance(self.type, Scalar) else self.type.name
        space = "" if kind.endswith("*") else " "
        text = f"    {kind}{space}{self.name}{f'[{self.count}]' if self.count else ''};"
        return f"{text} /* {self.comment} */" if self.comment else text


@dataclass(frozen=True)
class Struct:
    """A structure: its name in C and its members in order."""

    name: str
    members: tuple[Member, ...]
    comment: str = ""

    @cached_property
    def ctype(self) -> type[ctypes.Structure]:
        """The ctypes class."""
        fields = [(member.name, member.ctype) for member in self.members]
        return type(self.name, (ctypes.Structure,), {"_fields_": fields, "__doc__": self.comment or None})

    @property
    def parts(self) -> tuple[Struct, ...]:
        """The structures that members are made of, each before what holds it, and this one."""
        structs: list[Struct] = []
        for member in self.members:
            if isinstance(member.type, Struct):
                structs += [part for part in member.type.parts if part not in structs]
        return (*structs, self)

    def offsets(self) -> dict[str, int]:
        """Bytes from the structure's first to each member's."""
        return {member.name: getattr(self.ctype, member.name).offset for member in self.members}

    def text(self, cuda: bool = False) -> str:
        """The structure in C11, or in C++ for CUDA, and assertions on its layout (NVRTC has no ``offsetof``)."""
        head = f"struct {self.name} {{" if cuda else "typedef struct {"
        lines = [f"/* {self.comment} */"] if self.comment else []
        lines += [head, *(member.declaration for member in self.members), "};" if cuda else f"}} {self.name};"]
        keyword = "static_assert" if cuda else "_Static_assert"
        for name, offset in {} if cuda else self.offsets().items():
            lines.append(f'{keyword}(offsetof({self.name}, {name}) == {offset}, "{self.name}.{name}");')
        size = ctypes.sizeof(self.ctype)
        lines.append(f'{keyword}(sizeof({self.name}) == {size}, "{self.name}");')
        return "\n".join(lines) + "\n"


def header(*structs: Struct, cuda: bool = False) -> str:
    """The text of structures and of all they are made of, each once."""
    parts: list[Struct] = []
    for struct in structs:
        parts += [part for part in struct.parts if part not in parts]
    return "\n".join(part.text(cuda) for part in parts)
