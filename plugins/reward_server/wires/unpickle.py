"""Pickles of plain values read opcode by opcode: nothing is imported, called or built but what is written out here."""

import pickletools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from plumbline.operators.base.errors import PlumblineError

MOST_OPCODES = 200_000
"""Of one pickle; a request of a thousand images takes about ten thousand."""
DEEPEST = 16
"""Containers within containers."""
MAX_KEY = 1000
"""Letters or bytes of a dict's key; equal keys are compared letter by letter."""
MOST_STRINGS = 100_000
"""Of one NumPy array."""


class RefusedPickle(PlumblineError):
    """Bytes that are no pickle, or hold more than plain values; nothing of them was run."""


class _Name(NamedTuple):
    """A name that a pickle refers to; nothing is looked up by it but what is done here in its place."""

    module: str
    name: str


class _DType:
    """NumPy's type of strings or bytes: `U` or `S`, the characters of each, and their byte order."""

    def __init__(self, kind: str, characters: int) -> None:
        self.kind = kind
        self.characters = characters
        self.order = "<"

    @property
    def size(self) -> int:
        """Bytes of one string."""
        return self.characters * (4 if self.kind == "U" else 1)

    def read(self, encoded: bytes) -> str | bytes:
        """One string, without the zeros that fill it up."""
        if self.kind == "S":
            return encoded.rstrip(b"\0")
        return encoded.decode("utf-32-le" if self.order == "<" else "utf-32-be").rstrip("\0")


class Strings(list[str | bytes]):
    """A one-dimensional NumPy array of strings or bytes, as a list."""


def unpickle(encoded: bytes) -> Any:
    """The value of a pickle of any protocol that holds None, booleans, numbers, text, bytes, lists, tuples, dicts and
    NumPy's strings, alone or in arrays of one dimension.

    Opcodes are those that CPython's `pickletools` documents. Raises RefusedPickle for anything else: a name that is not
    among NumPy's of strings, an object of any class, a container that holds itself, more than MOST_OPCODES or DEEPEST.
    """
    try:
        return _Reader().read(encoded)
    except RefusedPickle:
        raise
    except Exception as error:  # whatever a broken pickle makes of the stack is about these bytes alone
        raise RefusedPickle(
            f"expected a pickle of plain values, found a broken one ({type(error).__name__})"
        ) from error


