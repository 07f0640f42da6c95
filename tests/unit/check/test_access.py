"""The node's own programs show the key to its router and to nobody else."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import httpx
import pytest

from dsv41_serving.check.access import Access, find_access, find_engine_access, open_client
from dsv41_serving.credential import find_credential, read_key
from dsv41_serving.errors import InputError
from dsv41_serving.facts import read_facts
from dsv41_serving.plan import Installation, Plan, make_plan
from dsv41_serving.spec import load_spec


def plan_with(key_file: Path, *overrides: str) -> Plan:
    spec = load_spec(profile="embedded", overrides=[f"router.api_key_file={key_file}", *overrides])
    return make_plan(spec, read_facts(), Installation(python="python"))


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "api-key"
    file.write_text("secret\n", encoding="utf-8")
    return file


def authorization_at(access: Access, url: str) -> str | None:
    """Return the Authorization header that a request to `url` carries."""
    seen: list[httpx.Request] = []

    def reply(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200)

    async def run() -> None:
        async with open_client(access, 5.0) as client:
            client._transport = httpx.MockTransport(reply)
            await client.get(url)

    asyncio.run(run())
    return seen[0].headers.get("authorization")


def test_key_goes_to_the_router_and_not_to_engines_or_strangers(key_file: Path) -> None:
    plan = plan_with(key_file)
    access = find_access(plan)
    assert authorization_at(access, f"{plan.router.url}/v1/models") == "Bearer secret"
    assert authorization_at(access, f"{plan.engines[0].url}/health") is None
    assert authorization_at(access, "http://elsewhere:30001/v1/models") is None


def test_key_goes_to_engines_off_loopback_too(key_file: Path) -> None:
    layout = [
        'node.name="a"', "engine.cross_host=true",
        'hosts.a.address="192.0.2.1"', 'hosts.a.services=["prefill","router"]',
        'hosts.b.address="192.0.2.2"', 'hosts.b.services=["decode"]',
    ]  # fmt: skip
    plan = plan_with(key_file, *layout)
    access = find_access(plan)
    assert [authorization_at(access, f"{worker.url}/contract") for worker in plan.workers] == ["Bearer secret"] * 2
    assert authorization_at(access, "http://192.0.2.3:30100/contract") is None
    (prefill,) = plan.engines
    assert authorization_at(find_engine_access(prefill), f"{prefill.url}/contract") == "Bearer secret"
    assert authorization_at(find_engine_access(prefill), "http://192.0.2.2:30200/contract") is None


def test_another_address_never_gets_the_key_of_the_plan(key_file: Path, tmp_path: Path) -> None:
    plan = plan_with(key_file)
    assert find_access(plan, "http://elsewhere:8000/v1") == Access("http://elsewhere:8000")
    (tmp_path / "other").write_text("other", encoding="utf-8")
    assert find_access(plan, "http://elsewhere:8000", tmp_path / "other").key == "other"
    assert find_access(plan, plan.router.url).key == "secret"


def test_key_of_another_file_goes_before_that_of_the_plan(key_file: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("other", encoding="utf-8")
    assert find_access(plan_with(key_file), key_file=tmp_path / "other").key == "other"


def test_router_without_a_key_needs_none() -> None:
    plan = make_plan(load_spec(profile="embedded"), read_facts(), Installation(python="python"))
    assert find_access(plan) == Access(plan.router.url)


def test_systemds_copy_of_a_secret_goes_before_the_original(
    key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert find_credential("tls-key", "/etc/dsv41/tls.key") == Path("/etc/dsv41/tls.key")
    (tmp_path / "tls-key").write_text("pem", encoding="utf-8")
    assert find_credential("tls-key", "/etc/dsv41/tls.key") == tmp_path / "tls-key"
    assert find_access(plan_with(Path("/nowhere/key"))).key == key_file.read_text().strip()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "holds no API key"),
        (b"first\nsecond\n", "holds more than one API key"),
        (b"two words", "holds more than one API key"),
        ("schlüssel".encode(), "a character a header cannot carry"),
        (b"\xff\xfe", r"cannot be read \(not text\)"),
        (None, r"cannot be read \(No such file"),
    ],
)
def test_bad_key_file_is_one_line_without_its_content(tmp_path: Path, content: bytes | None, problem: str) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=problem) as caught:
        read_key(file)
    line = str(caught.value)
    assert line.startswith(str(file))
    assert "\n" not in line
    assert "second" not in line


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with two self-signed certificates, own.pem and other.pem, in the name of another host."""
    directory = tmp_path_factory.mktemp("tls")
    for name in ("own", "other"):
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-keyout", f"{directory}/{name}.key", "-out", f"{directory}/{name}.pem", "-days", "2"]
        subprocess.run([*command, "-subj", "/CN=node.example"], check=True, capture_output=True)
    return directory


def get_over_tls(directory: Path, trusted: str) -> int:
    """Serve one request with own.pem on loopback; return the status a client gets that trusts `trusted`.pem."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "own.pem", directory / "own.key")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            try:
                with context.wrap_socket(connection, server_side=True) as stream:
                    stream.recv(4096)
                    stream.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
            except OSError:
                connection.close()  # the client refused the certificate

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"https://127.0.0.1:{server.getsockname()[1]}"

        async def ask() -> int:
            async with open_client(Access(url, certificate=str(directory / f"{trusted}.pem")), 5.0) as client:
                return (await client.get(url)).status_code

        try:
            return asyncio.run(ask())
        finally:
            thread.join()


def test_router_is_trusted_by_its_certificate_whatever_its_name(certificates: Path) -> None:
    assert get_over_tls(certificates, "own") == 204


def test_another_certificate_is_refused(certificates: Path) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        get_over_tls(certificates, "other")


def test_certificate_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.pem, key router\.tls_cert_file: cannot be used \(No such file"):
        open_client(Access("https://127.0.0.1:1", certificate=str(tmp_path / "absent.pem")), 5.0)
