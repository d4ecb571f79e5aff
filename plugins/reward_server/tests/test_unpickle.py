"""Pickles of plain values are read in the same way as by pickle.loads; code in other pickles is never run."""

import os
import pickle
import pickletools
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plumbline.plugins.reward_server.wires.unpickle import (
    MAX_DEPTH,
    MAX_KEY_LENGTH,
    MAX_OPCODES,
    RefusedPickle,
    unpickle,
)

JPEG_BYTES = b"\xff\xd8\xff\xe0" + bytes(range(256)) + b"\xff\xd9"
PICKLE_PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)

NUMBERS = st.one_of(st.booleans(), st.integers(-(2**80), 2**80), st.floats(allow_nan=False))
SCALAR_STRATEGY = st.one_of(st.none(), NUMBERS, st.text(), st.binary())
PLAIN_VALUE_STRATEGY = st.recursive(
    SCALAR_STRATEGY,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.binary()), inner, max_size=4),
        inner.map(lambda value: [value, value]),  # one object at two places
    ),
    max_leaves=12,
)


@given(PLAIN_VALUE_STRATEGY, st.sampled_from(PICKLE_PROTOCOLS))
def test_plain_values_are_read_as_pickle_reads_them(value: Any, protocol: int) -> None:
    encoded = pickle.dumps(value, protocol)
    assert repr(unpickle(encoded)) == repr(pickle.loads(encoded))


@example(["", "", "", "0" * 26], 1)  # converted to bytes, and from bytes to an array
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=6), st.sampled_from(PICKLE_PROTOCOLS))
def test_arrays_of_text_are_read_as_lists(texts: list[str], protocol: int) -> None:
    array = np.array(texts, dtype=str)
    for part in [array, *np.array_split(array, 2), array[::2]]:
        encoded = pickle.dumps({"prompts": part, "each": list(part)}, protocol)
        assert unpickle(encoded) == {"prompts": part.tolist(), "each": part.tolist()}


def test_arrays_of_bytes_and_of_another_byte_order_are_read() -> None:
    for array in (np.array([b"a", b"longer"]), np.array(["ä", "longer"], dtype=">U6"), np.array([], dtype="U1")):
        assert all(unpickle(pickle.dumps(array, protocol)) == array.tolist() for protocol in PICKLE_PROTOCOLS)


def make_payload(prompts: Any) -> dict[str, Any]:
    return {
        "images": [JPEG_BYTES, JPEG_BYTES[:-2]],
        "prompts": prompts,
        "metadata": {"step": 3, "tag": ("a", None, 0.5)},
    }


@pytest.mark.parametrize("protocol", PICKLE_PROTOCOLS)
def test_payloads_of_trainers_are_read(protocol: int) -> None:
    """verl-omni sends lists, and flow_grpo sends a slice of a NumPy array."""
    prompts = ["a red circle", "two blue squares"]
    for sent in (prompts, np.array_split(np.array([*prompts, *prompts]), 2)[0]):
        read = unpickle(pickle.dumps(make_payload(sent), protocol))
        assert read == make_payload(prompts)


class CallOnUnpickle:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self.reduced = (call, arguments)

    def __reduce__(self) -> Any:
        return self.reduced


class CustomObject:
    """A class whose instances are not plain values."""


def make_exploits(marker: Path) -> dict[str, bytes]:
    """Return named pickles that, if loaded, would write the marker file or at least create an object."""
    touch = f"touch {marker}"
    named = {
        "system": CallOnUnpickle(os.system, touch),
        "popen": CallOnUnpickle(subprocess.Popen, ["touch", str(marker)]),
        "open": CallOnUnpickle(open, str(marker), "w"),
        "eval": CallOnUnpickle(eval, f"open({str(marker)!r}, 'w')"),
        "exec": CallOnUnpickle(exec, f"open({str(marker)!r}, 'w')"),
        "import": CallOnUnpickle(__import__, "antigravity"),
        "numpy.load": CallOnUnpickle(np.load, str(marker)),
        "numpy.save": CallOnUnpickle(np.save, str(marker), 1),
        "array of objects": np.array([CallOnUnpickle(os.system, touch)], dtype=object),
        "dtype of a structure": np.zeros(1, dtype=[("a", "U3")]),
        "numbers": np.arange(3),
        "an object": CustomObject(),
        "a class": CustomObject,
        "a function": os.system,
        "a range": range(3),
        "a set": {1, 2},
        "a complex number": 1j,
    }
    dumped = {
        f"{name} {protocol}": pickle.dumps(make_payload([value]), protocol)
        for name, value in named.items()
        for protocol in PICKLE_PROTOCOLS
    }
    shell = touch.encode()
    return dumped | {
        "global and reduce": b"cos\nsystem\n(S'" + shell + b"'\ntR.",
        "global, unicode": b"cposix\nsystem\n(V" + shell + b"\ntR.",
        "inst": b"(S'" + shell + b"'\nios\nsystem\n.",
        "obj": b"(cos\nsystem\nS'" + shell + b"'\no.",
        "newobj": b"\x80\x02cposix\nsystem\n(V" + shell + b"\nt\x81.",
        "newobj_ex": b"\x80\x04cos\nsystem\n(V" + shell + b"\nt}\x92.",
        "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93(V" + shell + b"\ntR.",
        "stack global by memo": b"\x80\x04\x8c\x02os\x94\x8c\x06system\x940h\x00h\x01\x93(V" + shell + b"\ntR.",
        "extension": b"\x80\x02\x82\x01.",
        "extension of four bytes": b"\x80\x02\x84\x01\x00\x00\x00.",
        "persistent id": b"Pos.system\n.",
        "persistent id on the stack": b"\x8c\x01aQ.",
        "build of a dict": b"\x80\x02}}(V__setstate__\ncos\nsystem\nub.",
        "encode into a file": b"c_codecs\nencode\n(Va\nVrot13\ntR.",
        "encode by another name": b"c_codecs\ndecode\n(Va\nVlatin1\ntR.",
        "dotted name": b"\x80\x04\x8c\x05numpy\x8c\x0edtype.__class__\x93.",
        "dtype by a call": b"cnumpy\ndtype\n(VO8\nI00\nI01\ntR.",
        "ndarray as a call": b"cnumpy\nndarray\n((I1000000000\ntVU1\ntR.",
        "a name as the value": b"cnumpy\ndtype\n.",
        "a name in a tuple": b"(cnumpy\ndtype\nt.",
        "a name in a list": b"(cnumpy\ndtype\nl.",
    }


