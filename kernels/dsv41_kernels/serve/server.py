"""One SGLang server in the background, on GPUs of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

from dsv41_kernels.serve import weights

_FAILED = ("Received sigquit", "Scheduler hit an exception", "Application startup failed", "dsv41_kernels: ")
_OPTIONS = (
    *("--load-format", "dummy"),
    "--trust-remote-code",
    "--skip-tokenizer-init",
    "--skip-server-warmup",
    *("--host", "127.0.0.1"),
    *("--mem-fraction-static", "0.5"),
    *("--max-running-requests", "64"),
    *("--chunked-prefill-size", "4096"),
    *("--cuda-graph-bs-decode", "1", "2", "8"),
    *("--random-seed", "42"),
    # The compiled expert kernels of the default take minutes; see kernels/dsv41_kernels/serve/compare.py.
    *("--moe-runner-backend", "triton"),
)
_ENVIRONMENT = {
    "SGLANG_DSV4_FP4_EXPERTS": "0",
    "SGLANG_JIT_DEEPGEMM_PRECOMPILE": "0",
    "SGLANG_PLUGINS": "dsv41_kernels,dsv41_synthetic",
    "HF_HUB_OFFLINE": "1",
}


class ServerError(Exception):
    """The server did not start or did not answer. The message names its log."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """A name and what `DSV41_KERNELS` says under it."""

    name: str
    kernels: str


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
            text = self.log.read_text(encoding="utf-8", errors="replace")
            failed = next((mark for mark in _FAILED if mark in text), None)
            if self.process.poll() is not None or failed:
                raise ServerError(f"{self.variant.name} ended while starting ({failed}); see {self.log}")
            if "ready to roll" in text:
                return
            time.sleep(1)
        raise ServerError(f"{self.variant.name} is not ready after {seconds:.0f} s; see {self.log}")

    def post(self, path: str, body: dict[str, Any], timeout: float = 600) -> Any:
        """Answer of one JSON request. Raises ServerError with the server's own words."""
        request = urllib.request.Request(  # noqa: S310  (the scheme is ours)
            self.url + path, data=json.dumps(body).encode(), headers={"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise ServerError(f"{self.variant.name} {path}: {error.code} {error.read()[:300]!r}") from error

    def flush(self) -> None:
        """Empty the prefix cache, so that no prompt is found in it."""
        with urllib.request.urlopen(f"{self.url}/flush_cache", timeout=60) as answer:  # noqa: S310
            answer.read()

    def table(self) -> list[str]:
        """The plug-in's start-up table."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line for line in lines if line.startswith("dsv41_kernels ")]

    def stop(self) -> None:
        """End the server's whole process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def launch(
    variant: Variant, model: pathlib.Path, logs: pathlib.Path, *, gpus: str, port: int, arguments: list[str], seed: int
) -> Server:
    """Start a server for `variant` on `gpus` (comma-separated) and return at once."""
    log = logs / f"{variant.name}-{port}.log"
    environment = {
        **os.environ,
        **_ENVIRONMENT,
        weights.VARIABLE: str(seed),
        "DSV41_KERNELS": variant.kernels,
        "CUDA_VISIBLE_DEVICES": gpus,
        "PATH": f"{pathlib.Path(sys.executable).parent}:/usr/local/cuda/bin:{os.environ['PATH']}",
    }
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--port", str(port)]
    command += [*_OPTIONS, "--tp", str(len(gpus.split(","))), *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    return Server(variant, f"http://127.0.0.1:{port}", log, process)
