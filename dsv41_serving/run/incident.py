"""`dsv41 incident ROLE`: keep what is known about a failure in one file, before restarts and rotation take it away.

A unit runs it after every stop (`ExecStopPost=`), so it also sees a killed supervisor, the watchdog and the OOM killer.
`OnFailure=` would not do: before systemd 254 it is not triggered while `Restart=` still tries.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv41_serving.credential import API_KEY, find_credential
from dsv41_serving.errors import InputError
from dsv41_serving.plan.engine import CRASH_DIR
from dsv41_serving.run.prepare import log_path
from dsv41_serving.run.record import Records

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsv41_serving.facts.model import Gpu
    from dsv41_serving.plan.model import Plan, Service

WINDOW_MIN = 10
PART_BYTES = 4 << 20
KEPT = 20
KEPT_BYTES = 200 << 20
_JOURNAL_S = 20.0
# What systemd tells ExecStopPost= about the end of the service.
_RESULT = ("SERVICE_RESULT", "EXIT_CODE", "EXIT_STATUS")
_SECRET = re.compile(
    r"""(?ix) ( bearer\s+ | ["']?[\w-]*(?:api[_-]?key|token|secret|password)[\w-]*["']?\s*[:=]\s*["']? ) [^\s"',}\]]{6,} """
)
_HIDDEN = r"\1[removed]"


def failed(environ: Mapping[str, str]) -> bool:
    """Return whether the service that has just stopped failed; a stop nobody describes counts as a failure."""
    return environ.get("SERVICE_RESULT", "unknown") != "success"


def save_incident(plan: Plan, service: Service, gpus: Sequence[Gpu], environ: Mapping[str, str] = os.environ) -> Path:
    """Write one bundle about `service` below `state_dir/incidents`, remove the oldest beyond the bounds, return its path.

    Raises InputError when the directory cannot be written.
    """
    directory = Path(plan.state_dir) / "incidents"
    path = directory / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{service.name}.tar.gz"
    parts = collect_parts(plan, service, gpus, environ)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = directory / f".{path.name}.{os.getpid()}"
        with tarfile.open(temporary, "w:gz") as bundle:
            for name, text in parts.items():
                content = text.encode(errors="replace")
                entry = tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/{name}")
                entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
                bundle.addfile(entry, io.BytesIO(content))
        temporary.chmod(0o600)
        temporary.replace(path)
        remove_oldest(directory)
    except OSError as error:
        raise InputError(
            f"the incident cannot be saved ({error.strerror})",
            where=f"{directory}, key node.state_dir",
            remedy="make room there, or run as the user the services run as",
        ) from None
    return path


def collect_parts(
    plan: Plan, service: Service, gpus: Sequence[Gpu], environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the files of a bundle by name, secrets removed, each at most PART_BYTES long (the end of it)."""
    journal = _read_journal("--unit", f"dsv41-{service.name}.service")
    log = log_path(plan, service.name)
    if not journal and log.exists():
        journal = _tail(log)
    parts = {
        "incident.json": json.dumps(_summary(plan, service, gpus, environ), indent=1),
        "plan.json": plan.model_dump_json(indent=1, exclude={"files"}),
        "service.log": journal,
        "kernel.log": _read_journal("--dmesg"),
    }
    secrets = _known_secrets(plan)
    return {name: _remove_secrets(text, secrets)[-PART_BYTES:] for name, text in parts.items()}


def remove_oldest(directory: Path) -> None:
    """Keep the newest KEPT bundles, and of these no more than KEPT_BYTES together; the newest always stays."""
    total = 0
    for index, path in enumerate(sorted(directory.glob("*.tar.gz"), reverse=True)):
        total += path.stat().st_size
        if index and (index >= KEPT or total > KEPT_BYTES):
            path.unlink()


def _summary(plan: Plan, service: Service, gpus: Sequence[Gpu], environ: Mapping[str, str]) -> dict[str, Any]:
    records = Records(plan.state_dir).read_services(plan)
    dumps = Path(plan.state_dir, CRASH_DIR)
    return {
        "node": plan.node,
        "service": service.name,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "result": {key: environ[key] for key in _RESULT if key in environ},
        "services": [record.model_dump() for record in records],
        "gpus": [gpu.model_dump(mode="json") for gpu in gpus],
        "xid": [line for line in _read_journal("--dmesg").splitlines() if "Xid" in line][-20:],
        # Only where they are: the dumps hold what clients wrote.
        "crash_dumps": sorted(str(path) for path in dumps.rglob("*") if path.is_file())[-20:] if dumps.exists() else [],
    }


def _read_journal(*selection: str) -> str:
    """Return the last minutes of the journal; '' where there is none or this user may not read it."""
    command = ["journalctl", "--no-pager", "--quiet", "--output=short-iso-precise", f"--since=-{WINDOW_MIN}min"]
    try:
        done = subprocess.run(
            [*command, *selection], capture_output=True, text=True, errors="replace", timeout=_JOURNAL_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout[-PART_BYTES:] if done.returncode == 0 else ""


def _tail(path: Path) -> str:
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - PART_BYTES))
        return stream.read().decode(errors="replace")


def _known_secrets(plan: Plan) -> list[str]:
    """Return the keys themselves, where this process may read them: whatever printed them, they do not stay in a bundle."""
    file = plan.router.credentials.get(API_KEY)
    if file is None:
        return []
    try:
        key = find_credential(API_KEY, file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return []
    return [key] if key else []


def _remove_secrets(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "[removed]")
    return _SECRET.sub(_HIDDEN, text)
