"""The real router with a key and a certificate: who gets in, where the key can be seen, and how it is changed."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from dsv41_serving.run.session import session_members
from tests.engine.stack import MODEL, PORTS, StackUnderTest, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY, NEXT_KEY = "first-key-6f1c", "second-key-90ab"
URL = f"https://127.0.0.1:{PORTS['router.port']}"
QUESTION = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackUnderTest]:
    """A stack whose router listens on every address, with a key and TLS."""
    secrets = tmp_path_factory.mktemp("secrets")
    (secrets / "key").write_text(f"{KEY}\n")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", f"{secrets}/tls.key", "-out", f"{secrets}/tls.pem", "-days", "2"]
    subprocess.run([*command, "-subj", "/CN=node.example"], check=True, capture_output=True)
    overrides = {
        "router.host": "'0.0.0.0'",
        "router.api_key_file": f"'{secrets}/key'",
        "router.tls_cert_file": f"'{secrets}/tls.pem'",
        "router.tls_key_file": f"'{secrets}/tls.key'",
    }
    stack = StackUnderTest(secrets / "state", [f"{key}={value}" for key, value in overrides.items()])
    stack.up()
    yield stack
    stack.down()


def ask(stack: StackUnderTest, key: str | None) -> int:
    """Return the status of one chat request with `key`."""
    context = ssl.create_default_context(cafile=str(stack.state_dir.parent / "tls.pem"))
    context.check_hostname = False
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx.post(
        f"{URL}/v1/chat/completions", json=QUESTION, headers=headers, verify=context, timeout=120
    ).status_code


def test_no_key_and_a_wrong_key_are_401_and_the_key_is_200(guarded: StackUnderTest) -> None:
    assert [ask(guarded, None), ask(guarded, "wrong"), ask(guarded, KEY)] == [401, 401, 200]


@pytest.mark.usefixtures("guarded")
def test_workers_cannot_be_added_without_the_key() -> None:
    answer = httpx.post(f"{URL}/workers", json={"url": "http://127.0.0.1:1"}, verify=False, timeout=120)  # noqa: S501 the status counts
    assert answer.status_code == 401


def test_gate_and_contract_check_use_the_key(guarded: StackUnderTest) -> None:
    gate = guarded.run("gate", "router")
    assert gate.returncode == 0, gate.stdout
    contract = guarded.run("contract", "check", "model-answers")
    assert contract.returncode == 0, contract.stdout + contract.stderr


def test_key_stands_in_no_command_line_environment_or_log(guarded: StackUnderTest) -> None:
    """Of no process of the stack, its supervisor included."""
    places: list[Path] = sorted(guarded.state_dir.rglob("*.log")) + sorted(guarded.state_dir.rglob("*.json"))
    sessions = [guarded.record(name).pid for name in ("prefill", "decode", "router")]
    pids = [pid for session in sessions if session for pid in session_members(session)] + [guarded.stack_pid()]
    places += [Path(f"/proc/{pid}/{file}") for pid in pids for file in ("cmdline", "environ")]
    assert len(places) > 12
    assert [str(place) for place in places if KEY.encode() in place.read_bytes()] == []


def test_changed_key_holds_after_a_restart_of_the_router_alone(guarded: StackUnderTest) -> None:
    """sglang-router reads its key once: the file may change at any time, the engines stay up."""
    (guarded.state_dir.parent / "key").write_text(f"{NEXT_KEY}\n")
    assert [ask(guarded, KEY), ask(guarded, NEXT_KEY)] == [200, 401]
    engine = guarded.record("prefill").pid
    restarts = guarded.record("router").restarts
    guarded.kill("router")
    wait_until(
        lambda: guarded.record("router").restarts > restarts and guarded.record("router").state == "ready", 120, "ready"
    )
    assert [ask(guarded, KEY), ask(guarded, NEXT_KEY)] == [401, 200]
    assert guarded.record("prefill").pid == engine
