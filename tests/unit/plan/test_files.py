"""The files of an installation: what they say, and that writing and comparing them is safe to repeat."""

from __future__ import annotations

import json
import re
import stat
from typing import TYPE_CHECKING

import pytest

from dsv41_serving.errors import InputError
from dsv41_serving.plan import Plan, make_plan
from dsv41_serving.plan.files import FILE_LIST, node_file_text, toml_value
from dsv41_serving.plan.install import diff_files, differing, locate, read_plan, refuse_home, write_files
from dsv41_serving.spec import load_spec, profile_names
from tests.unit.plan.machines import INSTALLATION, plan_for, turn_into

if TYPE_CHECKING:
    from pathlib import Path

    from dsv41_serving.facts import Facts

UNITS = "/etc/systemd/system"


@pytest.fixture(scope="module")
def plan(two_sockets: Facts) -> Plan:
    """Return the plan of an H200 node."""
    return plan_for(two_sockets, "h200x8", "node.name=left")


def text_of(plan: Plan, path: str) -> str:
    """Return the text of one rendered file."""
    return next(file.text for file in plan.files if file.path == path)


def directives(unit: str) -> dict[str, list[str]]:
    """Return the settings of a unit, by name."""
    found: dict[str, list[str]] = {}
    for line in unit.splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def test_these_files_make_an_installation(plan: Plan) -> None:
    """One unit for each service, the target, the node file, the scrape jobs, the user, its directories, and their list."""
    assert [file.path for file in plan.files] == [
        "/etc/dsv41/alertmanager/alertmanager.yml",
        "/etc/dsv41/files",
        "/etc/dsv41/grafana/boards/dsv41-main.json",
        "/etc/dsv41/grafana/boards/dsv41-node.json",
        "/etc/dsv41/grafana/boards/dsv41-slo.json",
        "/etc/dsv41/grafana/provisioning/dashboards/dsv41.yaml",
        "/etc/dsv41/grafana/provisioning/datasources/dsv41.yaml",
        "/etc/dsv41/node.toml",
        "/etc/dsv41/plan.json",
        "/etc/dsv41/prometheus/prometheus.yml",
        *(
            f"/etc/dsv41/prometheus/rules/{name}.yml"
            for name in ("engine", "handoff", "hardware", "memory", "platform", "recording", "serving", "users")
        ),
        f"{UNITS}/dsv41-canary.service",
        f"{UNITS}/dsv41-canary.timer",
        f"{UNITS}/dsv41-contract.service",
        f"{UNITS}/dsv41-contract.timer",
        f"{UNITS}/dsv41-decode.service",
        f"{UNITS}/dsv41-engines.slice",
        f"{UNITS}/dsv41-exporter.service",
        f"{UNITS}/dsv41-infra.slice",
        f"{UNITS}/dsv41-prefill.service",
        f"{UNITS}/dsv41-router.service",
        f"{UNITS}/dsv41.slice",
        f"{UNITS}/dsv41.target",
        "/etc/sysusers.d/dsv41.conf",
        "/etc/tmpfiles.d/dsv41.conf",
    ]
    assert {file.mode for file in plan.files} == {0o644}


def test_an_engine_unit_runs_the_role_on_its_node(plan: Plan) -> None:
    """Command, user, memory policy and limits are those of the plan."""
    unit = directives(text_of(plan, f"{UNITS}/dsv41-decode.service"))
    assert unit["ExecStart"] == ["/opt/dsv41/bin/python -m dsv41_serving --plan /etc/dsv41/plan.json run decode"]
    assert unit["User"] == ["dsv41"]
    assert unit["Type"] == ["notify"]
    assert (unit["NUMAPolicy"], unit["NUMAMask"], unit["CPUAffinity"]) == (["bind"], ["1"], ["numa"])
    assert unit["LimitMEMLOCK"] == ["infinity"]
    assert (unit["TimeoutStartSec"], unit["TimeoutStopSec"]) == (["900"], ["310"])
    assert unit["ReadWritePaths"] == ["/var/lib/dsv41 /var/cache/dsv41"]
    assert unit["LogExtraFields"] == ["DSV41_ROLE=decode DSV41_SERVICE=decode DSV41_RELEASE=r1"]
    assert unit["ExecStopPost"] == [
        "-/opt/dsv41/bin/python -m dsv41_serving --plan /etc/dsv41/plan.json incident --if-failed decode"
    ]


