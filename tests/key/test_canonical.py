"""Every canonical text reads back to an equal value, and nothing else does; and `lazy` computes a value once."""

import io
import os
import pickle
import string
import threading
import time
from dataclasses import fields, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kit import strategies

from gemmdb.errors import InputError
from gemmdb.kernels.config import Config
from gemmdb.key import canonical
from gemmdb.key.canonical import lazy
from gemmdb.key.device import Device
from gemmdb.key.operands import Bias, Operand
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.table.measurement import Protocol

KINDS = [
    (Problem, "problems"),
    (Config, "configs"),
    (Device, "devices"),
    (Protocol, "protocols"),
    (Toolchain, "toolchains"),
]
PARSERS = [Problem, Config, Device, Protocol, Toolchain, Operand, Bias]


@pytest.mark.parametrize(("kind", "name"), KINDS)
@given(data=st.data())
def test_round_trip(kind, name, data):
    value = data.draw(getattr(strategies, name))
    back = kind.parse(value.text)
    assert back == value
    assert back.text == value.text
    assert back.key == value.key
    assert hash(back) == hash(value) or kind is Device
    assert value.text.isascii()
    assert "\n" not in value.text


@pytest.mark.parametrize(("kind", "name"), KINDS)
@given(data=st.data())
def test_equal_texts_mean_equal_values(kind, name, data):
    one, other = data.draw(getattr(strategies, name)), data.draw(getattr(strategies, name))
    assert (one.text == other.text) == (one == other)


@given(data=st.data())
def test_a_value_survives_pickling_with_its_key(data):
    row = data.draw(strategies.measurements)
    back = pickle.loads(pickle.dumps(row))
    assert back == row
    assert back.key == row.key


class Meanwhile(pickle.Pickler):
    """Computes the key of a value between its first and its second field, as another thread may."""

    def __init__(self, file, value):
        super().__init__(file)
        self.value, self.second = value, fields(value)[1].name

    def persistent_id(self, part):
        if part == self.second:
            assert isinstance(self.value.key, int)


@pytest.mark.parametrize("name", ["problems", "devices", "protocols", "toolchains", "measurements"])
@given(data=st.data())
def test_a_value_may_get_its_key_while_it_is_pickled(name, data):
    value = replace(data.draw(getattr(strategies, name)))  # A copy without a key.
    file = io.BytesIO()
    Meanwhile(file, value).dump(value)
    assert pickle.loads(file.getvalue()) == value


@given(data=st.data())
def test_measurements_differ_in_text_when_they_differ(data):
    one, other = data.draw(strategies.measurements), data.draw(strategies.measurements)
    assert (one.text == other.text) == (one == other)


@given(text=st.text())
@example("bf16:row:" + "9" * 5000)
@example("1d:bf16:" + "9" * 5000)
@example("bf16:row:\u0668")
@example("bf16:row:08")
@example("cpp:packed_gemm blocks_k=\ud800")
def test_parsing_any_text_raises_nothing_but_input_error(text):
    for kind in PARSERS:
        try:
            value = kind.parse(text)
        except InputError:
            continue
        assert text == ("none" if value is None else value.text)


@pytest.mark.parametrize(("kind", "name"), KINDS)
@given(data=st.data())
def test_an_edited_text_is_refused_or_is_another_value(kind, name, data):
    text = data.draw(getattr(strategies, name)).text
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 12))
    inserted = data.draw(st.text(max_size=3) | st.sampled_from(["\ud800", "%D8%00", "9" * 5000, " m=1", "~"]))
    edited = text[:at] + inserted + text[at + cut :]
    try:
        value = kind.parse(edited)
    except InputError:
        return
    assert value.text == edited


def test_an_operand_in_a_problem_is_bounded():
    text = Problem.gemm("mm", m=2, n=2, k=2).text
    with pytest.raises(InputError, match="operand"):
        Problem.parse(text.replace("a=bf16:row:2", "a=bf16:row:" + "2" * 5000))


def test_lone_surrogates_have_no_canonical_form():
    with pytest.raises(InputError, match="Unicode"):
        _ = Toolchain(torch="\ud800").text


@given(value=st.text(alphabet=string.printable + "é~%=", max_size=30))
def test_any_string_survives_the_codec(value):
    text = canonical.encode("kind", [("field", value)])
    assert canonical.decode("kind", text) == {"field": value}


@given(text=st.text())
def test_keys_fit_a_signed_sqlite_integer(text):
    try:
        key = canonical.key(text)
    except InputError:
        assert any("\ud800" <= c <= "\udfff" for c in text)
        return
    assert -(2**63) <= key < 2**63
    assert key == canonical.key(text)


def test_none_is_not_the_tilde():
    assert canonical.decode("k", canonical.encode("k", [("a", None), ("b", "~"), ("c", "")])) == {
        "a": None,
        "b": "~",
        "c": "",
    }


@pytest.mark.parametrize("text", ["", "other a=1", "k a", "k a=1 a=2", "k a=%FF", "k  a=1"])
def test_malformed_texts_are_refused(text):
    with pytest.raises(InputError):
        canonical.decode("k", text)


def test_the_key_of_a_text_never_changes():
    """Tables written years ago must be found: this number is part of the file format."""
    assert canonical.key("mm") == 2122171040140029904


class Squared:
    def __init__(self, number: int, compute=lambda: None) -> None:
        self.number, self.compute, self.times = number, compute, 0

    @lazy
    def square(self) -> int:
        self.times += 1
        self.compute()
        return self.number**2


def test_a_value_is_computed_once_for_each_instance() -> None:
    two, three = Squared(2), Squared(3)
    assert [two.square, three.square, two.square] == [4, 9, 4]
    assert (two.times, three.times) == (1, 1)
    assert isinstance(Squared.square, lazy)


def test_a_process_that_is_forked_meanwhile_does_not_wait() -> None:
    """`functools.cached_property` of Python 3.11 has one lock per class, and a copy of it that nobody would release."""
    began, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: Squared(2, lambda: (began.set(), go_on.wait(30))).square)
    thread.start()
    assert began.wait(10)
    pid = os.fork()
    if not pid:
        os._exit(0 if Squared(3).square == 9 else 1)
    ended, until = (0, 0), time.monotonic() + 10
    while not ended[0] and time.monotonic() < until:
        ended = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)
    go_on.set()
    thread.join()
    if not ended[0]:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    assert ended == (pid, 0)
