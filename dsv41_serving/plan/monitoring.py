"""Configuration of this node's Prometheus and Alertmanager, and the rules with this node's objectives put in. Pure text.

JSON, which YAML contains, for the configurations; the rules keep the text of `monitoring/rules`.
"""

from __future__ import annotations

import json
import re
from string import Template
from typing import TYPE_CHECKING, Any

from dsv41_serving.plan.model import RenderedFile, bracket
from dsv41_serving.resources import data_dir

if TYPE_CHECKING:
    from dsv41_serving.plan.model import Plan, Service
    from dsv41_serving.spec.monitoring import Monitoring

# SGLang spells its metrics `sglang:name`. To a scraper that asks for OpenMetrics, as every Prometheus does, its client library
# writes `sglang_name` instead. One spelling, whatever was negotiated; Prometheus 2.42 knows no `scrape_protocols`.
SGLANG_NAMES = {
    "source_labels": ["__name__"],
    "regex": "sglang_(.+)",
    "target_label": "__name__",
    "replacement": "sglang:$1",
}
# NIXL names an agent anew at every start and adds the pid: each restart would begin new series. The rank tells them apart.
NIXL_LABELS = {"regex": "agent_name|hostname|pid", "action": "labeldrop"}
CONFIG_DIR = "/etc/dsv41"
PROMETHEUS_DIR = f"{CONFIG_DIR}/prometheus"
ALERTMANAGER_FILE = f"{CONFIG_DIR}/alertmanager/alertmanager.yml"
# rate() needs two samples in its window; one may be lost.
_SCRAPES_PER_WINDOW = 4
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+)([smhd])")
_WINDOW = re.compile(r"\[(\d+[smhd])\]")
_DELAY = re.compile(r"^(\s*(?:for|interval): )(\d+[smhd])$", re.MULTILINE)
_OFFSET = re.compile(r"(offset )(\d+[smhd])")


class _RuleText(Template):
    """Rules name values of the node as @{name}; $ belongs to Prometheus' own templates."""

    delimiter = "@"


def monitoring_files(monitoring: Monitoring, plan: Plan) -> tuple[RenderedFile, ...]:
    """Return the configuration of Prometheus and Alertmanager and every rule file."""
    return (
        RenderedFile(path=f"{PROMETHEUS_DIR}/prometheus.yml", text=_to_text(prometheus_config(monitoring, plan))),
        RenderedFile(path=ALERTMANAGER_FILE, text=_to_text(alertmanager_config(monitoring))),
        *(
            RenderedFile(
                path=f"{PROMETHEUS_DIR}/rules/{path.name}", text=fill_rules(path.read_text("utf-8"), monitoring)
            )
            for path in sorted((data_dir("monitoring") / "rules").glob("*.yml"))
        ),
    )


def fill_rules(text: str, monitoring: Monitoring) -> str:
    """Return a rule file with the objectives of the node, and with its times shortened by `time_factor`."""
    filled = _RuleText(text).substitute(
        first_token_bound=monitoring.first_token_objective_s, between_tokens_bound=monitoring.between_tokens_objective_s
    )
    if monitoring.time_factor == 1:
        return filled
    factor, shortest = monitoring.time_factor, float(_SCRAPES_PER_WINDOW * monitoring.scrape_interval_s)
    filled = _WINDOW.sub(lambda found: f"[{_shorten(found[1], factor, shortest)}]", filled)
    filled = _OFFSET.sub(lambda found: found[1] + _shorten(found[2], factor, 1.0), filled)
    return _DELAY.sub(lambda found: found[1] + _shorten(found[2], factor, 0.0), filled)


