"""Fire drills: a fault is provoked on the real stack, and the right alert arrives at a webhook, through real Prometheus and Alertmanager.

Windows and delays of the rules are shortened by `monitoring.time_factor`; everything else is as on a node.
"""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from dsv41_serving.transport.proof import Proof, store_proof
from tests.engine.stack import MODEL, wait_until
from tests.monitoring.observed import ObservedStack

if TYPE_CHECKING:
    from collections.abc import Iterator

TIME_FACTOR = 0.02
ALERT_TIMEOUT_S = 120.0
POOL_TOKENS = 4096
# A number of three digits is four tokens of the toy model.
LONG_PROMPT_NUMBERS = 450
FILLING_PROMPT_NUMBERS = 940
FILLING_ANSWER_TOKENS = 240
PLAIN = {"chat_template_kwargs": {"thinking": False}}


class Webhook:
    """Where Alertmanager posts; keeps every alert in the order of arrival."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        kept = self.alerts

        class Receiver(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                kept.extend(body["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Keep the test's output to what failed."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def find(self, name: str, status: str = "firing") -> dict[str, Any] | None:
        """Return the last alert of that name and status that arrived, or None."""
        found = [each for each in self.alerts if each["labels"]["alertname"] == name and each["status"] == status]
        return found[-1] if found else None

    def wait_for(self, name: str, status: str = "firing") -> dict[str, Any]:
        """Return the alert once it has arrived."""
        names = sorted({each["labels"]["alertname"] for each in self.alerts})
        wait_until(lambda: self.find(name, status), ALERT_TIMEOUT_S, f"{name} is {status}; arrived so far: {names}")
        found = self.find(name, status)
        assert found is not None
        return found

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def webhook() -> Iterator[Webhook]:
    server = Webhook()
    yield server
    server.close()


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory, webhook: Webhook) -> Iterator[ObservedStack]:
    """A watched stack with a small KV pool, whose alerts go to the webhook."""
    missing = [c for c in ("prometheus", "prometheus-alertmanager", "prometheus-node-exporter") if not shutil.which(c)]
    if missing:
        pytest.skip(f"needs a real Prometheus: apt-get install --no-install-recommends {' '.join(missing)}")
    watched = ObservedStack(
        tmp_path_factory.mktemp("drill"),
        overrides=(
            f'monitoring.alert_webhook="{webhook.url}"',
            f"monitoring.time_factor={TIME_FACTOR}",
            f"engine.context_length={POOL_TOKENS}",
            f"engines.decode.max_total_tokens={POOL_TOKENS}",
            "engines.decode.args.num-reserved-decode-tokens=64",
            'engine.env.UCX_TLS="tcp"',
            # How fast a busy test machine answers is not what is drilled.
            "monitoring.first_token_objective_s=200.0",
            "monitoring.between_tokens_objective_s=8.0",
        ),
    )
    try:
        watched.up()
        yield watched
    finally:
        watched.down()


def test_a_node_that_nobody_talks_to_pages_until_the_canary_does(drill: ObservedStack, webhook: Webhook) -> None:
    """Up and past its gate is not enough; and beside that nothing fires while all is well."""
    webhook.wait_for("Dsv41CanaryStale")
    assert drill.stack.run("canary").returncode == 0
    assert drill.stack.run("contract", "watch", "--once").returncode == 0
    webhook.wait_for("Dsv41CanaryStale", "resolved")
    endings = {row["metric"]["ending"] for row in drill.ask("sum by (ending) (dsv41_answers_total)")}
    assert {"stop", "length"} <= endings
    assert drill.panel("Answer") == {"Answer": 1}
    pages = {each["labels"]["alertname"] for each in webhook.alerts if each["labels"]["severity"] == "page"}
    assert pages == {"Dsv41CanaryStale"}


def test_a_slow_hand_off_pages(drill: ObservedStack, webhook: Webhook) -> None:
    """The hand-off goes over TCP, and the proof on this node saw a link a thousand times as fast."""
    proof = Proof(
        date="2026-11-29",
        node="embedded",
        user="dsv41",
        kernel_release=None,
        driver_version=None,
        backend="UCX",
        lane="tcp",
        best_gb_s=1000.0,
        prompt_ms=1.0,
        reason="",
        remedy="",
        pairs=(),
        provenance={},
    )
    store_proof(proof, str(drill.stack.state_dir))
    stop = threading.Event()
    with ThreadPoolExecutor(2) as clients:
        sending = [clients.submit(_send_until, stop, drill.stack.url, seed) for seed in (1, 2)]
        try:
            alert = webhook.wait_for("Dsv41HandoffSlow")
            speed = drill.panel("Hand-off speed")
            assert "Dsv41HandoffSlow" in drill.panel("Alerts")
        finally:
            stop.set()
    for each in sending:
        each.result()
    assert speed["what the link can do"] == 1000
    assert 0 < speed["mean"] < 200
    assert 0 < speed["one transfer, by NIXL"] < 200
    assert alert["labels"]["severity"] == "page"
    assert alert["annotations"]["runbook"] == "monitoring/runbook.md#dsv41handoffslow"
    told = drill.stack.run("explain", "HandoffSlow").stdout
    assert "query dsv41_handoff_prompt_gb_s\n    value  1000\n" in told


def test_a_drift_of_the_model_name_is_a_ticket(drill: ObservedStack, webhook: Webhook) -> None:
    """Somebody accepted another name than the one that is served now."""
    path = drill.stack.state_dir / "contract" / "baseline.json"
    baseline = json.loads(path.read_text())
    assert baseline["model router"] == MODEL
    path.write_text(json.dumps({**baseline, "model router": "old-name"}))
    assert drill.stack.run("contract", "watch", "--once").returncode == 1
    alert = webhook.wait_for("Dsv41ContractDrift")
    assert alert["labels"]["item"] == "model router"
    assert alert["labels"]["severity"] == "ticket"
    assert drill.panel("Drift") == {"items": 1}
    told = drill.stack.run("explain", "ContractDrift").stdout
    assert "DRIFT" in told
    assert "old-name" in told


def test_long_prompts_that_fill_the_pool_are_a_ticket(drill: ObservedStack, webhook: Webhook) -> None:
    """One conversation nearly as long as decode's pool."""
    with ThreadPoolExecutor(1) as client:
        reply: Future[httpx.Response] = client.submit(
            _ask, drill.stack.url, numbers=FILLING_PROMPT_NUMBERS, max_tokens=FILLING_ANSWER_TOKENS, seed=3
        )
        alert = webhook.wait_for("Dsv41KvPoolFull")
        assert alert["labels"]["service"] == "decode"
        assert alert["labels"]["pool"] == "full"
        assert drill.panel("KV fullness")["decode, full pool"] > 0.8
        assert reply.result().is_success, reply.result().text
    webhook.wait_for("Dsv41KvPoolFull", "resolved")