class _Reader:
    """A stack, those below the marks, a memo, and how deep every container is."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.depths: dict[int, int] = {}
        self.placed: set[int] = set()
        self.arguments: set[int] = set()
        self.alive: list[Any] = []
        self.unconverted = 0
        """Letters and bytes that may still be converted, for a pickle can name them repeatedly.

        Protocols 0 to 2 convert an array's text to bytes, and those to its strings: twice as many as the pickle has.
        """

    def read(self, encoded: bytes) -> Any:
        end = 0
        self.unconverted = 2 * len(encoded)
        for count, (opcode, argument, place) in enumerate(pickletools.genops(encoded)):
            if count >= MOST_OPCODES:
                raise RefusedPickle(
                    f"expected a pickle of at most {MOST_OPCODES} opcodes, found more; send fewer images"
                )
            self._do(opcode.name, argument)
            end = (place or 0) + 1
        if end != len(encoded) or len(self.stack) != 1 or self.below:
            raise RefusedPickle("expected one pickle and nothing behind it")
        return self._plain(self.stack[0])

    def _do(self, name: str, argument: Any) -> None:
        if name in VALUES:
            self.stack.append(argument)
        elif name in ACTIONS:
            ACTIONS[name](self, argument)
        else:
            raise RefusedPickle(
                f"expected a pickle of plain values, found the opcode {name}; send text, bytes and lists"
            )

    def _plain(self, value: Any) -> Any:
        """The value, which is neither a name nor a type, nor a tuple with one: these are for calls alone."""
        if isinstance(value, (_Name, _DType)) or id(value) in self.arguments:
            raise RefusedPickle("expected a pickle of plain values, found a bare name or type")
        return value

    def _new(self, container: Any, values: Sequence[Any] = ()) -> Any:
        self.alive.append(container)
        self.depths[id(container)] = 1
        self._hold(container, values)
        return container

    def _hold(self, container: Any, values: Sequence[Any]) -> None:
        """Notes that the values lie in the container, which is not changed any more once it lies in another."""
        if id(container) in self.placed or id(container) not in self.depths:
            raise RefusedPickle("expected plain values, found a container that is changed where it lies")
        for value in values:
            self._plain(value)
            if id(value) in self.depths:
                self.placed.add(id(value))
                self.depths[id(container)] = max(self.depths[id(container)], self.depths[id(value)] + 1)
        if self.depths[id(container)] > DEEPEST or any(value is container for value in values):
            raise RefusedPickle(f"expected values at most {DEEPEST} deep, found deeper ones")

    def _mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def _since_mark(self) -> list[Any]:
        values, self.stack = self.stack, self.below.pop()
        return values

    def _extend(self, values: Sequence[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise RefusedPickle("expected values for a list, found them for something else")
        self._hold(target, values)
        target.extend(values)

    def _set(self, values: Sequence[Any]) -> None:
        target, keys = self.stack[-1], values[::2]
        if type(target) is not dict or len(values) % 2:
            raise RefusedPickle("expected keys and values for a dict, found something else")
        if not all(isinstance(key, (str, bytes)) for key in keys):  # hashes of numbers can be made to collide
            raise RefusedPickle("expected a dict whose keys are text or bytes, found other keys")
        if any(len(key) > MAX_KEY for key in keys):
            raise RefusedPickle(f"expected a dict whose keys have at most {MAX_KEY} letters, found a longer one")
        self._hold(target, values)
        target.update(zip(keys, values[1::2], strict=True))

    def _tuple(self, values: Sequence[Any]) -> None:
        """A tuple of values, or of what a name of NumPy's is called with."""
        made = tuple(values)
        if made:  # the empty one is the same everywhere
            self.alive.append(made)
            self.depths[id(made)] = max(self.depths.get(id(value), 0) for value in made) + 1
            self.placed.update(id(value) for value in made if id(value) in self.depths)
            if any(isinstance(value, (_Name, _DType)) or id(value) in self.arguments for value in made):
                self.arguments.add(id(made))
            if self.depths[id(made)] > DEEPEST:
                raise RefusedPickle(f"expected values at most {DEEPEST} deep, found deeper ones")
        self.stack.append(made)

    def _list(self, values: list[Any]) -> None:
        self.stack.append(self._new(values, values))

    def _dict(self, values: Sequence[Any]) -> None:
        self.stack.append(self._new({}))
        self._set(values)

    def _name(self, module: Any, name: Any) -> None:
        if (module, name) not in NAMES:
            raise RefusedPickle(
                f"expected a pickle of plain values, found a name of another module ({str(module)[:40]!r}); "
                "send text, bytes and lists"
            )
        self.stack.append(_Name(module, name))

    def _call(self) -> None:
        arguments, name = self.stack.pop(), self.stack.pop()
        if not isinstance(name, _Name) or type(arguments) is not tuple:
            raise RefusedPickle("expected a pickle of plain values, found a call")
        self._convert(*arguments)
        made = CALLS[NAMES[name]](*arguments)
        self.stack.append(self._new(made) if isinstance(made, Strings) else made)

    def _convert(self, *values: Any) -> None:
        """Count text and bytes that are about to be converted; raise RefusedPickle if they are too many."""
        self.unconverted -= sum(len(value) for value in values if isinstance(value, (str, bytes, bytearray)))
        if self.unconverted < 0:
            raise RefusedPickle("expected each text and array once, found the same bytes converted again and again")

    def _build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, _DType):
            _, order, *_ = state
            target.order = _order(order, target)
        elif isinstance(target, Strings) and not target:
            _, shape, dtype, _, data = state
            self._convert(data)
            target.extend(_strings(data, dtype, shape))
        else:
            raise RefusedPickle("expected a pickle of plain values, found an object with a state of its own")


def _order(order: Any, dtype: _DType) -> str:
    if order not in (("<", ">") if dtype.kind == "U" else ("|",)):
        raise RefusedPickle(f"expected NumPy strings in a byte order, found {order!r:.20}")
    return str(order)


def _strings(data: Any, dtype: Any, shape: Any) -> Strings:
    """The strings of an array's buffer, which must be as long as shape and type say."""
    if not isinstance(dtype, _DType) or not isinstance(data, (bytes, bytearray)):
        raise RefusedPickle("expected a NumPy array of strings, found one of something else")
    (count,) = shape
    if type(count) is not int or not 0 <= count <= MOST_STRINGS or len(data) != count * dtype.size:
        raise RefusedPickle(f"expected a NumPy array of at most {MOST_STRINGS} strings, found another shape")
    encoded = bytes(data)
    return Strings(dtype.read(encoded[place * dtype.size :][: dtype.size]) for place in range(count))


def _encode(text: Any, encoding: Any) -> bytes:
    """How protocols 0 to 2 write bytes."""
    if type(text) is not str or encoding != "latin1":
        raise RefusedPickle("expected bytes as protocols 0 to 2 write them, found another encoding")
    return text.encode("latin-1")


def _dtype(code: Any, align: Any, copy: Any) -> _DType:
    match = re.fullmatch(r"([US])([0-9]{1,6})", code) if type(code) is str else None
    if match is None or align not in (False, 0) or copy not in (True, 1):
        raise RefusedPickle("expected NumPy strings or bytes, found another type of NumPy's")
    return _DType(match[1], int(match[2]))


