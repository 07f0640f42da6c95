"""The command line: what each verb prints, one line for every expected error, and the exit code that says which kind."""

from __future__ import annotations

import json
import os
import re
import runpy
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dsv41_serving import cli
from dsv41_serving.cli import context, output
from dsv41_serving.errors import GateError
from dsv41_serving.facts import Facts
from dsv41_serving.plan import Plan
from dsv41_serving.run.record import Records, ServiceRecord, StackRecord, own_start_ticks
from dsv41_serving.spec import json_schema, load_spec, profile_names
from tests.fixtures.machines.build import build_machine

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Result:
    """What one command left."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines on standard output, blanks and table rules apart."""
        return [" ".join(re.sub(r"[│┃]", " ", line).split()) for line in self.out.splitlines()]

    @property
    def json(self) -> Any:
        """Standard output as JSON; nothing else may be on it."""
        return json.loads(self.out)


@pytest.fixture
def dsv41(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Result]:
    """Run the command line in this process, in an empty directory and without an installed node file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(context, "DEFAULT_NODE_FILES", (Path("node.toml"), tmp_path / "etc" / "node.toml"))
    monkeypatch.setattr(output.out, "width", 160)

    def run(*arguments: str | Path) -> Result:
        monkeypatch.setattr(sys, "argv", ["dsv41", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
        captured = capsys.readouterr()
        return Result(int(exit_info.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def box(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root of the machine that is as a deployment wants it."""
    return build_machine("two-socket-8gpu", tmp_path_factory.mktemp("machines"))


def test_config_show_prints_every_value_with_its_origin(dsv41: Callable[..., Result]) -> None:
    """As a node file, and as JSON for programs."""
    result = dsv41("--profile", "h200x8", "--set", "router.port=31000", "config", "show")
    assert (result.code, result.err) == (0, "")
    assert "port = 31000  # --set" in result.out.splitlines()
    shown = dsv41("--profile", "h200x8", "--set", "router.port=31000", "config", "show", "--json")
    assert shown.code == 0
    assert shown.json["spec"]["router"]["port"] == 31000
    assert shown.json["origins"]["router.port"] == "--set"
    assert shown.json["spec"] == json.loads(
        json.dumps(load_spec(profile="h200x8", overrides=["router.port=31000"]).spec.model_dump())
    )


def test_config_check_says_what_is_fine(dsv41: Callable[..., Result]) -> None:
    """Profile, shape, and whether anybody measured it."""
    result = dsv41("--profile", "b200x8", "config", "check")
    assert (result.code, result.err) == (0, "")
    assert re.fullmatch(r"ok: profile b200x8, shape pd, \d+ values \(unmeasured\)\n", result.out)


def test_config_check_says_every_mistake(dsv41: Callable[..., Result], tmp_path: Path) -> None:
    """One line each on standard error, nothing on standard output."""
    node = tmp_path / "node.toml"
    node.write_text('profile = "h200x8"\n[router]\nport = 80\n[engine]\ndevise = "cuda"\n')
    result = dsv41("--node", node, "config", "check")
    assert (result.code, result.out) == (2, "")
    assert sorted(result.err.splitlines()) == [
        f"dsv41: {node}, key engine.devise: unknown key; did you mean 'device'?",
        f"dsv41: {node}, key router.port: value 80 cannot be used; it should be greater than or equal to 1024",
    ]


def test_config_schema_is_json(dsv41: Callable[..., Result]) -> None:
    """The schema of the models, without a node file."""
    result = dsv41("config", "schema")
    assert (result.code, result.json) == (0, json_schema())


def test_config_profiles_lists_what_ships(dsv41: Callable[..., Result]) -> None:
    """With shapes, GPU and status."""
    result = dsv41("config", "profiles")
    assert result.code == 0
    assert "h200x8 pd, replicas, tp8 9.0 unmeasured" in result.lines
    assert "embedded pd, single none (CPU) measured" in result.lines
    assert {line.split()[0] for line in result.lines[2:]} == set(profile_names())


