"""Reads pickles of plain values, opcode by opcode. It imports nothing, and only calls functions in this file."""

import pickletools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from plumbline.operators.base.errors import PlumblineError

MAX_OPCODES = 200_000
"""Maximum number of opcodes; a request with a thousand images has about ten thousand."""
MAX_DEPTH = 16
"""Maximum nesting depth of containers."""
MAX_KEY_LENGTH = 1000
"""Maximum number of characters or bytes in a dict key. Comparing equal keys takes time proportional to their length."""
MAX_STRINGS = 100_000
"""Maximum number of strings in a NumPy array."""


class RefusedPickle(PlumblineError):
    """Raised for bytes that are not a pickle, or that contain more than plain values. None of their code is run."""


class _Name(NamedTuple):
    """Name of a function or class in a pickle. FUNCTION_BY_NAME lists the accepted names.

    REPLACEMENT_FUNCTIONS lists the functions that are called instead.
    """

    module: str
    name: str


class _DType:
    """NumPy dtype of text (`U`) or bytes (`S`) with a fixed number of characters."""

    def __init__(self, kind: str, characters: int) -> None:
        self.kind = kind
        self.characters = characters
        self.order = "<"

    @property
    def size(self) -> int:
        """Number of bytes per string."""
        return self.characters * (4 if self.kind == "U" else 1)

    def read(self, encoded: bytes) -> str | bytes:
        """Decode one string without its zero padding."""
        if self.kind == "S":
            return encoded.rstrip(b"\0")
        return encoded.decode("utf-32-le" if self.order == "<" else "utf-32-be").rstrip("\0")


class StringArray(list[str | bytes]):
    """A one-dimensional NumPy array of strings or bytes, as a list."""


def unpickle(encoded: bytes) -> Any:
    """Return the value of a pickle, in any protocol, that contains only plain values.

    Plain values are None, booleans, numbers, text, bytes, lists, tuples, dicts and NumPy strings, alone or in
    one-dimensional arrays.

    Raises RefusedPickle for anything else: other names and classes, a container that contains itself, more than
    MAX_OPCODES opcodes, or nesting deeper than MAX_DEPTH. CPython's `pickletools` documents the opcodes.
    """
    try:
        return _Reader().read(encoded)
    except RefusedPickle:
        raise
    except Exception as error:  # a broken pickle may fail anywhere; the cause is always these bytes
        raise RefusedPickle(f"expected a pickle of plain values, found broken data ({type(error).__name__})") from error