def _reconstruct(kind: Any, shape: Any, code: Any) -> Strings:
    """An array whose state follows."""
    if not isinstance(kind, _Name) or NAMES[kind] != "ndarray" or shape != (0,) or code != b"b":
        raise RefusedPickle("expected a NumPy array, found another class")
    return Strings()


def _scalar(dtype: Any, data: Any) -> str | bytes:
    (text,) = _strings(data, dtype, (1,))
    return text


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any, *_: Any) -> Strings:
    return _strings(data, dtype, shape)


def _empty_bytes() -> bytes:
    return b""


def _get(reader: _Reader, place: Any) -> None:
    reader.stack.append(reader.memo[int(place)])


def _put(reader: _Reader, place: Any) -> None:
    reader.memo[int(place)] = reader.stack[-1]


def _tuple_of(count: int) -> "Callable[[_Reader, Any], None]":
    def make(reader: _Reader, _: Any) -> None:
        values = reader.stack[len(reader.stack) - count :] if count else []
        if len(values) != count:
            raise RefusedPickle("expected values for a tuple, found too few")
        del reader.stack[len(reader.stack) - count :]
        reader._tuple(values)

    return make


def _append(reader: _Reader, _: Any) -> None:
    reader._extend([reader.stack.pop()])


def _set_one(reader: _Reader, _: Any) -> None:
    value, key = reader.stack.pop(), reader.stack.pop()
    reader._set([key, value])


def _stack_name(reader: _Reader, _: Any) -> None:
    name, module = reader.stack.pop(), reader.stack.pop()
    reader._name(module, name)


_ARRAYS = ("numpy._core.multiarray", "numpy.core.multiarray")
_NUMERIC = ("numpy._core.numeric", "numpy.core.numeric")
NAMES: Mapping[tuple[Any, Any], str] = {
    ("_codecs", "encode"): "encode",
    ("__builtin__", "bytes"): "bytes",
    ("builtins", "bytes"): "bytes",
    ("numpy", "dtype"): "dtype",
    ("numpy", "ndarray"): "ndarray",
    **{(module, "_reconstruct"): "reconstruct" for module in _ARRAYS},
    **{(module, "scalar"): "scalar" for module in _ARRAYS},
    **{(module, "_frombuffer"): "from_buffer" for module in _NUMERIC},
}
"""Every name that a pickle may hold: those by which `pickle.dumps` writes bytes and NumPy's strings."""

CALLS: Mapping[str, Callable[..., Any]] = {
    "encode": _encode,
    "bytes": _empty_bytes,
    "dtype": _dtype,
    "reconstruct": _reconstruct,
    "scalar": _scalar,
    "from_buffer": _from_buffer,
}
"""What is done where a pickle calls such a name; all of it stands in this file."""

VALUES = frozenset(
    {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE"}
    | {"SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}
)
"""Opcodes that stand for their argument."""

ACTIONS: Mapping[str, Callable[[_Reader, Any], None]] = {
    "PROTO": lambda reader, _: None,
    "FRAME": lambda reader, _: None,
    "STOP": lambda reader, _: None,
    "NONE": lambda reader, _: reader.stack.append(None),
    "NEWTRUE": lambda reader, _: reader.stack.append(True),
    "NEWFALSE": lambda reader, _: reader.stack.append(False),
    "MARK": lambda reader, _: reader._mark(),
    "EMPTY_LIST": lambda reader, _: reader.stack.append(reader._new([])),
    "LIST": lambda reader, _: reader._list(reader._since_mark()),
    "APPEND": _append,
    "APPENDS": lambda reader, _: reader._extend(reader._since_mark()),
    "EMPTY_DICT": lambda reader, _: reader.stack.append(reader._new({})),
    "DICT": lambda reader, _: reader._dict(reader._since_mark()),
    "SETITEM": _set_one,
    "SETITEMS": lambda reader, _: reader._set(reader._since_mark()),
    "EMPTY_TUPLE": _tuple_of(0),
    "TUPLE": lambda reader, _: reader._tuple(reader._since_mark()),
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "GET": _get,
    "BINGET": _get,
    "LONG_BINGET": _get,
    "PUT": _put,
    "BINPUT": _put,
    "LONG_BINPUT": _put,
    "MEMOIZE": lambda reader, _: _put(reader, len(reader.memo)),
    "GLOBAL": lambda reader, argument: reader._name(*argument.split(" ", 1)),
    "STACK_GLOBAL": _stack_name,
    "REDUCE": lambda reader, _: reader._call(),
    "BUILD": lambda reader, _: reader._build(),
}