def test_config_explain_explains_one_key(dsv41: Callable[..., Result]) -> None:
    """In words, and as JSON."""
    result = dsv41("--profile", "h200x8", "config", "explain", "engine.args.moe-a2a-backend")
    assert result.code == 0
    assert result.lines[0] == "key engine.args.moe-a2a-backend"
    assert "source seed 000, GB300 launch command" in result.lines
    explained = dsv41("--profile", "h200x8", "config", "explain", "router.port", "--json")
    assert (explained.code, explained.json["value"]) == (0, 30001)


def test_facts_are_those_of_the_machine(dsv41: Callable[..., Result], box: Path) -> None:
    """Below --root; the JSON reads back."""
    result = dsv41("--root", box, "facts")
    assert result.code == 0
    assert "NVIDIA H200" in result.out
    facts = Facts.model_validate_json(dsv41("--root", box, "facts", "--json").out)
    assert (facts.hostname, len(facts.gpus)) == ("two-socket", 8)


def test_plan_is_shown_and_printed(dsv41: Callable[..., Result], box: Path) -> None:
    """A table, the commands when asked for, JSON that reads back."""
    options = ("--root", box, "--profile", "h200x8")
    result = dsv41(*options, "plan")
    assert result.code == 0
    assert "decode decode 4-7 1 48-95,144-191 http 30200, rendezvous 30201, nixl 30202" in result.lines
    assert "sglang.launch_server" not in result.out
    commands = dsv41(*options, "plan", "--commands")
    assert f"{sys.executable} -m sglang.launch_server" in commands.out
    assert "CUDA_VISIBLE_DEVICES=4,5,6,7" in commands.out
    plan = Plan.model_validate_json(dsv41(*options, "plan", "--json").out)
    assert plan.service("decode").placement.gpus == (4, 5, 6, 7)


def test_a_plan_that_cannot_be_made_is_one_line(dsv41: Callable[..., Result], box: Path) -> None:
    """Exit code 2."""
    result = dsv41("--root", box, "--profile", "h200x8", "--set", "engine.args.chat-template='x'", "plan")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "dsv41: --set, key engine.args.chat-template: --chat-template is refused: "
        "it bypasses V4.1's own prompt encoder: tool calls and thinking break; remove it\n"
    )


def test_render_and_diff_agree(dsv41: Callable[..., Result], box: Path, tmp_path: Path) -> None:
    """Render writes once; diff is silent then, and exits 1 as soon as something differs."""
    target = tmp_path / "target"
    options = ("--root", box, "--profile", "h200x8")
    python = ("--python", "/opt/dsv41/bin/python")
    first = dsv41(*options, "render", "--root", target, *python)
    assert first.code == 0
    *written, last = first.out.splitlines()
    assert f"wrote {target}/etc/dsv41/node.toml" in written
    assert last == f"{len(written)} of {len(written)} files changed"
    assert dsv41(*options, "render", "--root", target, *python).out == f"0 of {len(written)} files changed\n"
    assert dsv41(*options, "diff", "--root", target, *python) == Result(0, "", "")
    changed = dsv41(*options, "--set", "router.port=31000", "diff", "--root", target, *python)
    assert changed.code == 1
    assert "-port = 30001" in changed.out.splitlines()
    assert "+port = 31000" in changed.out.splitlines()


def test_an_installed_node_does_not_differ_from_itself(dsv41: Callable[..., Result], box: Path, tmp_path: Path) -> None:
    """Read back from the node file that was installed."""
    options = ("--root", box, "--profile", "h200x8", "--set", "node.name=left", "--set", "engines.decode.tp=2")
    dsv41(*options, "render", "--root", tmp_path)
    assert dsv41("--root", box, "--node", tmp_path / "etc/dsv41/node.toml", "diff", "--root", tmp_path).code == 0