def test_engines_load_side_by_side_and_restart_as_a_pair(plan: Plan) -> None:
    """No engine waits for another; the router comes after both gates and leaves before either engine."""
    units = {
        name: directives(text_of(plan, f"{UNITS}/dsv41-{name}.service")) for name in ("prefill", "decode", "router")
    }
    assert not {"After", "Before", "Requires"} & (units["prefill"].keys() | units["decode"].keys())
    assert units["prefill"]["PartOf"] == ["dsv41.target dsv41-decode.service"]
    assert units["decode"]["PartOf"] == ["dsv41.target dsv41-prefill.service"]
    engines = "dsv41-prefill.service dsv41-decode.service"
    assert (units["router"]["Requires"], units["router"]["After"]) == ([engines], [f"network-online.target {engines}"])


def test_decode_has_the_time_to_outlive_its_writers(plan: Plan) -> None:
    """Its stop takes as long as prefill's drain and its own."""
    assert plan.stop_bound_s(plan.service("decode")) == 240.0
    assert plan.stop_bound_s(plan.service("prefill")) == 120.0
    assert [writer.name for writer in plan.writers(plan.service("decode"))] == ["prefill"]
    assert plan.writers(plan.service("prefill")) == ()


def test_replicas_restart_alone(two_sockets: Facts) -> None:
    """They share no memory."""
    plan = plan_for(two_sockets, "h200x8", "shape=replicas")
    unit = directives(text_of(plan, f"{UNITS}/dsv41-replica0.service"))
    assert unit["PartOf"] == ["dsv41.target"]
    assert unit["TimeoutStopSec"] == ["190"]


def test_stored_plan_is_the_plan_and_does_not_change_with_the_free_memory(two_sockets: Facts, tmp_path: Path) -> None:
    """What the units run is what was made; rendered again a moment later, the file is the same."""
    memory = two_sockets.memory.model_copy(update={"available_bytes": 1})
    plan = plan_for(two_sockets, "h200x8")
    later = plan_for(two_sockets.model_copy(update={"memory": memory}), "h200x8")
    assert text_of(plan, "/etc/dsv41/plan.json") == text_of(later, "/etc/dsv41/plan.json")
    write_files(plan, tmp_path)
    assert read_plan(tmp_path / "etc/dsv41/plan.json") == plan.model_copy(update={"files": (), "memory": ()})


@pytest.mark.parametrize(
    ("text", "problem"),
    [(None, "the stored plan cannot be read"), ("{}", "is not a plan of this release"), ("no", "is not a plan")],
)
def test_unusable_stored_plan_is_one_line(tmp_path: Path, text: str | None, problem: str) -> None:
    """With the command that writes it."""
    file = tmp_path / "plan.json"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=problem) as error:
        read_plan(file)
    assert str(error.value).startswith(f"{file}: ")
    assert "dsv41 render" in str(error.value)


def test_directories_in_a_home_are_refused(two_sockets: Facts) -> None:
    """The units cannot see them."""
    refuse_home(plan_for(two_sockets, "h200x8"))
    with pytest.raises(InputError, match=r"key node.cache_dir: '/root/cache': in a home directory"):
        refuse_home(plan_for(two_sockets, "h200x8", "node.cache_dir=/root/cache"))
    # The embedded profile for root has both there; one command mends both.
    with pytest.raises(InputError) as refused:
        refuse_home(plan_for(two_sockets, "h200x8", "node.state_dir=/root/a", "node.cache_dir=/root/b"))
    assert str(refused.value).startswith(
        "key node.state_dir and node.cache_dir: '/root/a' and '/root/b': in a home directory"
    )
    assert "dsv41 --set node.state_dir=/var/lib/dsv41 --set node.cache_dir=/var/cache/dsv41 ... render" in str(
        refused.value
    )


def test_secrets_arrive_as_credentials_and_only_then_the_router_is_open(two_sockets: Facts) -> None:
    """Without a key nobody off this machine can reach it, whatever it binds."""
    closed = directives(text_of(plan_for(two_sockets, "h200x8"), f"{UNITS}/dsv41-router.service"))
    assert "LoadCredential" not in closed
    assert (closed["IPAddressDeny"], closed["IPAddressAllow"]) == (["any"], ["localhost"])
    settings = ["router.api_key_file=/etc/dsv41/api-key", "router.tls_cert_file=/a.pem", "router.tls_key_file=/a.key"]
    opened = directives(text_of(plan_for(two_sockets, "h200x8", *settings), f"{UNITS}/dsv41-router.service"))
    assert opened["LoadCredential"] == ["api-key:/etc/dsv41/api-key", "tls-key:/a.key"]
    assert "IPAddressDeny" not in opened