def test_exploits_are_refused_and_none_of_their_code_runs(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    for name, exploit in make_exploits(marker).items():
        with pytest.raises(RefusedPickle):
            pytest.fail(f"{name} gave {unpickle(exploit)!r}")
        assert not marker.exists(), name


def test_the_exploits_succeed_with_the_standard_pickle_module(tmp_path: Path) -> None:
    """The exploits succeed with pickle.loads, so the previous test would detect them."""
    marker = tmp_path / "executed"
    pickle.loads(make_exploits(marker)["stack global"])
    assert marker.exists()


TEXT_OPCODES = b"X\xe8\x03\0\0" + b"x" * 1000
ENCODED_OPCODES = b"0c_codecs\nencode\nh\x01X\x06\0\0\0latin1\x86R"
DATA_OPCODES = b"B\xa0\x0f\0\0" + b"x\0\0\0" * 1000
SCALAR_OPCODES = b"0cnumpy._core.multiarray\nscalar\ncnumpy\ndtype\nX\x05\0\0\0U1000K\0K\x01\x87Rh\x01\x86R"
HUGE_PICKLES = {
    "deep lists": b"]" * 1000 + b"a" * 999 + b".",
    "deep tuples": b"(" * 100 + b"t" * 100 + b".",
    "many opcodes": b"(" + b"N" * (MAX_OPCODES + 1) + b"l.",
    "a list in itself": b"]\x94h\x00a.",
    "a list that grows where it lies": b"]\x94]\x94h\x00ah\x00h\x01a0.",
    "strings of no bytes": pickle.dumps(np.array(["", ""])).replace(b"K\x02\x85", b"J\xff\xff\xff\x7f\x85"),
    "bytes that are not there": b"\x8e" + (2**62).to_bytes(8, "little") + b"x.",
    "digits": b"I" + b"9" * 10_000 + b"\n.",
    "keys that collide": pickle.dumps({key * (2**61 - 1): None for key in range(100)}),
    "a long key": pickle.dumps({"x" * (MAX_KEY_LENGTH + 1): None}),
    "bytes that are encoded twice": b"("
    + TEXT_OPCODES
    + b"q\x01"
    + ENCODED_OPCODES
    + b"h\x01"
    + ENCODED_OPCODES
    + b"l.",
    "an array that is read twice": b"(" + DATA_OPCODES + b"q\x01" + SCALAR_OPCODES + b"h\x01" + SCALAR_OPCODES + b"l.",
    "nothing": b"",
    "no end": b"\x80\x04N",
    "two": b"N.N.",
    "json": b'{"images": []}',
}


@pytest.mark.parametrize("name", HUGE_PICKLES)
def test_malformed_and_expensive_pickles_are_refused(name: str) -> None:
    with pytest.raises(RefusedPickle):
        unpickle(HUGE_PICKLES[name])


def test_the_nesting_depth_is_limited() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = [value]
    assert unpickle(pickle.dumps(value)) == value
    with pytest.raises(RefusedPickle):
        unpickle(pickle.dumps([value]))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(encoded: bytes) -> None:
    try:
        unpickle(encoded)
    except RefusedPickle as error:
        assert "\n" not in str(error)


OPCODES = [opcode.code.encode("latin-1") for opcode in pickletools.opcodes]
PIECES = st.one_of(
    st.sampled_from(OPCODES),
    st.sampled_from([b"cos\nsystem\n", b"Vx\n", b"K\x01", b"\x8c\x01a", b"h\x00", b"q\x00", b"}", b"]", b"("]),
    st.binary(max_size=3),
)


@settings(max_examples=500)
@given(st.lists(PIECES, max_size=30).map(b"".join))
def test_any_opcodes_produce_a_plain_value_or_are_refused(encoded: bytes) -> None:
    assert_plain_or_refused(encoded + b".")


def assert_plain_or_refused(encoded: bytes) -> None:
    try:
        value = unpickle(encoded)
    except RefusedPickle:
        return
    assert isinstance(value, (type(None), bool, int, float, str, bytes, bytearray, list, tuple, dict))


@given(st.data())
def test_a_real_payload_with_corrupted_bytes_produces_a_plain_value_or_is_refused(data: st.DataObject) -> None:
    encoded = bytearray(pickle.dumps(make_payload(np.array(["a", "bc"])), data.draw(st.sampled_from(PICKLE_PROTOCOLS))))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    assert_plain_or_refused(bytes(encoded))
