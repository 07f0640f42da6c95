"""How this node's own programs call its router and engines: with its key, and trusting exactly its certificate."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from dsv41_serving.credential import API_KEY, find_credential, read_key
from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from dsv41_serving.plan.model import Plan, Service


@dataclass(frozen=True)
class Access:
    """The right to call the server at `origin`. Nothing of it is sent anywhere else, but to `workers`."""

    origin: str
    key: str = ""
    certificate: str = ""
    """File with the certificate that the server must present; empty: what the system trusts."""
    workers: tuple[str, ...] = ()
    """Origins of engines that ask for the same key: those off loopback."""


def find_access(plan: Plan | None, url: str | None = None, key_file: Path | None = None) -> Access:
    """Return the access to the router of `plan`, or to the server at `url`.

    The key is the one in `key_file`, else that of the plan; another server than the plan's router never gets the latter.
    Raises InputError when a key is configured and cannot be read.
    """
    router = plan.router if plan is not None and url in (None, plan.router.url, f"{plan.router.url}/v1") else None
    if router is None:
        origin = (url or "").rstrip("/").removesuffix("/v1")
        return Access(origin, read_key(key_file) if key_file else "")
    file = router.credentials.get(API_KEY)
    if key_file is None and file is not None:
        key_file = find_credential(API_KEY, file)
    workers = tuple(worker.url for worker in plan.workers if API_KEY in worker.credentials) if plan is not None else ()
    return Access(router.url, read_key(key_file) if key_file else "", router.tls_cert_file, workers)


def find_engine_access(engine: Service) -> Access:
    """Return the access to `engine` alone, for its own supervisor. Raises InputError when its key cannot be read."""
    file = engine.credentials.get(API_KEY)
    return Access(engine.url, read_key(find_credential(API_KEY, file)) if file else "")


def open_client(access: Access, timeout_s: float, *, max_connections: int = 100) -> httpx.AsyncClient:
    """Return a client that shows the key of `access` to its servers alone. Raises InputError for an unusable certificate."""
    return httpx.AsyncClient(
        timeout=timeout_s,
        auth=_Key(access) if access.key else None,
        verify=_trust(access.certificate) if access.certificate else True,
        limits=httpx.Limits(max_connections=max_connections),
    )


def open_calls(access: Access, timeout_s: float = 30.0) -> httpx.Client:
    """Return what `open_client` returns, for a program that does one thing after the other."""
    return httpx.Client(
        timeout=timeout_s,
        auth=_Key(access) if access.key else None,
        verify=_trust(access.certificate) if access.certificate else True,
    )


class _Key(httpx.Auth):
    def __init__(self, access: Access) -> None:
        self._origins = {_origin(httpx.URL(url)) for url in (access.origin, *access.workers)}
        self._value = f"Bearer {access.key}"

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        if _origin(request.url) in self._origins:
            request.headers["authorization"] = self._value
        yield request


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _trust(certificate: str) -> ssl.SSLContext:
    """Trust the server that presents `certificate`, under whatever name: a node calls itself by address, not by name."""
    try:
        context = ssl.create_default_context(cafile=certificate)
    except (OSError, ssl.SSLError) as error:
        raise InputError(
            f"cannot be used ({error.strerror or error})",
            where=f"{certificate}, key router.tls_cert_file",
            remedy="name a readable certificate chain in PEM",
        ) from None
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