def test_an_engine_over_both_sockets_is_bound_to_none(two_sockets: Facts) -> None:
    """A policy of one node would put half its memory far away."""
    unit = directives(text_of(plan_for(two_sockets, "h200x8", "shape=tp8"), f"{UNITS}/dsv41-whole.service"))
    assert not {"NUMAPolicy", "NUMAMask", "CPUAffinity"} & unit.keys()


def test_the_target_wants_every_service(plan: Plan) -> None:
    """Starting it starts everything; each unit is part of it, so stopping it stops everything."""
    target = directives(text_of(plan, f"{UNITS}/dsv41.target"))
    assert target["Wants"][0] == (
        "dsv41-prefill.service dsv41-decode.service dsv41-router.service "
        "dsv41-exporter.service dsv41-canary.timer dsv41-contract.timer"
    )


def test_no_directive_is_empty_and_no_placeholder_is_left(two_sockets: Facts) -> None:
    """An empty ordering directive would reset the list; two settings are empty because that is their meaning."""
    for profile in profile_names():
        for shape in load_spec(profile=profile).spec.shapes:
            plan = plan_for(turn_into(two_sockets, profile), profile, f"shape={shape}")
            for file in plan.files:
                if "/grafana/boards/" in file.path:
                    continue  # boards are made of Grafana's variables
                # Prometheus has placeholders of its own, one in its configuration and $labels and $value in rules.
                left = re.sub(r"sglang:\$1|\$labels\.\w+|\$value", "", file.text)
                assert "$" not in left
                assert "@{" not in left
                empty = {name for name, values in directives(file.text).items() if "" in values}
                if file.path.endswith((".service", ".target")):
                    assert empty <= {"CapabilityBoundingSet", "AmbientCapabilities"}


def test_engines_keep_the_spelling_of_sglang_whatever_prometheus_negotiates(plan: Plan) -> None:
    config = json.loads(text_of(plan, "/etc/dsv41/prometheus/prometheus.yml"))
    for job in config["scrape_configs"]:
        renamed = [
            re.sub(f"^{rule['regex']}$", rule["replacement"].replace("$1", r"\1"), "sglang_kv_used_tokens")
            for rule in job.get("metric_relabel_configs", [])
            if "replacement" in rule
        ]
        assert renamed == (["sglang:kv_used_tokens"] if "engine" in job["job_name"] else [])


def test_prometheus_scrapes_every_service(plan: Plan) -> None:
    """YAML takes JSON as it stands; labels say which node and role a sample is of."""
    config = json.loads(text_of(plan, "/etc/dsv41/prometheus/prometheus.yml"))
    jobs = [job for job in config["scrape_configs"] if job["job_name"].startswith("dsv41-")]
    others = {
        job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"] if job not in jobs
    }
    assert others == {
        "exporter": ["127.0.0.1:9641"],
        "node": ["127.0.0.1:9100"],
        "prometheus": ["127.0.0.1:9090"],
        "alertmanager": ["127.0.0.1:9093"],
    }
    interval = config["global"]["scrape_interval"]
    assert [(job["job_name"], job["metrics_path"], interval) for job in jobs] == [
        ("dsv41-engine-prefill", "/metrics", "5s"),
        ("dsv41-engine-decode", "/metrics", "5s"),
        ("dsv41-router-router", "/metrics", "5s"),
        ("dsv41-nixl-prefill", "/metrics", "5s"),
        ("dsv41-nixl-decode", "/metrics", "5s"),
    ]
    assert [job["static_configs"] for job in jobs] == [
        [{"targets": [target], "labels": {"node": "left", "service": name, "role": name}}]
        for target, name in (
            ("127.0.0.1:30100", "prefill"),
            ("127.0.0.1:30200", "decode"),
            ("127.0.0.1:29000", "router"),
            ("127.0.0.1:30102", "prefill"),
            ("127.0.0.1:30202", "decode"),
        )
    ]


@pytest.mark.parametrize("profile", profile_names())
def test_the_node_file_is_the_whole_description(two_sockets: Facts, tmp_path: Path, profile: str) -> None:
    """Read back it gives the same description, and the same files again: a node never differs from itself."""
    loaded = load_spec(profile=profile, overrides=["node.name=left", "router.port=31000", "engine.args.log-level=warn"])
    plan = make_plan(loaded, turn_into(two_sockets, profile), INSTALLATION)
    installed = tmp_path / "node.toml"
    installed.write_text(text_of(plan, "/etc/dsv41/node.toml"), encoding="utf-8")
    again = load_spec(installed)
    assert again.spec == loaded.spec
    assert make_plan(again, turn_into(two_sockets, profile), INSTALLATION) == plan


