"""Settings from the environment, and the Policy."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdb import settings as settings_module
from gemmdb.errors import InputError
from gemmdb.settings import (
    CONFIRM_S,
    EXPLICIT_LIVE_CALLS,
    EXPLICIT_LIVE_S,
    LIVE_CALLS,
    LIVE_S,
    ON_MISS,
    Policy,
    Settings,
    data_home,
    log_level,
    name_unknown_variables,
)


def test_the_defaults_of_an_empty_environment():
    settings = Settings.read({"HOME": "/home/user"})
    assert (settings.tables, settings.on_miss, settings.disabled) == ((), "", False)
    assert settings.confirm
    assert settings.user_table == data_home({}) / "user.db"


def test_every_variable_is_read():
    settings = Settings.read(
        {
            "GEMMDB_TABLES": os.pathsep.join(["/a.db", "", "/b.db"]),
            "GEMMDB_USER_TABLE": "/mine.db",
            "GEMMDB_ON_MISS": "error",
            "GEMMDB_CONFIRM": "0",
            "GEMMDB_TRUST": "/trusted",
            "GEMMDB_DISABLE": "1",
            "GEMMDB_FROZEN": "/pins",
        }
    )
    assert settings == Settings(
        (Path("/a.db"), Path("/b.db")), Path("/mine.db"), "error", True, False, Path("/trusted"), True,
        Path("/pins"),
    )  # fmt: skip


@pytest.mark.parametrize(("value", "found"), [
    ("", (False, None)), ("0", (False, None)), ("off", (False, None)), ("1", (True, None)), ("True", (True, None)),
    ("~/serve/frozen.sha256", (True, Path.home() / "serve" / "frozen.sha256")),
])  # fmt: skip
def test_frozen_is_a_switch_or_a_file(value, found):
    settings = Settings.read({"GEMMDB_FROZEN": value})
    assert (settings.frozen, settings.pins) == found


@pytest.mark.parametrize("policy", [Policy(), Policy(on_miss="live", confirm=True, live_s=300.0)])
def test_frozen_overrules_what_times(policy):
    settings = Settings.read({"GEMMDB_FROZEN": "1", "GEMMDB_ON_MISS": "live", "GEMMDB_CONFIRM": "1"})
    for on_miss in (None, "live", "aten"):
        found = policy.resolved(settings, on_miss)
        assert (found.on_miss, found.confirm, found.frozen) == ("aten", False, True)
    assert policy.resolved(settings, "error").on_miss == "error"


def test_a_program_may_decide_itself_whether_it_is_frozen():
    on, off = Settings.read({"GEMMDB_FROZEN": "1"}), Settings.read({})
    assert not Policy(frozen=False).resolved(on).frozen
    assert Policy(frozen=True).resolved(off).frozen
    assert Policy(frozen=True).resolved(off).text != Policy(frozen=False).resolved(off).text
    assert off.with_frozen("pins") == replace(off, frozen=True, pins=Path("pins"))
    assert off.with_frozen(None) == off
    with pytest.raises(InputError, match="frozen must be True, False or None"):
        Policy(frozen="yes")  # type: ignore[arg-type]


def test_confirming_is_switched_by_0_and_1():
    with pytest.raises(InputError, match="GEMMDB_CONFIRM='no'; known: 0, 1"):
        Settings.read({"GEMMDB_CONFIRM": "no"})
    assert Settings.read({"GEMMDB_CONFIRM": "no", "GEMMDB_DISABLE": "1"}).disabled


@pytest.mark.parametrize(
    ("value", "disabled"), [("", False), ("0", False), ("False", False), ("off", False), ("1", True), ("yes", True)]
)
def test_disable(value, disabled):
    assert Settings.read({"GEMMDB_DISABLE": value}).disabled is disabled


def test_the_data_home_follows_xdg():
    assert data_home({"XDG_DATA_HOME": "/data"}) == Path("/data/gemmdb")
    assert Settings.read({"XDG_DATA_HOME": "/data"}).user_table == Path("/data/gemmdb/user.db")


def test_nobody_is_at_home(monkeypatch):
    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    found = Settings.read({"GEMMDB_TABLES": "~nosuchuser/x.db", "GEMMDB_USER_TABLE": ""})
    assert found.tables == (Path("~nosuchuser/x.db"),)
    assert not found.user_table.exists()
    assert found.user_table.name == "user.db"
    with pytest.raises(NotADirectoryError):
        found.user_table.parent.mkdir(parents=True)


def test_what_is_disabled_is_not_looked_at():
    assert Settings.read({"GEMMDB_DISABLE": "1", "GEMMDB_ON_MISS": "bogus"}).disabled


def test_an_unknown_on_miss_names_the_known_ones():
    with pytest.raises(InputError, match="GEMMDB_ON_MISS='never'; known: aten, live, error"):
        Settings.read({"GEMMDB_ON_MISS": "never"})
    with pytest.raises(InputError, match="known: aten, live, error"):
        Policy(on_miss="never")


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [("GEMMDB_ON_MISS", "atne", "aten"), ("GEMMDB_ON_MISS", "LIVE", "live"), ("GEMMDB_LOG", "inof", "INFO")],
)
def test_a_wrong_value_names_the_nearest_right_one(name, value, meant):
    with pytest.raises(InputError, match=f"{name}='{value}'; known: .*; did you mean '{meant}'"):
        Settings.read({name: value})


def test_an_unknown_level_is_refused_and_one_in_small_letters_is_not():
    with pytest.raises(InputError, match="GEMMDB_LOG='chatty'; known: DEBUG, INFO"):
        Settings.read({"GEMMDB_LOG": "chatty"})
    assert Settings.read({"GEMMDB_LOG": "warn"}) == Settings.read({})
    assert Settings.read({"GEMMDB_LOG": "chatty", "GEMMDB_DISABLE": "1"}).disabled


def test_an_unknown_variable_is_named_once_with_the_nearest_known_one(caplog, monkeypatch):
    monkeypatch.setattr(settings_module, "_named", set())
    environ = {"GEMMDB_TABLE": "/a.db", "GEMMDB_LOG": "INFO", "OTHER_TABLE": "", "GEMMDB_XYZZY": "1"}
    name_unknown_variables(environ)
    name_unknown_variables(environ)
    assert [record.getMessage() for record in caplog.records] == [
        "GEMMDB_TABLE is no setting of gemmdb; did you mean 'GEMMDB_TABLES'?",
        "GEMMDB_XYZZY is no setting of gemmdb; see docs/settings.md",
    ]


def test_a_wrong_field_names_the_nearest_right_one():
    with pytest.raises(
        InputError, match=r"^Policy got an unexpected keyword argument 'min_gian'; did you mean 'min_gain'\?$"
    ):
        Policy(min_gian=0.1)
    with pytest.raises(InputError, match="'xyzzy'; known: on_miss, min_gain, "):
        replace(Policy(), xyzzy=1)


@pytest.mark.parametrize("field", ["allow", "deny"])
def test_a_broken_regular_expression_is_refused(field):
    with pytest.raises(InputError, match="not a regular expression"):
        Policy(**{field: "("})


LIMITS = ["min_gain", "unverified_gain", "near_loss", "range_regret", "model_gain", "live_s", "confirm_s"]


@pytest.mark.parametrize("field", LIMITS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_limit_must_be_a_number(field, value):
    """A gain that is not a number compares false with everything, so it would let every config through."""
    with pytest.raises(InputError, match=field):
        Policy(**{field: value})


@pytest.mark.parametrize("field", ["compile_cost", "cutlass_size", "live_cost", "live_calls"])
@pytest.mark.parametrize("value", [-1, "9", None, 1.5])
def test_a_cost_must_be_a_whole_number(field, value):
    with pytest.raises(InputError, match=field):
        Policy(**{field: value})


@pytest.mark.parametrize("field", ["live_s", "confirm_s"])
@pytest.mark.parametrize("value", [-1.0, "20", None])
def test_a_time_must_be_one(field, value):
    with pytest.raises(InputError, match=field):
        Policy(**{field: value})


@pytest.mark.parametrize("value", [1, "yes", 0.5])
def test_whether_to_confirm_is_yes_no_or_open(value):
    with pytest.raises(InputError, match="confirm must be True, False or None"):
        Policy(confirm=value)


@pytest.mark.parametrize(
    ("policy", "environ", "expected"),
    [
        (Policy(), {}, (True, CONFIRM_S)),
        (Policy(), {"GEMMDB_CONFIRM": ""}, (True, CONFIRM_S)),
        (Policy(), {"GEMMDB_CONFIRM": " 0 "}, (False, CONFIRM_S)),
        (Policy(), {"GEMMDB_CONFIRM": "1"}, (True, CONFIRM_S)),
        (Policy(), {"GEMMDB_CONFIRM": "0"}, (False, CONFIRM_S)),
        (Policy(confirm=False), {"GEMMDB_CONFIRM": "1"}, (False, CONFIRM_S)),
        (Policy(confirm=True, confirm_s=7.0), {"GEMMDB_CONFIRM": "0"}, (True, 7.0)),
        (Policy(confirm=True, on_miss="error"), {}, (False, CONFIRM_S)),
        (Policy(confirm=True), {"GEMMDB_ON_MISS": "error"}, (False, CONFIRM_S)),
    ],
)
def test_whether_to_confirm_is_said_by_the_policy_then_the_environment_and_never_in_strict_mode(
    policy, environ, expected
):
    found = policy.resolved(Settings.read(environ))
    assert (found.confirm, found.confirm_s) == expected


@pytest.mark.parametrize(
    ("policy", "environ", "on_miss", "expected"),
    [
        (Policy(), {}, None, ("live", LIVE_S)),
        (Policy(), {}, "live", ("live", EXPLICIT_LIVE_S)),
        (Policy(), {"GEMMDB_ON_MISS": "live"}, None, ("live", EXPLICIT_LIVE_S)),
        (Policy(on_miss="live"), {}, None, ("live", EXPLICIT_LIVE_S)),
        (Policy(live_s=5.0), {"GEMMDB_ON_MISS": "live"}, None, ("live", 5.0)),
        (Policy(on_miss="error"), {"GEMMDB_ON_MISS": "aten"}, None, ("error", LIVE_S)),
        (Policy(on_miss="error"), {"GEMMDB_ON_MISS": "aten"}, "aten", ("aten", LIVE_S)),
    ],
)
def test_what_a_miss_does_is_said_by_the_caller_then_the_policy_then_the_environment(
    policy, environ, on_miss, expected
):
    found = policy.resolved(Settings.read(environ), on_miss)
    assert (found.on_miss, found.live_s) == expected


def test_who_asks_for_live_by_name_has_more_tuned():
    asked, default = (Policy().resolved(Settings.read({}), name) for name in ("live", None))
    assert (asked.live_calls, default.live_calls) == (EXPLICIT_LIVE_CALLS, LIVE_CALLS)
    assert Policy(live_calls=7).resolved(Settings.read({}), "live").live_calls == 7


POLICIES = st.builds(
    Policy,
    st.sampled_from(ON_MISS),
    *(st.floats(0, 1) for _ in range(4)),
    *(st.booleans() for _ in range(3)),
    *(st.sampled_from(["", "cpp", "a b", "pingpong|stream"]) for _ in range(2)),
    st.booleans(),
    st.integers(0, 20),
    st.integers(0, 2**40),
    st.floats(0, 1),
    st.floats(0, 600),
    st.integers(0, 10),
    st.integers(0, 10**7),
    st.sampled_from([None, True, False]),
    st.floats(0, 60),
)


@given(one=POLICIES, other=POLICIES)
def test_policies_differ_in_text_when_they_differ(one, other):
    assert (one.text == other.text) == (one == other)


URL = "https://example.com:8443/tables/h200.db"


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ([URL, "/b.db"], [URL, "/b.db"]),
        (["/a.db", "s3://bucket/x.db", "", URL], ["/a.db", "s3://bucket/x.db", URL]),
        (["file:///tmp/a.db", "b.db"], ["file:///tmp/a.db", "b.db"]),
        (["memory://x.db", "gs://y:z"], ["memory://x.db", "gs://y", "z"]),
        (["a.db", "//host/b.db"], ["a.db", "//host/b.db"]),
        (["~/a b.db", "./c:"], ["~/a b.db", "./c"]),
    ],
)
@pytest.mark.skipif(os.pathsep != ":", reason="another separator does not occur in URLs")
def test_a_url_in_a_list_is_one_item(paths, expected):
    found = Settings.read({"GEMMDB_TABLES": ":".join(paths)}).tables
    assert found == tuple(Path(path).expanduser() for path in expected)


# After a word and the separator, `//` makes a URL of both.
@given(st.lists(st.text("ab/.~-", min_size=1).filter(lambda path: not path.startswith("//")), max_size=5))
def test_a_list_of_paths_is_split_as_path_is(paths):
    found = Settings.read({"GEMMDB_TABLES": os.pathsep.join(paths)}).tables
    assert len(found) == len(paths)


@pytest.mark.parametrize(
    ("text", "level"),
    [("INFO", 20), ("debug", 10), (" Warn ", 30), ("", None), ("verbose", None), ("NOTSET", None), ("10", None)],
)
def test_a_log_level_is_a_name_of_logging(text, level):
    assert log_level(text) == level
