"""Are the directories writable, is there room, and is the model complete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.preflight.check import Check, failed, passed, warned

if TYPE_CHECKING:
    from dsv41_serving.preflight.check import Outcome, Scene

_GB = 1_000_000_000
# Records, logs and crash dumps; kernel caches of an engine on GPUs. The embedded model says its own size.
_STATE_BYTES = 1 * _GB
_CACHE_BYTES_ON_GPUS = 20 * _GB
_FEW_FILES = 10_000
_SLOW_LOAD_S = 1200.0


def judge_state(scene: Scene) -> Outcome | None:
    """Return whether the state directory takes records, logs and crash dumps."""
    return _judge_room(scene, "state", _STATE_BYTES, "node.state_dir")


def judge_cache(scene: Scene) -> Outcome | None:
    """Return whether the cache directory takes compiled kernels and prepared models."""
    needed = _CACHE_BYTES_ON_GPUS if scene.on_gpus else scene.checkpoint.to_make_bytes
    return _judge_room(scene, "cache", needed, "node.cache_dir")


def judge_file_count(scene: Scene) -> Outcome | None:
    """Return whether files can still be created: kernel caches have many small ones."""
    counts = {
        name: place.free_files for name, place in scene.directories.items() if name in {"state", "cache", "temporary"}
    }
    low = {name: count for name, count in counts.items() if count is not None and count < _FEW_FILES}
    if low:
        name = min(low, key=lambda each: low[each])
        path = scene.directories[name].path
        return failed(
            f"{low[name]} files can still be made in {path}", f"df -i {path}; du --inodes -d 2 {path} | sort -n | tail"
        )
    return passed("enough")


def judge_temporary(scene: Scene) -> Outcome | None:
    """Return whether the temporary directory is writable and runs programs."""
    place = scene.directories["temporary"]
    if not place.writable:
        return failed(f"{place.path} is not writable", f"sudo chmod 1777 {place.path}, or set TMPDIR")
    if place.noexec:
        return failed(
            f"{place.path} is mounted noexec: wrappers and compiled kernels cannot run, and the start hangs",
            f"sudo mount -o remount,exec {place.path}, or set TMPDIR to a directory that allows it",
        )
    return passed(f"{place.path} on {place.filesystem or 'an unknown file system'}")


def judge_model(scene: Scene) -> Outcome | None:
    """Return whether every file of the model is there and complete, with V4.1's special tokens."""
    found = scene.checkpoint
    if found.problems:
        first, more = found.problems[0], len(found.problems) - 1
        return failed(f"{first.where}: {first.what}" + (f" (and {more} more)" if more else ""), first.remedy)
    if not found.path:
        return passed(f"{found.name} is made at the first start ({found.to_make_bytes / _GB:.1f} GB)")
    hashed = "hashes compared" if found.hashed else "sizes and structure; --hashes compares the digests"
    return passed(f"{found.name}: {found.size_bytes / _GB:.1f} GB in {found.files} files; {hashed}")


def judge_digests(scene: Scene) -> Outcome | None:
    """Return whether there are digests to compare the files with."""
    if not scene.checkpoint.path or scene.checkpoint.problems:
        return None
    if not scene.checkpoint.has_digests:
        return warned(
            f"no digest of {scene.checkpoint.name} is known: a damaged file of the right size goes unnoticed",
            f"sha256sum {scene.checkpoint.path}/* once, and keep the sums in [files] of deploy/models/{scene.checkpoint.name}.toml",
        )
    return passed("every file has one")


def judge_revision(scene: Scene) -> Outcome | None:
    """Return whether the revision is the one the manifest describes."""
    pinned, manifest = scene.spec.model.revision, scene.checkpoint.revision
    if not manifest:
        return None
    if not pinned:
        return warned(
            "model.revision is empty: nobody can say later what was served", f"set model.revision = '{manifest}'"
        )
    if reason := scene.checkpoint.former_revisions.get(pinned):
        return failed(f"revision {pinned}: {reason}", f"fetch revision {manifest} and set model.revision")
    if not (pinned.startswith(manifest) or manifest.startswith(pinned)):
        return warned(
            f"revision {pinned} is not {manifest}, the one the manifest describes", "compare the two before serving"
        )
    return passed(pinned)