def test_a_killed_decode_and_the_canary_that_meets_it(drill: ObservedStack, webhook: Webhook) -> None:
    """The service that died is named, the canary fails against what is left, and both end with the recovery."""
    drill.stack.kill("decode")
    assert drill.stack.run("canary").returncode == 1
    alert = webhook.wait_for("Dsv41ServiceDown")
    assert alert["labels"]["service"] == "decode"
    assert "Dsv41ServiceDown" in drill.panel("Alerts")
    assert webhook.wait_for("Dsv41CanaryFailing")["labels"]["severity"] == "page"
    assert "FAIL" in drill.stack.run("explain", "CanaryFailing").stdout
    wait_until(lambda: drill.stack.stack_state() == "ready", 240.0, "the pair is back")
    assert drill.stack.run("canary").returncode == 0
    webhook.wait_for("Dsv41CanaryFailing", "resolved")
    webhook.wait_for("Dsv41ServiceDown", "resolved")


def _send_until(stop: threading.Event, url: str, seed: int) -> None:
    number = 0
    while not stop.is_set():
        _ask(url, numbers=LONG_PROMPT_NUMBERS, max_tokens=1, seed=seed * 1000 + number)
        number += 1


def _ask(url: str, *, numbers: int, max_tokens: int, seed: int) -> httpx.Response:
    """Send a prompt that no cache holds."""
    text = " ".join(f"{(seed * 7919 + index * 104729) % 997:03d}" for index in range(numbers))
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "temperature": 1}
    return httpx.post(f"{url}/v1/chat/completions", json={**body, "ignore_eos": True, **PLAIN}, timeout=300)
