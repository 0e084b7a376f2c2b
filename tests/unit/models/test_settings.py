"""Settings: what a table may hold, and how it is said what is wrong with one."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError, field_validator

from tamis.base.errors import InputError
from tamis.models.settings import Count, Positive, Settings, Share, Text, Whole, build, changed, in_words


class Topping(Settings):
    name: Text
    grams: Positive = 10.0


class Dough(Settings):
    water: Share = 0.6
    toppings: tuple[Topping, ...] = ()

    def model_post_init(self, _: object) -> None:
        if self.water == 0.5:
            raise InputError("water of [dough] is a half", remedy="take more, or less")


class Cake(Settings):
    dough: Dough
    heat: Positive = 220.0
    sides: tuple[Literal["top", "bottom"], ...] = ("top",)
    trays: Count | None = None
    warm: bool = False
    note: str = Field(default="", repr=False)
    code: Annotated[str, Field(pattern="^[a-z]+$")] = "a"

    @field_validator("trays")
    @classmethod
    def _even(cls, trays: int | None) -> int | None:
        if trays is not None and trays % 2:
            raise ValueError("trays come in pairs")
        return trays


def refused(table: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        build(Cake, table, "cake.toml")
    said = str(caught.value)
    assert said.startswith("cake.toml: ") and "\n" not in said
    return said.removeprefix("cake.toml: ")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"doug": {}}, "the recipe has no field 'doug': the known ones are dough, heat, sides, "),
        ({"heat": 3}, "the recipe lacks dough: give it a table"),
        ({"dough": 3}, "dough is 3: it must be a table, [dough]"),
        ({"dough": {"salt": 1}}, "[dough] has no field 'salt': the known ones are water, toppings"),
        ({"dough": {"water": "0.5"}}, "water of [dough] is '0.5': it must be a number from 0 to 1"),
        (
            {"dough": {"toppings": {"name": "a"}}},
            "toppings of [dough] is {'name': 'a'}: it must be a list of tables, [[dough.toppings]]",
        ),
        (
            {"dough": {"toppings": [3]}},
            "toppings of [dough] is [3]: it must be a list of tables, [[dough.toppings]]",
        ),
        (
            {"dough": {"toppings": [{"name": "a"}, {"grams": 1}]}},
            "[dough.toppings] lacks name: give it a text that is not empty",
        ),
        (
            {"dough": {"toppings": [{"name": "a"}, {"name": "b", "grams": 0}]}},
            "grams of [dough.toppings] is 0: it must be a number above 0",
        ),
        ({"dough": {"water": 0.5}}, "water of [dough] is a half: take more, or less"),
        ({"dough": {}, "heat": True}, "heat is True: it must be a number above 0"),
        ({"dough": {}, "heat": "220"}, "heat is '220': it must be a number above 0"),
        ({"dough": {}, "heat": float("inf")}, "heat is inf: it must be a number above 0"),
        ({"dough": {}, "heat": float("nan")}, "heat is nan: it must be a number above 0"),
        ({"dough": {}, "heat": 10**400}, "heat is 1000"),
        ({"dough": {}, "heat": datetime.date(2020, 1, 1)}, "heat is datetime.date(2020, 1, 1)"),
        (
            {"dough": {}, "sides": ["top", "left"]},
            "sides is ['top', 'left']: it must be a list of one of top, bottom",
        ),
        ({"dough": {}, "sides": "top"}, "sides is 'top': it must be a list of one of top"),
        ({"dough": {}, "trays": 1.0}, "trays is 1.0: it must be a whole number of at least 1"),
        ({"dough": {}, "trays": True}, "trays is True: it must be a whole number of at least"),
        ({"dough": {}, "trays": 2**63}, "trays is 9223372036854775808: it must be a whole"),
        ({"dough": {}, "trays": 3}, "trays is 3: trays come in pairs"),
        ({"dough": {}, "warm": 1}, "warm is 1: it must be true or false"),
        ({"dough": {}, "note": 1}, "note is 1: it must be a text"),
        ({"dough": {}, "code": "A"}, "code is 'A': String should match pattern"),
        ({"dough": {}, "heat": -1, "haet": 1}, "the recipe has no field 'haet'"),  # the first of several
        ({"dough": {}, "heat": -1, "warm": 3}, "heat is -1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(table: dict[str, Any], said: str) -> None:
    assert refused(table).startswith(said)


def test_a_whole_number_may_stand_for_a_number_and_a_list_of_a_file_for_a_tuple() -> None:
    cake = build(Cake, {"dough": {"toppings": [{"name": "a", "grams": 3}]}, "sides": ["bottom"]}, "cake.toml")
    assert cake == Cake(Dough(toppings=(Topping("a", 3.0),)), sides=("bottom",))
    assert isinstance(cake.dough.toppings[0].grams, float)


def test_settings_made_in_python_are_checked_and_cannot_be_changed() -> None:
    cake = Cake(Dough(), 180)
    with pytest.raises(InputError, match=r"^heat of \[cake\] is -1: it must be a number above 0$"):
        Cake(Dough(), -1)
    with pytest.raises(InputError, match=r"^heat of \[cake\] is -1: "):
        changed(cake, heat=-1)
    with pytest.raises(InputError, match=r"^\[cake\] has no field 'haet'"):
        changed(cake, haet=1)
    with pytest.raises(TypeError, match="Topping has 2 fields, not 3"):
        Topping("a", 1, 2)
    with pytest.raises(TypeError, match="'heat' twice"):
        Cake(Dough(), 180, heat=190)
    with pytest.raises(ValidationError):
        cake.heat = 200.0  # type: ignore[misc]
    assert changed(cake, heat=200) == Cake(Dough(), 200.0) and cake.heat == 180.0


def test_what_is_left_out_of_the_repr_is_left_out_of_the_text_too() -> None:
    first, second = Cake(Dough(), note="a"), Cake(Dough(), note="b")
    assert first != second and repr(first) == repr(second) == str(first) == f"{second}"


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (Share, "a number from 0 to 1"),
        (Annotated[float, Field(ge=0, lt=1)], "a number from 0 up to 1"),
        (Annotated[Count, Field(ge=5)], "a whole number of at least 5"),
        (tuple[Whole, ...] | None, "a list of whole numbers of at least 0"),
        (tuple[Share, Share], "a list of 2 numbers from 0 to 1"),
        (tuple[Text, ...], "a list of texts that are not empty"),
        (Literal[1, 2], "one of 1, 2"),
        (int | str, "a whole number or a text"),
        (Topping | None, "a table"),
        (tuple[Topping, ...], "a list of tables"),
    ],
)
def test_types_in_words(hint: Any, words: str) -> None:
    kind = type("Kind", (Settings,), {"__annotations__": {"field": hint}, "__module__": __name__})
    assert in_words(kind.model_fields["field"]) == words
