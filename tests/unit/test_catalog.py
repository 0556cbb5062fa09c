"""The tables of names, and how a policy is written."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmixer import catalog
from rmixer.errors import UnknownNameError, UsageError


def test_importing_the_catalog_loads_nothing_heavy() -> None:
    """`rmixer.catalog` and its tables come without torch, numpy, pydantic and polars."""
    program = (
        "import sys; from rmixer import catalog\n"
        "for kind in ('policy', 'executor', 'model', 'dataset'): assert catalog.table(kind)\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'polars', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_lookup_gives_the_target_of_a_known_name() -> None:
    """A name of the table gives its ``module:Class``."""
    assert catalog.lookup("policy", "fixed") == "rmixer.policies.baselines:Fixed"


def test_lookup_accepts_an_outsiders_class() -> None:
    """``pkg.module:Class`` needs no table."""
    assert catalog.lookup("model", "theirs.net:Tower") == "theirs.net:Tower"


def test_an_unknown_name_is_answered_with_the_nearest_and_all_known() -> None:
    """The message of an unknown name helps."""
    with pytest.raises(UnknownNameError, match=r"unknown policy 'fixd'; did you mean 'fixed'") as e:
        catalog.lookup("policy", "fixd")
    assert ", ".join(sorted(catalog.POLICIES)) in str(e.value)
    with pytest.raises(UnknownNameError, match=r"unknown data format 'orc'"):
        catalog.lookup("dataset", "orc")


@pytest.mark.parametrize("name", sorted(catalog.POLICIES))
def test_every_policy_of_the_table_loads_under_its_own_name(name: str) -> None:
    """The table's lines lead to classes that carry the name."""
    assert catalog.load("policy", name).name == name


def test_a_class_that_cannot_be_imported_is_a_usage_error() -> None:
    """A missing module and a missing class both say what is missing."""
    with pytest.raises(UsageError, match="No module named 'absent_module'"):
        catalog.load("policy", "absent_module:Policy")
    with pytest.raises(UsageError, match="json has no Policy"):
        catalog.load("policy", "json:Policy")


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("sequential", "sequential", {}),
        ("fixed:k=2,threads=1", "fixed", {"k": 2, "threads": 1}),
        ("x:a=0.5,b=1e-3,c=true,d=false,e=word", "x", {"a": 0.5, "b": 1e-3, "c": True, "d": False, "e": "word"}),
        ("pkg.mod:Mine", "pkg.mod:Mine", {}),
        ("pkg.mod:Mine:k=-3", "pkg.mod:Mine", {"k": -3}),
        (" fixed: k = 2 ", "fixed", {"k": 2}),
    ],
)  # fmt: skip
def test_a_policy_is_read_as_written(
    text: str, name: str, options: dict[str, catalog.Option]
) -> None:
    """Options become whole numbers, numbers, truth values or text."""
    parsed_name, parsed = catalog.parse_policy(text)
    assert (parsed_name, parsed) == (name, options)
    assert [type(v) for v in parsed.values()] == [type(v) for v in options.values()]


@pytest.mark.parametrize(
    "text",
    ["", ":", "fixed:", "fixed:k", "fixed:k=", "fixed:=2", "fixed:k=2,", "fixed:k=1,k=2", "a b"],
)
def test_a_policy_that_is_not_well_formed_is_refused(text: str) -> None:
    """The message repeats the text."""
    with pytest.raises(UsageError, match=r"policy '.*'"):
        catalog.parse_policy(text)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,8}", fullmatch=True),
        st.one_of(
            st.integers(-(10**9), 10**9),
            st.floats(allow_nan=False, allow_infinity=False),
            st.booleans(),
        ),
    )
)
def test_format_policy_is_the_inverse_of_parse_policy(options: dict[str, catalog.Option]) -> None:
    """What is written is read again, value and type."""
    name, parsed = catalog.parse_policy(catalog.format_policy("fixed", options))
    assert (name, parsed) == ("fixed", options)
    assert [type(v) for v in parsed.values()] == [type(v) for v in options.values()]


def test_build_policy_constructs_it() -> None:
    """The options reach the constructor."""
    policy = catalog.build_policy("fixed:k=3,threads=1")
    assert (policy.k, policy.threads) == (3, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fixed:kk=3", "unknown option of policy 'fixed': 'kk'; did you mean 'k'"),
        ("fixed:k=0", "k"),
        ("fixed:k=many", "k"),
        ("nope", "unknown policy 'nope'"),
        ("os:getcwd", "os:getcwd is no policy"),
        ("os:sep", "is not a callable object"),
    ],
)
def test_build_policy_refuses_options_that_are_not_right(text: str, message: str) -> None:
    """Unknown and out of range options are usage errors."""
    with pytest.raises(UsageError, match=message):
        catalog.build_policy(text)
