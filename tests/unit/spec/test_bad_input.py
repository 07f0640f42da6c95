"""Every mistake of a node file is one line: file, key, value, remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dsv41_serving.errors import EXIT_BAD_INPUT, InputError
from dsv41_serving.spec import SpecError, load_spec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Write = Callable[[str], Path]

ADD = "is missing; add it; `dsv41 config explain KEY` says what it means"
NAME = "^[a-z0-9][a-z0-9-]*$"


def complain(path: Path | None, profile: str | None = None, overrides: tuple[str, ...] = ()) -> str:
    """Return the error that loading gives; it is bad input, and nothing else comes through."""
    with pytest.raises(InputError) as error:
        load_spec(path, profile=profile, overrides=overrides)
    assert error.value.exit_code == EXIT_BAD_INPUT == 2
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param(
            "[engine]\ncontext_lenght = 4096",
            "key engine.context_lenght: unknown key; did you mean 'context_length'?",
            id="unknown key",
        ),
        pytest.param("[enigne]\ndtype = 'auto'", "key enigne: unknown key; did you mean 'engine'?", id="unknown table"),
        pytest.param(
            "[engines.prefill]\nmem_fraction = 0.9",
            "key engines.prefill.mem_fraction: unknown key; did you mean 'memory_fraction'?",
            id="unknown key of an engine",
        ),
        pytest.param(
            "[memory]\nzzz = 1",
            (
                "key memory.zzz: unknown key; use one of: engram, engram_bytes, host_bytes_per_engine, shm_bytes, "
                "weights_bytes_per_gpu"
            ),
            id="unknown key that resembles none",
        ),
        pytest.param(
            "[monitoring]\nfirst_token_objective_s = 3.0",
            (
                "key monitoring.first_token_objective_s: 3.0 is no bound of the engine's histogram; use one of: 0.1, 0.2, 0.4, "
                "0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0"
            ),
            id="objective that no histogram can show",
        ),
        pytest.param(
            "[router]\nport = '30001'",
            'key router.port: value "30001" cannot be used; it should be a valid integer',
            id="text for a number",
        ),
        pytest.param(
            "[contract]\nthinking = 1",
            "key contract.thinking: value 1 cannot be used; it should be a valid boolean",
            id="number for a boolean",
        ),
        pytest.param(
            "[node]\nuser = 5",
            "key node.user: value 5 cannot be used; it should be a valid string",
            id="number for text",
        ),
        pytest.param("router = 5", "key router: value 5 cannot be used; it should be a table: [router]", id="no table"),
        pytest.param(
            "[router.port]\nx = 1",
            'key router.port: value {"x": 1} cannot be used; it should be a valid integer',
            id="table for a number",
        ),
        pytest.param(
            "[engines]\nprefill = 3",
            "key engines.prefill: value 3 cannot be used; it should be a table: [engines.prefill]",
            id="number for an engine",
        ),
        pytest.param(
            "[engine.env]\nA = 1", "key engine.env.A: value 1 cannot be used; it should be a valid string", id="env"
        ),
        pytest.param(
            "[engine]\ndevice = 'gpu'",
            "key engine.device: value \"gpu\" cannot be used; it should be 'cuda' or 'cpu'",
            id="none of the choices",
        ),
        pytest.param(
            "[router]\nport = 80",
            "key router.port: value 80 cannot be used; it should be greater than or equal to 1024",
            id="privileged port",
        ),
        pytest.param(
            "[engines.decode]\nport = 65534",
            "key engines.decode.port: value 65534 cannot be used; it should be less than or equal to 65533",
            id="engine port without two ports after it",
        ),
        pytest.param(
            "[engines.decode]\nmemory_fraction = 1.0",
            "key engines.decode.memory_fraction: value 1.0 cannot be used; it should be less than 1",
            id="all the memory",
        ),
        pytest.param(
            "[engine]\nstart_timeout_s = inf",
            "key engine.start_timeout_s: value Infinity cannot be used; it should be a finite number",
            id="endless wait",
        ),
        pytest.param(
            "[node]\nname = 'A B'",
            f"key node.name: value \"A B\" cannot be used; it should match pattern '{NAME}'",
            id="no name",
        ),
        pytest.param(
            "[engines.prefill]\ngpus = [0, 1, 2, 2]",
            "key engines.prefill.gpus: GPU 2 is listed twice in [0, 1, 2, 2]; list every GPU once",
            id="GPU twice",
        ),
        pytest.param(
            "[engines.prefill]\ngpus = [0, 1]",
            "key engines.prefill.gpus: [0, 1] has 2 entries but tp is 4; make them equal",
            id="too few GPUs",
        ),
        pytest.param(
            "[engines.prefill]\ngpus = 'all'",
            "key engines.prefill.gpus: value \"all\" cannot be used; it should be a valid list or 'auto'",
            id="gpus is a word",
        ),
        pytest.param(
            "[engines.prefill]\ngpus = ['0', '1', '2', '3']",
            'key engines.prefill.gpus: value "0" cannot be used; it should be a valid integer',
            id="gpus is a list of words",
        ),
        pytest.param(
            "[engines.prefill]\nep = 3",
            "key engines.prefill.ep: ep 3 does not divide tp 4; set it to a divisor of tp, such as 1",
            id="ep does not divide tp",
        ),
        pytest.param(
            "[engines.prefill]\nhost = '0.0.0.0'",
            "key engines.prefill.host: engines listen on loopback only, not on '0.0.0.0'; "
            "remove it: clients use the router, other hosts [hosts]",
            id="engine on the network",
        ),
        pytest.param(
            "[engines.decode]\nbootstrap_port = 8999",
            "key engines.decode.bootstrap_port: only a prefill engine has one; "
            "remove it (decode derives it from its prefill)",
            id="bootstrap port of decode",
        ),
        pytest.param(
            "[engines.third]\nrole = 'prefill'\ntp = 4\nport = 30300\nmax_running_requests = 1",
            "key engines.third.bootstrap_port: a prefill engine needs it; set it, for example 8998",
            id="prefill without bootstrap port",
        ),
        pytest.param(
            "[engines.third]\nrole = 'aggregated'\ntp = 4\nport = 30300",
            f"key engines.third.max_running_requests: {ADD}",
            id="missing",
        ),
        pytest.param(
            "[engines.'a b']\nrole = 'aggregated'\ntp = 4\nport = 30300\nmax_running_requests = 1",
            f"key engines.a b: value \"a b\" cannot be used; it should match pattern '{NAME}'",
            id="engine name that is no file name",
        ),
        pytest.param(
            "[engines.router]\nrole = 'aggregated'\ntp = 4\nport = 30300\nmax_running_requests = 1",
            "key engines.router: the router has this name; give the engine another",
            id="engine called router",
        ),
        pytest.param(
            "[router]\nhost = '0.0.0.0'",
            "key router.host: '0.0.0.0' is not loopback, so callers need a key; set router.api_key_file, or keep 127.0.0.1",
            id="open router",
        ),
        pytest.param(
            "[router]\nhost = 'localhost'",
            "key router.host: 'localhost' is not an IP address; write 127.0.0.1, for example",
            id="router on a name",
        ),
        pytest.param(
            "[router]\ntls_cert_file = '/etc/dsv41/tls.pem'",
            "key router.tls_cert_file: tls_key_file is missing beside it; set both, or neither for plain HTTP",
            id="certificate without its key",
        ),
        pytest.param(
            "[router]\napi_key_file = 'keys/router'",
            'key router.api_key_file: value "keys/router" cannot be used; it should match pattern '
            "'^([/~][^\\s:%\\\\]*)?$'",
            id="relative key file",
        ),
        pytest.param(
            "shape = 'pdd'", "key shape: there is no shape 'pdd'; use one of: pd, replicas, tp8", id="unknown shape"
        ),
        pytest.param(
            "[shapes]\npd = ['prefill', 'decod']",
            "key shapes.pd: names engine 'decod', which is not under [engines]; add it or remove the name",
            id="shape of an absent engine",
        ),
        pytest.param("[shapes]\npd = []", "key shapes.pd: is empty; name at least one engine", id="empty shape"),
        pytest.param(
            "[shapes]\npd = ['prefill', 'whole']",
            "key shapes.pd: ['prefill', 'whole'] mixes aggregated engines with prefill or decode; use one kind",
            id="mixed shape",
        ),
        pytest.param(
            "[shapes]\npd = ['prefill']",
            "key shapes.pd: ['prefill'] lacks a prefill or a decode engine; name at least one of each",
            id="half a pair",
        ),
        pytest.param(
            "[provenance]\nstatus = 'measured'",
            "key provenance.result: status 'measured' needs a result; name the committed file with the measurement",
            id="measured without a measurement",
        ),
        pytest.param(
            "[contract]\nmax_tokens = 2000\nmax_tokens_limit = 1000",
            "key contract.max_tokens: 2000 is above max_tokens_limit 1000; lower it",
            id="default answer longer than the longest",
        ),
        pytest.param(
            "[contract]\naliases = ['deepseek-v4.1-flash']",
            "key contract.aliases: 'deepseek-v4.1-flash' is served_model_name; remove it here",
            id="alias of itself",
        ),
        pytest.param(
            "[contract]\ntemperature = 3.0",
            (
                "key contract.temperature: value 3.0 cannot be used; "
                "it should be less than or equal to 2 or 'checkpoint'"
            ),
            id="hot",
        ),
        pytest.param(
            "[engine.args]\nlog-level = [1, 'a']",
            'key engine.args.log-level: value [1, "a"] cannot be used; '
            "it should be a valid boolean or a valid integer or a valid number or a valid string",
            id="mixed list for a flag",
        ),
    ],
)
def test_a_mistake_is_one_line(write_node: Write, text: str, line: str) -> None:
    """The file is the one the operator wrote, never the profile underneath."""
    path = write_node(f'profile = "h200x8"\n{text}\n')
    assert complain(path) == f"{path}, {line}"


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            ("engine.warm_up_tokens=[64,131072]",),
            (
                "--set, key engine.warm_up_tokens: 131072 tokens and an answer do not fit into the 131072 of engine.context_length; "
                "leave the longest out"
            ),
        ),
        (
            ("engine.warm_up_tokens=[512]", "engines.decode.max_total_tokens=512"),
            (
                "--set, key engine.warm_up_tokens: 512 tokens and an answer do not fit into the 512 of engines.decode.max_total_tokens; "
                "leave the longest out"
            ),
        ),
        (
            ("engines.prefill.max_total_tokens=20100",),  # whole pages of 256: 19,968
            "profile h200x2-rank, key engine.warm_up_tokens: 20000 tokens and an answer do not fit into the 19968 of engines.prefill.max_total_tokens;",
        ),
        (("engine.warm_up_tokens=[0]",), "--set, key engine.warm_up_tokens.0: value 0 cannot be used; it should be"),
    ],
)
def test_a_prompt_that_warms_up_must_fit(write_node: Write, overrides: tuple[str, ...], line: str) -> None:
    assert complain(write_node('profile = "h200x2-rank"\n'), overrides=overrides).startswith(line)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (("router.port=abc",), '--set, key router.port: value "abc" cannot be used; it should be a valid integer'),
        (("router",), "--set: 'router' is not KEY=VALUE; write, for example, router.port=30001"),
        (("=5",), "--set: '=5' is not KEY=VALUE; write, for example, router.port=30001"),
        (("rooter.port=5",), "--set, key rooter: unknown key; did you mean 'router'?"),
        (("router.port.x=5",), '--set, key router.port: value {"x": 5} cannot be used; it should be a valid integer'),
        (
            ("engines.prefill.gpus=[0,1",),
            "--set, key engines.prefill.gpus: value \"[0,1\" cannot be used; it should be a valid list or 'auto'",
        ),
        (("profile=h100",), "--set, key profile: there is no profile 'h100'; did you mean 'h200x8'?"),
        (
            ("profile=5",),
            "--set, key profile: value 5 cannot be used; name one of: b200x8, embedded, gb300x4, h200x2-rank, h200x8, rtxpro6000x8",
        ),
    ],
)
def test_the_command_line_is_a_file_like_any_other(write_node: Write, overrides: tuple[str, ...], line: str) -> None:
    """It is named as --set."""
    assert complain(write_node('profile = "h200x8"\n'), overrides=overrides) == line


def test_the_layer_that_erred_is_named(write_node: Write) -> None:
    """A mistake of the node file is not put on the command line that came after it, nor the other way round."""
    path = write_node('profile = "embedded"\nshape = "pdd"\n[engines.prefill]\ntp = 9\n')
    assert complain(path, overrides=("engines.prefill.max_running_requests=0",)).splitlines() == [
        f"{path}, key engines.prefill.tp: value 9 cannot be used; it should be less than or equal to 8",
        (
            "--set, key engines.prefill.max_running_requests: value 0 cannot be used; "
            "it should be greater than or equal to 1"
        ),
    ]
    path = write_node('profile = "embedded"\nshape = "pdd"\n')
    line = f"{path}, key shape: there is no shape 'pdd'; use one of: pd, single"
    assert complain(path, overrides=("node.name=box",)) == line


def test_all_mistakes_are_said_at_once(write_node: Write) -> None:
    """One line each, so that a file is mended in one go."""
    path = write_node(
        'profile = "embedded"\nshap = "pd"\n[router]\nport = 1\nhots = "x"\n[engines.prefill]\ntp = "a"\n'
    )
    with pytest.raises(SpecError) as error:
        load_spec(path)
    lines = str(error.value).splitlines()
    assert sorted(lines) == sorted(
        [
            f'{path}, key engines.prefill.tp: value "a" cannot be used; it should be a valid integer',
            f"{path}, key router.port: value 1 cannot be used; it should be greater than or equal to 1024",
            f"{path}, key router.hots: unknown key; did you mean 'host'?",
            f"{path}, key shap: unknown key; did you mean 'shape'?",
        ]
    )
    assert [str(problem) for problem in error.value.problems] == lines


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("h200", "did you mean 'h200x8'?"),
        ("zzz", "use one of: b200x8, embedded, gb300x4, h200x2-rank, h200x8, rtxpro6000x8"),
        ("../h200x8", "did you mean 'h200x8'?"),
    ],
)
def test_an_unknown_profile(write_node: Write, name: str, remedy: str) -> None:
    """Named in the file or on the command line; a path is no name."""
    path = write_node(f'profile = "{name}"\n')
    assert complain(path) == f"{path}, key profile: there is no profile '{name}'; {remedy}"
    assert complain(None, name) == f"--profile, key profile: there is no profile '{name}'; {remedy}"


def test_no_profile_at_all(write_node: Write) -> None:
    """The names to choose from are said."""
    line = "no profile is named; name one of: b200x8, embedded, gb300x4, h200x2-rank, h200x8, rtxpro6000x8"
    path = write_node("[router]\nport = 31000\n")
    assert complain(path) == f"{path}, key profile: {line}"
    assert complain(None) == f"--profile: {line}"


def test_an_engine_that_is_nearly_one_of_a_shape(write_node: Write) -> None:
    """Said once, as the engine it was meant for, not as three keys that it lacks."""
    path = write_node('profile = "embedded"\n[engines.prefil]\nport = 31000\n')
    assert complain(path) == f"{path}, key engines.prefil: no shape runs this engine; did you mean 'prefill'?"


def test_an_engine_that_a_shape_names_lacks_keys(write_node: Write) -> None:
    path = write_node(
        'profile = "embedded"\n[engines.second]\nport = 31000\nrole = "decode"\ntp = 1\n[shapes]\ntwo = ["prefill", "second"]\n'
    )
    assert complain(path).startswith(f"{path}, key engines.second.max_running_requests: is missing; add it")


def test_no_toml(write_node: Write) -> None:
    """The line and column of the mistake are in the message."""
    path = write_node("profile = = 1\n")
    assert complain(path) == f"{path}: is not TOML: Invalid value (at line 1, column 11); correct that line"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """Absent, a directory, or no text."""
    absent = tmp_path / "absent.toml"
    assert complain(absent) == f"{absent}: no such file; name another with --node, or use --profile NAME without a file"
    assert complain(tmp_path) == f"{tmp_path}: cannot be read (Is a directory); name a file this user may read"
    binary = tmp_path / "node.toml"
    binary.write_bytes(b"\xff\xfe")
    assert complain(binary) == f"{binary}: is not UTF-8 (invalid start byte); save it as UTF-8"