def prometheus_config(monitoring: Monitoring, plan: Plan) -> dict[str, Any]:
    """Return the configuration of Prometheus: every page of the node, the rules beside it, the node's Alertmanager.

    A whole file rather than one to include: Debian 12 ships Prometheus 2.42, which knows no `scrape_config_files`.
    """
    interval = f"{monitoring.scrape_interval_s}s"
    return {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": ["rules/*.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [_local(monitoring.alertmanager_port)]}]}]},
        "scrape_configs": [*_service_jobs(plan), *_nixl_jobs(plan), *_host_jobs(monitoring, plan)],
    }


def alertmanager_config(monitoring: Monitoring) -> dict[str, Any]:
    """Return the configuration of Alertmanager: one receiver; a page repeats hourly, a ticket daily, an info never."""
    webhook = [{"url": monitoring.alert_webhook, "send_resolved": True}] if monitoring.alert_webhook else []
    wait = _shorten("10s", monitoring.time_factor, 1.0)
    return {
        "route": {
            "receiver": "operator",
            "group_by": ["node", "alertname"],
            "group_wait": wait,
            "group_interval": _shorten("1m", monitoring.time_factor, 1.0),
            "repeat_interval": "1h",
            "routes": [
                {"matchers": ['severity="ticket"'], "repeat_interval": "24h"},
                {"matchers": ['severity="info"'], "receiver": "nobody"},
            ],
        },
        # What follows from a missing service is not told beside it.
        "inhibit_rules": [
            {
                "source_matchers": ['alertname="Dsv41ServiceDown"'],
                "target_matchers": ['alertname=~"Dsv41(HalfAPair|Canary.*|QueueStuck|HandoffStuck)"'],
                "equal": ["node"],
            }
        ],
        "receivers": [{"name": "operator", "webhook_configs": webhook}, {"name": "nobody"}],
    }


def _service_jobs(plan: Plan) -> list[dict[str, Any]]:
    return [
        {
            "job_name": f"dsv41-{'engine' if service.is_engine else 'router'}-{service.name}",
            "metrics_path": "/metrics",
            "static_configs": [
                {
                    "targets": [service.metrics_url.removeprefix("http://").removesuffix("/metrics")],
                    "labels": _service_labels(plan, service),
                }
            ],
            "metric_relabel_configs": [SGLANG_NAMES if service.is_engine else _keep_served_models(plan)],
        }
        for service in (*plan.services, *plan.elsewhere)
    ]


def _nixl_jobs(plan: Plan) -> list[dict[str, Any]]:
    return [
        {
            "job_name": f"dsv41-nixl-{service.name}",
            "metrics_path": "/metrics",
            "static_configs": [
                {
                    "targets": [f"{bracket(service.address)}:{service.ports['nixl']}"],
                    "labels": _service_labels(plan, service),
                }
            ],
            "metric_relabel_configs": [NIXL_LABELS],
        }
        for service in (*plan.services, *plan.elsewhere)
        if service.nixl_url
    ]


def _service_labels(plan: Plan, service: Service) -> dict[str, str]:
    return {"node": plan.node, "service": service.name, "role": service.kind, **_host_label(plan, service.node)}


def _host_label(plan: Plan, host: str) -> dict[str, str]:
    """Rules mean one serving node by `node`, so a layout has one name for all of its hosts; `host` tells them apart."""
    return {"host": host} if plan.hosts else {}


def _keep_served_models(plan: Plan) -> dict[str, Any]:
    """Whatever name a client asks for becomes a label at the router; only the served names are worth a series."""
    names = [plan.contract.served_model_name, *plan.contract.aliases, "unknown"]
    return {"source_labels": ["model"], "regex": "|".join(["", *map(re.escape, names)]), "action": "keep"}


def _host_jobs(monitoring: Monitoring, plan: Plan) -> list[dict[str, Any]]:
    """Return the jobs of each host, and those of the servers that run beside the router alone."""
    everywhere = plan.hosts or {plan.node: "127.0.0.1"}
    here = {plan.node: "127.0.0.1"}
    jobs = (
        ("exporter", monitoring.exporter_port, everywhere),
        ("node", monitoring.node_exporter_port, everywhere),
        ("prometheus", monitoring.prometheus_port, here),
        ("alertmanager", monitoring.alertmanager_port, here),
    )
    return [
        {
            "job_name": name,
            "static_configs": [
                {"targets": [f"{bracket(address)}:{port}"], "labels": {"node": plan.node, **_host_label(plan, host)}}
                for host, address in hosts.items()
            ],
        }
        for name, port, hosts in jobs
    ]


def _local(port: int) -> str:
    return f"127.0.0.1:{port}"


def _shorten(duration: str, factor: float, at_least_s: float) -> str:
    """Return `duration`, such as 5m, times `factor`, in milliseconds."""
    found = _DURATION.fullmatch(duration)
    if found is None:
        raise ValueError(f"'{duration}' is not a duration of one unit")
    seconds = int(found[1]) * _UNITS[found[2]]
    return f"{round(max(seconds * factor, min(at_least_s, seconds)) * 1000)}ms"


def _to_text(config: dict[str, Any]) -> str:
    return json.dumps(config, indent=2) + "\n"