def test_the_description_says_of_every_value_where_it_is_from(tmp_path: Path) -> None:
    """As `config show` prints it; the comments do not change what is read."""
    loaded = load_spec(profile="h200x8", overrides=["router.port=31000"])
    lines = node_file_text(loaded).splitlines()
    assert "port = 31000  # --set" in lines
    assert "context_length = 524288  # profile h200x8" in lines
    assert "prometheus_port = 9090  # default" in lines
    shown = tmp_path / "shown.toml"
    shown.write_text("\n".join(lines), encoding="utf-8")
    assert load_spec(shown).spec == loaded.spec


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        (5, "5"),
        (0.5, "0.5"),
        ([1, 2], "[1, 2]"),
        (["a", "b"], '["a", "b"]'),
        ([], "[]"),
        ('a "b" \\ c\n#é', '"a \\"b\\" \\\\ c\\n#é"'),
    ],
)
def test_values_are_written_as_toml(value: object, text: str) -> None:
    """A boolean is no number, and text is escaped."""
    assert toml_value(value) == text


def test_files_are_written_once(plan: Plan, tmp_path: Path) -> None:
    """The second run finds nothing to do, and leaves no temporary file behind."""
    assert write_files(plan, tmp_path) == [locate(file, tmp_path) for file in plan.files]
    assert write_files(plan, tmp_path) == []
    assert diff_files(plan, tmp_path) == ""
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {file.path.lstrip("/") for file in plan.files}
    for file in plan.files:
        path = locate(file, tmp_path)
        assert path.read_text(encoding="utf-8") == file.text
        assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_difference_is_shown_and_mended(plan: Plan, tmp_path: Path) -> None:
    """From what is installed to what the plan says; one write mends that one file."""
    write_files(plan, tmp_path)
    unit = tmp_path / "etc/systemd/system/dsv41-decode.service"
    unit.write_text(unit.read_text().replace("NUMAMask=1", "NUMAMask=0"), encoding="utf-8")
    lines = diff_files(plan, tmp_path).splitlines()
    assert lines[:2] == [f"--- {unit}", f"+++ {UNITS}/dsv41-decode.service (plan)"]
    assert [line for line in lines if line.startswith(("-N", "+N"))] == ["-NUMAMask=0", "+NUMAMask=1"]
    assert write_files(plan, tmp_path) == [unit]
    assert diff_files(plan, tmp_path) == ""


def test_what_a_plan_no_longer_has_is_removed(plan: Plan, tmp_path: Path) -> None:
    """The unit of an engine that the new shape does not run; files of others stay."""
    write_files(plan, tmp_path)
    (tmp_path / "etc/systemd/system/other.service").write_text("[Unit]\n")
    decode = f"{UNITS}/dsv41-decode.service"
    files = [file for file in plan.files if file.path != decode]
    listed = next(file for file in files if file.path == FILE_LIST)
    files[files.index(listed)] = listed.model_copy(update={"text": listed.text.replace(f"{decode}\n", "")})
    smaller = plan.model_copy(update={"files": tuple(files)})
    assert f"--- {tmp_path}{decode}\n+++ /dev/null" in diff_files(smaller, tmp_path)
    assert write_files(smaller, tmp_path) == [tmp_path / decode[1:], tmp_path / "etc/dsv41/files"]
    assert not (tmp_path / decode[1:]).exists()
    assert (tmp_path / "etc/systemd/system/other.service").exists()
    assert differing(smaller, tmp_path) == []


def test_an_absent_file_differs_as_a_whole(plan: Plan, tmp_path: Path) -> None:
    """Before the first installation everything is new."""
    lines = diff_files(plan, tmp_path).splitlines()
    assert lines.count("--- /dev/null") == len(plan.files)
    assert sum(line.startswith("-") for line in lines) == len(plan.files)
    assert not (tmp_path / "etc").exists()


def test_a_place_that_cannot_be_written_or_read_is_one_line(plan: Plan, tmp_path: Path) -> None:
    """A file where a directory must be, a directory where a file must be."""
    (tmp_path / "etc").write_text("")
    with pytest.raises(InputError) as error:
        write_files(plan, tmp_path)
    where = tmp_path / "etc/dsv41/files"
    assert str(error.value).startswith(f"{where}: cannot be ")
    other = tmp_path / "other"
    (other / "etc/dsv41/node.toml").mkdir(parents=True)
    with pytest.raises(InputError) as error:
        diff_files(plan, other)
    assert "Is a directory" in str(error.value)
    assert str(error.value).endswith("make it readable for this user")