def test_without_a_node_file_it_says_what_to_do(dsv41: Callable[..., Result], tmp_path: Path) -> None:
    """With one in the working directory it is used, before the installed one."""
    result = dsv41("config", "check")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "dsv41: no node file (looked for ./node.toml and /etc/dsv41/node.toml); "
        "write one, name one with --node, or choose a profile: --profile embedded\n"
    )
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "node.toml").write_text('profile = "h200x8"\n')
    assert "profile h200x8" in dsv41("config", "check").out
    (tmp_path / "node.toml").write_text('profile = "embedded"\n')
    assert "profile embedded" in dsv41("config", "check").out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["serve"], "No such command 'serve'. See `dsv41 --help`."),
        (["plan", "--frob"], "No such option '--frob'. See `dsv41 plan --help`."),
        (["config", "explain"], "Missing argument 'KEY'. See `dsv41 config explain --help`."),
        (["render"], "Missing option '--root'. See `dsv41 render --help`."),
        (
            ["--root", "/no/such/machine", "facts"],
            "Invalid value for '--root': Directory '/no/such/machine' does not exist. See `dsv41 --help`.",
        ),
        (
            ["--profile", "h100", "plan"],
            "--profile, key profile: there is no profile 'h100'; did you mean 'h200x8'?",
        ),
        (
            ["--profile", "embedded", "run", "decoder"],
            "shape pd: this plan has no service 'decoder'; use one of: prefill, decode, router",
        ),
        (
            ["--profile", "embedded", "gate", "decoder"],
            "shape pd: this plan has no service 'decoder'; use one of: prefill, decode, router",
        ),
        *(
            (
                ["--profile", "embedded", *verb, option, "notaurl"],
                (
                    f"Invalid value for '{option}': 'notaurl' is no address: write it as http://HOST:PORT. "
                    f"See `dsv41 {' '.join(verb[:2])} --help`."
                ),
            )
            for verb, option in (
                (["dashboards", "push"], "--grafana"),
                (["dashboards", "check"], "--prometheus"),
                (["contract", "check"], "--url"),
                (["bench", "run", "single", "--out", "x.json"], "--url"),
                (["top"], "--prometheus"),
            )
        ),
        (
            ["--node", "absent.toml", "up"],
            "absent.toml: no such file; name another with --node, or use --profile NAME without a file",
        ),
    ],
)
def test_wrong_usage_is_one_line(dsv41: Callable[..., Result], arguments: list[str], line: str) -> None:
    """Exit code 2; nothing on standard output."""
    assert dsv41(*arguments) == Result(2, "", f"dsv41: {line}\n")


@pytest.mark.parametrize(
    "address", ["localhost:9090", "ftp://host", "http://", "http://host:port", "http://host:99999"]
)
def test_an_address_has_a_scheme_and_a_host(dsv41: Callable[..., Result], address: str) -> None:
    done = dsv41("--profile", "embedded", "top", "--once", "--prometheus", address)
    assert (done.code, done.out) == (2, "")
    assert f"'{address}' is no address" in done.err


