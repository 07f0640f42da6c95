"""SGLang servers in the background, on GPUs of their own: one that does both phases, or a prefill and decode pair."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from dsv41_kernels.serve import weights

if TYPE_CHECKING:
    import http.client

_FAILED = ("Received sigquit", "Scheduler hit an exception", "Application startup failed", "dsv41_kernels: ")
_OPTIONS = (
    *("--load-format", "dummy"),
    "--trust-remote-code",
    "--skip-tokenizer-init",
    "--skip-server-warmup",
    "--enable-metrics",
    *("--host", "127.0.0.1"),
    *("--mem-fraction-static", "0.5"),
    *("--max-running-requests", "64"),
    *("--chunked-prefill-size", "4096"),
    *("--cuda-graph-bs-decode", "1", "2", "8"),
    *("--random-seed", "42"),
    # The runners for MXFP4 experts compile for minutes at first start on sm_90.
    *("--moe-runner-backend", "triton"),
)
_ENVIRONMENT = {
    "SGLANG_DSV4_FP4_EXPERTS": "0",
    "SGLANG_JIT_DEEPGEMM_PRECOMPILE": "0",
    "SGLANG_PLUGINS": "dsv41_kernels,dsv41_synthetic",
    "DSV41_KERNELS_SHADOW_EVERY": "3",
    "HF_HUB_OFFLINE": "1",
}
_TIMEOUT_S = 600


class ServerError(Exception):
    """The server did not start or did not answer. The message names its log."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """A name, what `DSV41_KERNELS` says under it, and server arguments and gains of the weights that only it gets."""

    name: str
    kernels: str
    arguments: tuple[str, ...] = ()
    gains: str = ""


@dataclasses.dataclass
class Server:
    """A launched server. `url` answers after `wait`."""

    variant: Variant
    url: str
    log: pathlib.Path
    process: subprocess.Popen[bytes]

    def wait(self, seconds: float) -> None:
        """Return when it answers. Raises ServerError when it ends first, fails, or takes longer."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            text = self.read_log()
            failed = next((mark for mark in _FAILED if mark in text), None)
            if self.process.poll() is not None or failed:
                raise ServerError(f"{self.log.stem} ended while starting ({failed}); see {self.log}")
            if "ready to roll" in text:
                return
            time.sleep(1)
        raise ServerError(f"{self.log.stem} is not ready after {seconds:.0f} s; see {self.log}")

    def read_log(self) -> str:
        """All that it has printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def table(self) -> list[str]:
        """The plug-in's start-up table."""
        return [line for line in self.read_log().splitlines() if line.startswith("dsv41_kernels ")]

    def open(self, path: str, body: dict[str, Any]) -> http.client.HTTPResponse:
        """Send one JSON request and return the answer, unread. Raises ServerError with the server's own words."""
        request = urllib.request.Request(  # noqa: S310  (the scheme is ours)
            self.url + path, data=json.dumps(body).encode(), headers={"content-type": "application/json"}
        )
        try:
            answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT_S)  # noqa: S310
        except urllib.error.HTTPError as error:
            raise ServerError(f"{self.log.stem} {path}: {error.code} {error.read()[:300]!r}") from error
        return answer

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The whole answer of one JSON request."""
        with self.open(path, body) as answer:
            text = answer.read()
        return json.loads(text) if text.startswith((b"{", b"[")) else text.decode()

    def flush(self) -> None:
        """Empty the prefix cache, so that no prompt is found in it."""
        self.post("/flush_cache", {})

    def metrics(self, prefix: str) -> dict[str, float]:
        """Samples of `/metrics` whose names begin with `prefix`, by name and labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:  # noqa: S310
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, value in (x.rsplit(" ", 1) for x in lines if x.startswith(prefix))}

    def stop(self) -> None:
        """End the server's whole process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclasses.dataclass
class Pair(Server):
    """A decode server with the prefill server that hands over to it; requests are sent to both, as a router does."""

    prefill: Server
    bootstrap_port: int

    def wait(self, seconds: float) -> None:  # noqa: D102
        self.prefill.wait(seconds)
        super().wait(seconds)

    def open(self, path: str, body: dict[str, Any]) -> http.client.HTTPResponse:  # noqa: D102
        if path != "/generate":
            return super().open(path, body)
        batch = isinstance(body["input_ids"][0], list)
        rooms = [random.getrandbits(62) for _ in (body["input_ids"] if batch else [0])]
        count = len(rooms)
        meeting: dict[str, Any] = {
            "bootstrap_host": ["127.0.0.1"] * count if batch else "127.0.0.1",
            "bootstrap_port": [self.bootstrap_port] * count if batch else self.bootstrap_port,
            "bootstrap_room": rooms if batch else rooms[0],
        }
        threading.Thread(target=self.prefill.post, args=(path, body | meeting), daemon=True).start()
        return super().open(path, body | meeting)

    def flush(self) -> None:  # noqa: D102
        self.prefill.flush()
        super().flush()

    def stop(self) -> None:  # noqa: D102
        self.prefill.stop()
        super().stop()


@dataclasses.dataclass(frozen=True)
class Launcher:
    """What all servers of one run share."""

    model: pathlib.Path
    logs: pathlib.Path
    seed: int
    gains: str = ""

    def launch(self, variant: Variant, gpus: str, port: int) -> Server:
        """Start a variant and return at once.

        `gpus` is `0` or `0+1` for one server of that many ranks, `0/1` for a prefill and a decode server. `port` and the
        99 after it are the variant's.
        """
        if "/" not in gpus:
            return self._start(variant, gpus, port, "server")
        bootstrap_port = port + 50
        roles = {}
        for offset, (role, part) in enumerate(zip(("prefill", "decode"), gpus.split("/"), strict=True)):
            split = ["--disaggregation-mode", role, "--disaggregation-transfer-backend", "nixl"]
            split += ["--disaggregation-bootstrap-port", str(bootstrap_port)]
            roles[role] = self._start(variant, part, port + 10 * offset, role, *split)
        decode = roles["decode"]
        return Pair(variant, decode.url, decode.log, decode.process, roles["prefill"], bootstrap_port)

    def _start(self, variant: Variant, gpus: str, port: int, role: str, *more: str) -> Server:
        log = self.logs / f"{variant.name}-{role}.log"
        environment = {
            **os.environ,
            **_ENVIRONMENT,
            weights.VARIABLE: str(self.seed),
            weights.GAINS_VARIABLE: ",".join(filter(None, (self.gains, variant.gains))),
            "DSV41_KERNELS": variant.kernels,
            "CUDA_VISIBLE_DEVICES": gpus.replace("+", ","),
            "PATH": f"{pathlib.Path(sys.executable).parent}:/usr/local/cuda/bin:{os.environ['PATH']}",
        }
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(self.model), "--port", str(port)]
        command += [*_OPTIONS, "--tp", str(1 + gpus.count("+")), *variant.arguments, *more]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
        return Server(variant, f"http://127.0.0.1:{port}", log, process)
