"""By which variables the program holds what it prepares."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

from accelerate.checkpoint.identity import Identities
from accelerate.checkpoint.variables import call_names, held_names


class Thing:
    """Something to hold."""


class Recorder:
    """Notes the names of the arguments of the call it is in."""

    def __init__(self) -> None:
        self.names: list[tuple[str, ...]] = []
        self.first: Any = None

    def prepare(self, *objects: Any) -> Any:
        self.names = call_names(sys._getframe(1), len(objects))
        return objects if len(objects) > 1 else objects[0]


def test_plain_names_and_targets() -> None:
    recorder, a, b = Recorder(), Thing(), Thing()
    c, d = recorder.prepare(a, b)
    assert recorder.names == [("a", "c"), ("b", "d")]
    a, b = recorder.prepare(a, b)
    assert recorder.names == [("a",), ("b",)]
    b, a = recorder.prepare(b, a)
    assert recorder.names == [("b",), ("a",)]
    assert c is not d


def test_attributes_keys_and_single_objects() -> None:
    recorder, nets = Recorder(), {"g": Thing(), "d": Thing()}
    recorder.first, second = recorder.prepare(nets["g"], nets["d"])
    assert recorder.names == [("nets['g']", "recorder.first"), ("nets['d']", "second")]
    one = recorder.prepare(recorder.first)
    assert recorder.names == [("recorder.first", "one")]
    assert one is not second


def test_what_says_no_more_than_an_order_is_no_name() -> None:
    recorder, nets = Recorder(), [Thing(), Thing()]
    recorder.prepare(*nets)
    assert recorder.names == [(), ()]
    recorder.prepare(nets[0], nets[1])
    assert recorder.names == [(), ()]
    recorder.prepare(Thing(), Thing())
    assert recorder.names == [(), ()]


def test_a_name_that_is_exchanged_in_the_call_is_left_out() -> None:
    recorder, a, b = Recorder(), Thing(), Thing()
    a, b = recorder.prepare(b, a)
    assert recorder.names == [(), ()]
    assert a is not b


def test_closures_and_conditional_calls() -> None:
    recorder, a, b = Recorder(), Thing(), Thing()

    def inside() -> Any:
        return recorder.prepare(a, b)

    inside()
    assert recorder.names == [("a",), ("b",)]


def test_module_level_variables_are_found_when_they_are_held() -> None:
    space: dict[str, Any] = {"sys": sys, "held_names": held_names, "Thing": Thing}
    code = "net, other, nets = Thing(), Thing(), {'k': Thing()}\nfound = held_names(sys._getframe(0), [net, nets['k']])"
    exec(compile(code, "<string>", "exec"), space)
    assert space["found"] == [("net",), ("nets['k']",)]


def test_looking_keeps_nothing_of_a_function_alive() -> None:
    class Big:
        pass

    def train() -> weakref.ref[Big]:
        big, identities = Big(), Identities()
        identities.look(sys._getframe(0), [identities])
        gone = weakref.ref(big)
        del big
        gc.collect()
        assert gone() is None
        return gone

    train()


def test_names_and_tokens_belong_to_the_live_object() -> None:
    identities, a, b = Identities(), Thing(), Thing()
    assert identities.token(a) == identities.token(a) != identities.token(b)
    identities.name(a, "generator")
    assert identities.names(a) == ("generator",)
    assert identities.names(b) == ()
    token = identities.token(a)
    del a
    gc.collect()
    c = Thing()  # may well get the address of the first
    assert identities.names(c) == ()
    assert identities.token(c) != token