@pytest.mark.parametrize(
    "verb",
    [
        ["bench", "run", "single", "--out", "x.json"],
        ["bench", "scaling", "--out", "x.json"],
        ["bench", "handoff", "--out", "x.json"],
        ["bench", "soak", "--out", "x.json"],
        ["metrics", "record", "--to", "pages"],
    ],
)
def test_what_measures_says_that_nothing_runs(dsv41: Callable[..., Result], tmp_path: Path, verb: list[str]) -> None:
    """Not that the tokenizer is missing, which a start makes, nor what the tasks of a load ended with."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]  # nothing answers there once it is closed
    quiet = ("--set", f"router.port={port}", "--set", f"node.state_dir={tmp_path / 'state'}")
    done = dsv41("--profile", "embedded", *quiet, *verb)
    line = f"http://127.0.0.1:{port}: nothing answers; start it with `dsv41 up`, or see `dsv41 status`"
    assert done == Result(2, "", f"dsv41: {line}\n")


def test_help_is_there_without_a_command(dsv41: Callable[..., Result]) -> None:
    """Every verb is listed."""
    listed = dsv41("--help")
    assert listed.code == 0
    for verb in ("config", "facts", "plan", "render", "diff", "run", "up", "down", "status", "gate"):
        assert re.search(rf"^  {verb} ", listed.out, re.MULTILINE)


def on(state: Path) -> tuple[str, ...]:
    """Return the options of an embedded node with its own state."""
    return ("--profile", "embedded", "--set", f"node.state_dir={state}")


def record(**changes: Any) -> ServiceRecord:
    """Return the record of a running prefill engine whose metrics nobody serves."""
    values: dict[str, Any] = {
        "name": "prefill",
        "kind": "prefill",
        "state": "ready",
        "phase": "ready",
        "pid": os.getpid(),
        "start_ticks": own_start_ticks(),
        "supervisor_pid": os.getpid(),
        "port": 1,
        "url": "http://127.0.0.1:1",
        "metrics_url": "http://127.0.0.1:1/metrics",
        "model": "m",
        "started_at": 0.0,
        "phase_at": 0.0,
    }
    return ServiceRecord(**{**values, **changes})


def test_status_of_nothing(dsv41: Callable[..., Result], tmp_path: Path) -> None:
    """Exit code 1: it does not serve."""
    assert dsv41(*on(tmp_path), "status") == Result(1, "nothing is running\n", "")
    empty = dsv41(*on(tmp_path), "status", "--json")
    assert (empty.code, empty.json) == (1, [])


def test_releases_are_listed_or_said_to_be_absent(dsv41: Callable[..., Result], tmp_path: Path) -> None:
    """An empty answer would leave open whether the right directory was asked."""
    release = ("release", "--directory", tmp_path)
    assert dsv41(*release, "list") == Result(0, f"no release is installed below {tmp_path}\n", "")
    assert dsv41(*release, "list", "--json").json == []
    for name in ("a", "b"):
        (tmp_path / "releases" / name).mkdir(parents=True)
        (tmp_path / "releases" / name / ".complete").touch()
    (tmp_path / "releases" / "b" / "failed").write_text("no gate\n")
    (tmp_path / "current").symlink_to("releases/a")
    assert dsv41(*release, "list") == Result(0, "* a\n  b  gave up: no gate\n", "")


def test_status_is_good_when_everything_is_ready(dsv41: Callable[..., Result], tmp_path: Path) -> None:
    """Exit code 0; one service that is not ready makes it 1 and is said."""
    records = Records(tmp_path)
    records.write_service(record())
    good = dsv41(*on(tmp_path), "status", "--json")
    assert good.code == 0
    assert [(row["service"], row["state"], row["pid"]) for row in good.json] == [("prefill", "ready", os.getpid())]
    records.write_service(record(name="decode", kind="decode", state="failed", phase="failed", problem="no memory"))
    records.write_stack(
        StackRecord(pid=1, start_ticks=1, state="failed", node="n", started_at=0.0, problem="giving up")
    )
    bad = dsv41(*on(tmp_path), "status")
    assert bad.code == 1
    assert bad.out.splitlines()[-2:] == ["stack failed: giving up", "decode: no memory"]


def test_a_gate_that_fails_exits_1(dsv41: Callable[..., Result], tmp_path: Path) -> None:
    """Nothing runs; the findings are printed either way."""
    result = dsv41(*on(tmp_path), "gate", "decode", "--json")
    assert result.code == 1
    assert result.json == [
        {
            "service": "decode",
            "check": "identity",
            "passed": False,
            "seen": "it was not started on this node",
            "remedy": "`dsv41 up`",
        }
    ]
    assert "FAIL" in dsv41(*on(tmp_path), "gate").out


def test_down_of_nothing_is_fine(dsv41: Callable[..., Result], tmp_path: Path) -> None:
    """It is what was asked for."""
    assert dsv41(*on(tmp_path), "down") == Result(0, "nothing is running\n", "")


def test_up_is_refused_before_anything_is_written(dsv41: Callable[..., Result], tmp_path: Path) -> None:
    """Too little memory: one line, exit code 2, nothing left behind."""
    state = tmp_path / "state"
    result = dsv41(*on(state), "--set", "memory.host_bytes_per_engine=900000000000000", "up", "--detach")
    assert (result.code, result.out) == (2, "")
    assert re.fullmatch(
        r"dsv41: profile embedded, table memory: host memory: 1676380\.6 GiB needed, [\d.]+ GiB available, "
        r"[\d.]+ GiB short; free memory, or choose a smaller shape\n",
        result.err,
    )
    assert not state.exists()


@pytest.mark.parametrize("key", ["node.state_dir", "node.cache_dir"])
def test_up_with_a_directory_that_cannot_be_used(
    dsv41: Callable[..., Result], box: Path, tmp_path: Path, key: str
) -> None:
    """One line, exit code 2, whatever listens on the machine that tests."""
    (tmp_path / "file").touch()
    result = dsv41("--root", box, *on(tmp_path / "state"), "--set", f"{key}={tmp_path / 'file' / 'below'}", "up")
    assert (result.code, result.out) == (2, "")
    assert re.fullmatch(r"dsv41: \S*/file/below/\S+: .*\(Not a directory\).*\n", result.err.replace(f", key {key}", ""))


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (GateError("not ready", where="decode", remedy="read its log"), 1, "dsv41: decode: not ready; read its log\n"),
        (KeyboardInterrupt(), 130, "\ndsv41: interrupted\n"),  # below the ^C of a terminal
    ],
)
def test_exit_codes_say_which_kind_of_error(
    dsv41: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, line: str
) -> None:
    """1: a check failed; 130: interrupted."""

    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(context, "read_facts", fail)
    assert dsv41("facts") == Result(code, "", line)


def test_a_detached_start_means_the_same_node(tmp_path: Path) -> None:
    """The global options are passed on; a relative file is made absolute."""
    options = context.Context(tmp_path / "node.toml", "embedded", ("a.b=1", "c=2"), Path("/"))
    assert options.arguments() == [
        "--node",
        str(tmp_path / "node.toml"),
        "--profile",
        "embedded",
        "--set",
        "a.b=1",
        "--set",
        "c=2",
    ]
    assert context.Context(None, None, (), Path("/")).arguments() == []


def test_the_console_script_and_the_module_are_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """`dsv41` and `python -m dsv41_serving`."""
    script = Path(sys.executable).with_name("dsv41")
    if script.exists():
        done = subprocess.run([str(script), "--version"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.split()[0]) == (0, "dsv41,")
    called: list[bool] = []
    monkeypatch.setattr(cli, "main", lambda: called.append(True))
    runpy.run_module("dsv41_serving", run_name="__main__", alter_sys=True)
    assert called == [True]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("metrics", "configure", "--to", "{file}/x"),
            "dsv41: {file}/x/prometheus: cannot be used (Not a directory); name a place this user may use",
        ),
        (
            ("contract", "check", "--junit", "{file}/x"),
            "dsv41: {file}/x: cannot be written (Not a directory); name another file",
        ),
        (
            ("--set", "router.port=1024", "contract", "check"),
            "dsv41: http://127.0.0.1:1024: nothing answers; start it with `dsv41 up`, or see `dsv41 status`",
        ),
        (
            ("--set", "node.state_dir=here", "status"),
            "dsv41: --set, key node.state_dir: 'here' is another directory to every shell; write it from / or ~ on",
        ),
    ],
)
def test_what_cannot_be_used_is_one_line(
    dsv41: Callable[..., Result], tmp_path: Path, arguments: tuple[str, ...], line: str
) -> None:
    """Bad input, before any work is done."""
    file = tmp_path / "file"
    file.touch()
    result = dsv41("--profile", "embedded", *(argument.format(file=file) for argument in arguments))
    assert (result.code, result.err.splitlines()) == (2, [line.format(file=file)])


def test_an_interrupt_says_what_it_does_not_end(capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C during a drain leaves the door shut."""
    with pytest.raises(KeyboardInterrupt), output.telling("the router stays closed"):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "dsv41: the router stays closed\n"