class _Reader:
    """State while a pickle is being read. Containers are tracked by their `id`."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []
        """Stacks that were saved at each mark."""
        self.memo: dict[int, Any] = {}
        self.depths: dict[int, int] = {}
        """Maximum nesting depth inside each container, by the container's `id`."""
        self.placed: set[int] = set()
        """Containers that are inside another container."""
        self.arguments: set[int] = set()
        """Tuples that contain a name or a dtype, and may therefore only be used as arguments of a call."""
        self.alive: list[Any] = []
        """All containers, kept alive so that no `id` is reused."""
        self.unconverted = 0
        """Number of characters and bytes that may still be converted.

        The limit is needed because a pickle can refer to the same bytes repeatedly. It starts at twice the size of the
        pickle, because protocols 0 to 2 convert an array's text twice: to bytes, and then to strings.
        """

    def read(self, encoded: bytes) -> Any:
        end = 0
        self.unconverted = 2 * len(encoded)
        for count, (opcode, argument, place) in enumerate(pickletools.genops(encoded)):
            if count >= MAX_OPCODES:
                raise RefusedPickle(f"expected a pickle of at most {MAX_OPCODES} opcodes; send fewer images")
            if opcode.name in VALUE_OPCODES:
                self.stack.append(argument)
            elif opcode.name in OPCODE_ACTIONS:
                OPCODE_ACTIONS[opcode.name](self, argument)
            else:
                raise RefusedPickle(
                    f"expected a pickle of plain values, found the opcode {opcode.name}; send text, bytes and lists"
                )
            end = (place or 0) + 1
        if end != len(encoded) or len(self.stack) != 1 or self.marked:
            raise RefusedPickle("expected one pickle, found an incomplete one or bytes after its end")
        return self._require_plain_value(self.stack[0])

    def _require_plain_value(self, value: Any) -> Any:
        """Return the value; raise RefusedPickle if it is a name or dtype, or a tuple that contains a name or dtype."""
        if isinstance(value, (_Name, _DType)) or id(value) in self.arguments:
            raise RefusedPickle("expected a pickle of plain values, found a bare name or type")
        return value

    def _track_container(self, container: Any, values: Sequence[Any] = ()) -> Any:
        """Start tracking a new container, and return it."""
        self.alive.append(container)
        self.depths[id(container)] = 1
        self._note_values(container, values)
        return container

    def _note_values(self, container: Any, values: Sequence[Any]) -> None:
        """Record that values are about to be added to a container.

        Raises RefusedPickle if the container is already inside another, or becomes too deep.
        """
        if id(container) in self.placed or id(container) not in self.depths:
            raise RefusedPickle("expected plain values, found a container that changes after it was added to another")
        for value in values:
            self._require_plain_value(value)
            if id(value) in self.depths:
                self.placed.add(id(value))
                self.depths[id(container)] = max(self.depths[id(container)], self.depths[id(value)] + 1)
        if self.depths[id(container)] > MAX_DEPTH or any(value is container for value in values):
            raise RefusedPickle(f"expected at most {MAX_DEPTH} levels of containers, found more")

    def _push_mark(self) -> None:
        self.marked.append(self.stack)
        self.stack = []

    def _pop_to_mark(self) -> list[Any]:
        values, self.stack = self.stack, self.marked.pop()
        return values

    def _extend_list(self, values: Sequence[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise RefusedPickle("expected a list to append to, found another value")
        self._note_values(target, values)
        target.extend(values)

    def _set_items(self, values: Sequence[Any]) -> None:
        target, keys = self.stack[-1], values[::2]
        if type(target) is not dict or len(values) % 2:
            raise RefusedPickle("expected a dict and pairs of keys and values, found something else")
        if not all(isinstance(key, (str, bytes)) for key in keys):  # hashes of numbers can be made to collide
            raise RefusedPickle("expected a dict whose keys are text or bytes, found other keys")
        if any(len(key) > MAX_KEY_LENGTH for key in keys):
            raise RefusedPickle(f"expected dict keys of at most {MAX_KEY_LENGTH} characters, found a longer one")
        self._note_values(target, values)
        target.update(zip(keys, values[1::2], strict=True))

    def _push_tuple(self, values: Sequence[Any]) -> None:
        """Push a tuple of plain values, or of arguments for a call."""
        result = tuple(values)
        if result:  # Python has only one empty tuple, so it is not tracked
            self.alive.append(result)
            self.depths[id(result)] = max(self.depths.get(id(value), 0) for value in result) + 1
            self.placed.update(id(value) for value in result if id(value) in self.depths)
            if any(isinstance(value, (_Name, _DType)) or id(value) in self.arguments for value in result):
                self.arguments.add(id(result))
            if self.depths[id(result)] > MAX_DEPTH:
                raise RefusedPickle(f"expected at most {MAX_DEPTH} levels of containers, found more")
        self.stack.append(result)

    def _push_list(self, values: list[Any]) -> None:
        self.stack.append(self._track_container(values, values))

    def _push_dict(self, values: Sequence[Any]) -> None:
        self.stack.append(self._track_container({}))
        self._set_items(values)

    def _push_name(self, module: Any, name: Any) -> None:
        if (module, name) not in FUNCTION_BY_NAME:
            raise RefusedPickle(
                f"expected a pickle of plain values, found a name of another module ({str(module)[:40]!r}); "
                "send text, bytes and lists"
            )
        self.stack.append(_Name(module, name))

    def _call_function(self) -> None:
        arguments, name = self.stack.pop(), self.stack.pop()
        if not isinstance(name, _Name) or type(arguments) is not tuple:
            raise RefusedPickle("expected a pickle of plain values, found a call")
        self._count_converted_values(*arguments)
        result = REPLACEMENT_FUNCTIONS[FUNCTION_BY_NAME[name]](*arguments)
        self.stack.append(self._track_container(result) if isinstance(result, StringArray) else result)

    def _count_converted_values(self, *values: Any) -> None:
        """Count text and bytes that are about to be converted; raise RefusedPickle if there are too many."""
        self.unconverted -= sum(len(value) for value in values if isinstance(value, (str, bytes, bytearray)))
        if self.unconverted < 0:
            raise RefusedPickle("expected each text and array to be converted once, found repeated conversions")

    def _build_object(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, _DType):
            _, order, *_ = state
            target.order = _require_byte_order(order, target)
        elif isinstance(target, StringArray) and not target:
            _, shape, dtype, _, data = state
            self._count_converted_values(data)
            target.extend(_read_strings(data, dtype, shape))
        else:
            raise RefusedPickle("expected a pickle of plain values, found an object with a state of its own")


def _require_byte_order(order: Any, dtype: _DType) -> str:
    if order not in (("<", ">") if dtype.kind == "U" else ("|",)):
        raise RefusedPickle(f"expected NumPy strings in a byte order, found {order!r:.20}")
    return str(order)


def _read_strings(data: Any, dtype: Any, shape: Any, *_: Any) -> StringArray:
    """Return the strings in an array's buffer, whose length must match the shape and dtype."""
    if not isinstance(dtype, _DType) or not isinstance(data, (bytes, bytearray)):
        raise RefusedPickle("expected a NumPy array of strings, found other elements")
    (count,) = shape
    if type(count) is not int or not 0 <= count <= MAX_STRINGS or len(data) != count * dtype.size:
        raise RefusedPickle(f"expected a NumPy array of at most {MAX_STRINGS} strings, found another shape")
    encoded = bytes(data)
    return StringArray(dtype.read(encoded[place * dtype.size :][: dtype.size]) for place in range(count))


def _encode_text(text: Any, encoding: Any) -> bytes:
    if type(text) is not str or encoding != "latin1":
        raise RefusedPickle("expected bytes as protocols 0 to 2 write them, found another encoding")
    return text.encode("latin-1")


def _make_dtype(code: Any, align: Any, copy: Any) -> _DType:
    match = re.fullmatch(r"([US])([0-9]{1,6})", code) if type(code) is str else None
    if match is None or align not in (False, 0) or copy not in (True, 1):
        raise RefusedPickle("expected NumPy strings or bytes, found another dtype")
    return _DType(match[1], int(match[2]))


def _make_array(kind: Any, shape: Any, code: Any) -> StringArray:
    """Return an empty array, to be filled by the opcode BUILD."""
    if not isinstance(kind, _Name) or FUNCTION_BY_NAME[kind] != "ndarray" or shape != (0,) or code != b"b":
        raise RefusedPickle("expected a NumPy array, found another class")
    return StringArray()


def _make_scalar(dtype: Any, data: Any) -> str | bytes:
    (text,) = _read_strings(data, dtype, (1,))
    return text


def _make_empty_bytes() -> bytes:
    return b""


def _push_memo(reader: _Reader, place: Any) -> None:
    reader.stack.append(reader.memo[int(place)])


def _store_memo(reader: _Reader, place: Any) -> None:
    reader.memo[int(place)] = reader.stack[-1]


def _push_tuple(count: int) -> "Callable[[_Reader, Any], None]":
    def push(reader: _Reader, _: Any) -> None:
        values = reader.stack[len(reader.stack) - count :] if count else []
        if len(values) != count:
            raise RefusedPickle("expected values for a tuple, found too few")
        del reader.stack[len(reader.stack) - count :]
        reader._push_tuple(values)

    return push


def _set_item(reader: _Reader, _: Any) -> None:
    value, key = reader.stack.pop(), reader.stack.pop()
    reader._set_items([key, value])


def _push_stack_name(reader: _Reader, _: Any) -> None:
    name, module = reader.stack.pop(), reader.stack.pop()
    reader._push_name(module, name)


_ARRAY_MODULES = ("numpy._core.multiarray", "numpy.core.multiarray")
_NUMERIC_MODULES = ("numpy._core.numeric", "numpy.core.numeric")
FUNCTION_BY_NAME: Mapping[tuple[Any, Any], str] = {
    ("_codecs", "encode"): "encode",
    ("__builtin__", "bytes"): "bytes",
    ("builtins", "bytes"): "bytes",
    ("numpy", "dtype"): "dtype",
    ("numpy", "ndarray"): "ndarray",
    **{(module, "_reconstruct"): "reconstruct" for module in _ARRAY_MODULES},
    **{(module, "scalar"): "scalar" for module in _ARRAY_MODULES},
    **{(module, "_frombuffer"): "from_buffer" for module in _NUMERIC_MODULES},
}
"""Names that a pickle may contain, because `pickle.dumps` uses them to write bytes and NumPy strings."""

REPLACEMENT_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "encode": _encode_text,
    "bytes": _make_empty_bytes,
    "dtype": _make_dtype,
    "reconstruct": _make_array,
    "scalar": _make_scalar,
    "from_buffer": _read_strings,
}
"""Functions in this file that replace the functions called by a pickle."""

VALUE_OPCODES = frozenset(
    {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE"}
    | {"SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}
)
"""Opcodes that push their argument."""

OPCODE_ACTIONS: Mapping[str, Callable[[_Reader, Any], None]] = {
    "PROTO": lambda reader, _: None,
    "FRAME": lambda reader, _: None,
    "STOP": lambda reader, _: None,
    "NONE": lambda reader, _: reader.stack.append(None),
    "NEWTRUE": lambda reader, _: reader.stack.append(True),
    "NEWFALSE": lambda reader, _: reader.stack.append(False),
    "MARK": lambda reader, _: reader._push_mark(),
    "EMPTY_LIST": lambda reader, _: reader._push_list([]),
    "LIST": lambda reader, _: reader._push_list(reader._pop_to_mark()),
    "APPEND": lambda reader, _: reader._extend_list([reader.stack.pop()]),
    "APPENDS": lambda reader, _: reader._extend_list(reader._pop_to_mark()),
    "EMPTY_DICT": lambda reader, _: reader._push_dict([]),
    "DICT": lambda reader, _: reader._push_dict(reader._pop_to_mark()),
    "SETITEM": _set_item,
    "SETITEMS": lambda reader, _: reader._set_items(reader._pop_to_mark()),
    "EMPTY_TUPLE": _push_tuple(0),
    "TUPLE": lambda reader, _: reader._push_tuple(reader._pop_to_mark()),
    "TUPLE1": _push_tuple(1),
    "TUPLE2": _push_tuple(2),
    "TUPLE3": _push_tuple(3),
    "GET": _push_memo,
    "BINGET": _push_memo,
    "LONG_BINGET": _push_memo,
    "PUT": _store_memo,
    "BINPUT": _store_memo,
    "LONG_BINPUT": _store_memo,
    "MEMOIZE": lambda reader, _: _store_memo(reader, len(reader.memo)),
    "GLOBAL": lambda reader, argument: reader._push_name(*argument.split(" ", 1)),
    "STACK_GLOBAL": _push_stack_name,
    "REDUCE": lambda reader, _: reader._call_function(),
    "BUILD": lambda reader, _: reader._build_object(),
}