def judge_local(scene: Scene) -> Outcome | None:
    """Return whether the model lies on a local disk."""
    place = scene.directories.get("model")
    if place is None:
        return None
    if place.remote:
        return warned(
            f"{place.path} is {place.filesystem}: every start loads over the network, and Engram tables may be read from it",
            "copy the model to a local disk and set model.path",
        )
    return passed(f"{place.path} on {place.filesystem or 'an unknown file system'}")


def judge_load_time(scene: Scene) -> Outcome | None:
    """Return how long loading will take, from the speed at which the disk gave a part of the model."""
    found = scene.checkpoint
    if not found.size_bytes or found.read_bytes_per_s is None:
        return None
    engines = len(scene.spec.active_engines())
    seconds = found.size_bytes / found.read_bytes_per_s
    seen = (
        f"{found.size_bytes / _GB:.1f} GB at {found.read_bytes_per_s / _GB:.2f} GB/s: about {_say_time(seconds)} cold"
        + (f", once for {engines} engines if the page cache holds it" if engines > 1 else "")
    )
    if seconds > _SLOW_LOAD_S:
        return warned(
            seen, "move the model to a faster disk (NVMe), or raise the read-ahead: sudo blockdev --setra 16384 DEVICE"
        )
    return passed(seen)


def judge_user(scene: Scene) -> Outcome | None:
    """Return whether the user that runs the services exists."""
    user = scene.spec.node.user
    if user in scene.host.users:
        return passed(user)
    return warned(
        f"there is no user {user}; systemd needs it, `dsv41 up` does not",
        f"sudo systemd-sysusers, or: sudo useradd -r {user}",
    )


def judge_crash_dumps(scene: Scene) -> Outcome | None:
    """Return whether crash dumps have a place."""
    place = scene.directories.get("crash")
    if place is None:
        return None
    if not place.writable:
        return warned(
            f"{place.path} is not writable for this user", f"sudo install -d -o {scene.spec.node.user} {place.path}"
        )
    return passed(place.path)


def _judge_room(scene: Scene, name: str, needed: int, key: str) -> Outcome:
    place = scene.directories[name]
    if not place.writable:
        return failed(
            f"{place.path} is not writable for this user", f"sudo install -d -o $USER {place.path}, or set {key}"
        )
    if place.free_bytes < needed:
        return failed(
            f"{place.free_bytes / _GB:.1f} GB free in {place.path}, {needed / _GB:.1f} GB needed",
            f"du -xh -d 1 {place.path} | sort -h | tail; make room, or set {key}",
        )
    return passed(f"{place.path}: {place.free_bytes / _GB:.0f} GB free")


def _say_time(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(1, round(seconds))} s"  # noqa: PLR2004


CHECKS = (
    Check("state", "Has the state directory room?", "a full disk ends records, logs and restarts", judge_state),
    Check("cache", "Has the cache directory room?", "Dynamo: a compiler that cannot write its cache", judge_cache),
    Check("file-count", "Can files still be created?", "df -i", judge_file_count),
    Check(
        "temporary", "Is the temporary directory writable, and does it run programs?", "sglang#40627", judge_temporary
    ),
    Check(
        "model", "Is the model complete?", "48 files of 510 GB; SGLang 0.5.23: special tokens at the start", judge_model
    ),
    Check(
        "digests",
        "Can its files be compared with digests?",
        "a file of the right size may still be damaged",
        judge_digests,
    ),
    Check(
        "revision",
        "Is it the revision that is described?",
        "sglang#39909: effort tiers differ by revision",
        judge_revision,
    ),
    Check("local", "Is it on a local disk?", "dsv41-deploy-public: Engram on NFS was slow", judge_local),
    Check("load-time", "How long will loading take?", "Dynamo: 12 to 60 minutes", judge_load_time),
    Check("user", "Does the service user exist?", "systemd ends with 217/USER", judge_user, needs_gpus=True),
    Check("crash-dumps", "Have crash dumps a place?", "sglang#34718: the last frame is innocent", judge_crash_dumps),
)
