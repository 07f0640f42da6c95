"""Profile, node file and command line become one description, and every value knows where it is from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dsv41_serving.errors import InputError
from dsv41_serving.spec import leaves, load_spec, profile_names

if TYPE_CHECKING:
    from collections.abc import Callable

    Write = Callable[[str], Path]

NODE = """
profile = "h200x8"

[router]
port = 31000

[engine.env]
UCX_TLS = "tcp,self"

[engines.decode]
max_running_requests = 32
"""


def test_the_later_layer_wins(write_node: Write) -> None:
    """Default, then profile, then node file, then --set; what a layer does not name stays."""
    loaded = load_spec(write_node(NODE), overrides=["engines.decode.max_running_requests=16"])
    spec = loaded.spec
    assert spec.monitoring.prometheus_port == 9090
    assert spec.engines["decode"].memory_fraction == 0.92
    assert spec.router.port == 31000
    assert spec.engines["decode"].max_running_requests == 16
    assert spec.engines["prefill"].max_running_requests == 64


def test_every_value_names_its_layer(write_node: Write) -> None:
    """Origins say 'default', the profile, the path of the node file, or '--set'."""
    path = write_node(NODE)
    origins = load_spec(path, overrides=["engines.decode.max_running_requests=16"]).origins
    assert origins["monitoring.prometheus_port"] == "default"
    assert origins["engines.decode.memory_fraction"] == "profile h200x8"
    assert origins["router.port"] == str(path)
    assert origins["engines.decode.max_running_requests"] == "--set"
    assert origins["profile"] == str(path)


@pytest.mark.parametrize("profile", profile_names())
def test_no_value_is_without_origin(profile: str) -> None:
    """Every leaf of the merged description has one."""
    loaded = load_spec(profile=profile)
    assert {key for key, _ in leaves(loaded.spec.model_dump())} <= loaded.origins.keys()


def test_tables_merge_key_by_key(write_node: Write) -> None:
    """A node file that sets one variable keeps the others of the profile."""
    env = load_spec(write_node(NODE)).spec.engine.env
    assert env["UCX_TLS"] == "tcp,self"
    assert env["UCX_MEMTYPE_CACHE"] == "n"


def test_lists_replace_one_another(write_node: Write) -> None:
    """Two half lists joined would be a value nobody wrote."""
    path = write_node('profile = "h200x8"\n[engines.decode]\ngraph_batch_sizes = [3]\n')
    assert load_spec(path).spec.engines["decode"].graph_batch_sizes == [3]


def test_a_node_file_may_add_an_engine_and_a_shape(write_node: Write) -> None:
    """The engine is served when its shape is chosen."""
    text = """
    profile = "embedded"
    shape = "small"
    [engines.small]
    role = "aggregated"
    tp = 1
    port = 30300
    max_running_requests = 2
    [shapes]
    small = ["small"]
    """
    assert list(load_spec(write_node(text)).spec.active_engines()) == ["small"]


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("node.name=box", "box"),
        ('node.name="box"', "box"),
        ("node.name = box", "box"),
    ],
)
def test_a_word_on_the_command_line_needs_no_quotes(override: str, value: str) -> None:
    """Shells eat quotes, so what is no TOML value is taken as text."""
    assert load_spec(profile="embedded", overrides=[override]).spec.node.name == value


def test_the_command_line_takes_toml_values() -> None:
    """Lists, booleans and tables keep their type."""
    overrides = [
        "engines.prefill.gpus=[4,5,6,7]",
        "contract.thinking=false",
        'engine.args={log-level="info", "moe-runner-backend"="triton"}',
    ]
    spec = load_spec(profile="h200x8", overrides=overrides).spec
    assert spec.engines["prefill"].gpus == [4, 5, 6, 7]
    assert spec.contract.thinking is False
    assert spec.engine.args["log-level"] == "info"
    assert spec.engine.args["moe-runner-backend"] == "triton"
    assert spec.engine.args["trust-remote-code"] is True


@pytest.mark.parametrize(
    ("overrides", "port"), [(["router.port=1", "router.port=31000"], 31000), (["router=1", "router.port=31000"], 31000)]
)
def test_of_two_overrides_of_a_key_the_later_holds(overrides: list[str], port: int) -> None:
    """As with any option given twice."""
    assert load_spec(profile="embedded", overrides=overrides).spec.router.port == port


def test_the_command_line_may_choose_another_profile(write_node: Write) -> None:
    """--set profile=NAME is an override like any other: all defaults follow it."""
    loaded = load_spec(write_node('profile = "embedded"\n'), overrides=["profile=h200x8"])
    assert (loaded.spec.profile, loaded.spec.engine.device) == ("h200x8", "cuda")


def test_a_node_file_without_profile_takes_the_one_asked_for(write_node: Write) -> None:
    """And its origin is the profile itself."""
    loaded = load_spec(write_node("[router]\nport = 31000\n"), profile="embedded")
    assert (loaded.spec.profile, loaded.spec.router.port) == ("embedded", 31000)
    assert loaded.origins["profile"] == "profile embedded"


def test_two_profiles_are_never_mixed(write_node: Write) -> None:
    """A node file that names another profile than --profile is a question, not a choice."""
    path = write_node('profile = "embedded"\n')
    assert load_spec(path, profile="embedded").spec.profile == "embedded"
    with pytest.raises(InputError) as error:
        load_spec(path, profile="h200x8")
    assert str(error.value) == (
        f"{path}, key profile: 'embedded' is set here, but --profile asks for 'h200x8'; "
        "leave --profile out, or change the key with --set profile=NAME"
    )


def test_home_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A description made for a service user keeps its meaning in a process with another home."""
    monkeypatch.setenv("HOME", "/home/operator")
    spec = load_spec(profile="embedded", overrides=["model.path=~/model"]).spec
    assert spec.node.state_dir == "/home/operator/.local/state/dsv41"
    assert spec.node.cache_dir == "/home/operator/.cache/dsv41"
    assert spec.model.path == "/home/operator/model"
    assert Path(load_spec(profile="h200x8").spec.node.state_dir) == Path("/var/lib/dsv41")


def test_leaves_are_dotted_and_an_empty_table_is_one() -> None:
    """An empty table is something somebody wrote."""
    assert list(leaves({"a": {"b": 1, "c": {}}, "d": [2]})) == [("a.b", 1), ("a.c", {}), ("d", [2])]


def test_a_description_cannot_be_changed() -> None:
    """Everything derived from it stays true."""
    spec = load_spec(profile="embedded").spec
    with pytest.raises(ValueError, match="frozen"):
        spec.shape = "single"
