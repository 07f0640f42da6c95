"""Real machines for tests: systemd as PID 1 in a systemd-nspawn container with a network of its own.

The host needs no systemd: each machine gets cgroup and PID namespaces first, and sees a pure cgroup v2 tree. The bridge
between the machines has no way out, so whatever they install comes from the controller or from their package cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

# What a freshly installed server has: an init, ssh, Python for Ansible.
PACKAGES = "apt,systemd,systemd-sysv,dbus,python3,python3-apt,iproute2,procps,ca-certificates,openssh-server,curl,sudo,libpam-systemd"
# Fetched into the package cache of the template, not installed: machines have no network to fetch them from.
FETCHED = ("prometheus", "prometheus-alertmanager", "prometheus-node-exporter")
_TEMPLATE_VERSION = 2
_REBOOT = 133  # status of nspawn when the machine asks for a reboot and nobody on the host can start it again
_BOOT_S = 60.0
_BOOT = """
echo $$ > "$1/cgroup.procs"
exec unshare --mount --cgroup --pid --fork --kill-child --mount-proc --propagation private bash -euc '
    umount -l /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    shift
    while :; do
        status=0
        "$@" || status=$?
        [ "$status" = 133 ] || exit "$status"
    done' machine "$@"
"""


@dataclass(frozen=True)
class Base:
    """A distribution that machines are made of. `sources` are lines for apt; empty: what this machine knows of the suite."""

    suite: str
    sources: tuple[str, ...] = ()
    keyring: str = ""
    """File with the keys that sign `sources`."""
    newer_python: bool = False
    """Whether its Python is newer than what this project supports."""

    @property
    def name(self) -> str:
        """What identifies a template of it."""
        recipe = repr((self, PACKAGES, FETCHED, _TEMPLATE_VERSION))
        return f"{self.suite}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


_UBUNTU = "http://archive.ubuntu.com/ubuntu"
_UBUNTU_KEYS = "/usr/share/keyrings/ubuntu-archive-keyring.gpg"
BASES = {
    "debian-12": Base("bookworm"),
    "debian-13": Base("trixie", newer_python=True),
    "ubuntu-24.04": Base(
        "noble",
        tuple(
            f"deb [signed-by={_UBUNTU_KEYS}] {_UBUNTU} {suite} main universe" for suite in ("noble", "noble-updates")
        ),
        keyring=_UBUNTU_KEYS,
    ),
}


DEFAULT_BASE = "debian-12"


def chosen_base() -> Base:
    """Return the base that NODE_BASE names."""
    name = os.environ.get("NODE_BASE", DEFAULT_BASE)
    if name not in BASES:
        raise ValueError(f"NODE_BASE={name} is not known; use one of: {', '.join(BASES)}")
    return BASES[name]


def missing_tools() -> str:
    """Return why machines cannot be made here, with the command that helps; '' when they can."""
    if os.geteuid() != 0:
        return "needs root: sudo make test-node"
    tools = {
        "systemd-nspawn": "systemd-container",
        "mmdebstrap": "mmdebstrap",
        "ip": "iproute2",
        "unshare": "util-linux",
        "ssh": "openssh-client",
        "ssh-keygen": "openssh-client",
    }
    packages = sorted({package for tool, package in tools.items() if shutil.which(tool) is None})
    if packages:
        return f"apt-get install --no-install-recommends {' '.join(packages)}"
    base = chosen_base()
    if base.keyring and not Path(base.keyring).exists():
        return f"{base.keyring} is missing: install the package ubuntu-keyring of Ubuntu"
    if base.newer_python and "NODE_PYTHON" not in os.environ:
        return f"the Python of {base.suite} is too new: NODE_PYTHON=ARCHIVE make test-node, with that of a relocatable 3.11 or 3.12"
    return ""


def make_template(cache: Path, base: Base) -> Path:
    """Return a root file system of `base` under `cache` that machines are copied from, made first when it is not there.

    Of two runs that need it at once, one makes it and the other waits.
    """
    template = cache / base.name
    cache.mkdir(parents=True, exist_ok=True)
    with held(template):
        if not template.exists():
            _make_template(template, base)
    return template


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Let one process at a time make `path`."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the file, also when this process is killed
        yield


def _make_template(template: Path, base: Base) -> None:
    making = template.with_suffix(".making")
    shutil.rmtree(making, ignore_errors=True)
    subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", base.suite, making, *base.sources],
        check=True,
    )
    shutil.copyfile("/etc/resolv.conf", making / "etc/resolv.conf")
    for command in (
        ("update", "-qq"),
        ("install", "-qq", "-y", "--download-only", "--no-install-recommends", *FETCHED),
    ):
        subprocess.run(["chroot", making, "apt-get", *command], check=True, stdout=subprocess.DEVNULL)
    # Ubuntu enables a network manager that would take the address away which the machine is given.
    subprocess.run(["systemctl", f"--root={making}", "--quiet", "mask", "systemd-networkd.service"], check=True)
    (making / "etc/machine-id").write_text("")
    (making / "etc/hostname").unlink(missing_ok=True)
    (making / "etc/ssh/sshd_config.d/10-test.conf").write_text(
        "AuthorizedKeysFile /etc/ssh/authorized_keys\nUseDNS no\n"
    )
    making.rename(template)


@dataclass
class Machine:
    """One booted machine. `root` is its file system as the host sees it."""

    name: str
    root: Path
    address: str
    link: str
    network: Network
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def _cgroup(self) -> Path:
        unified = Path("/sys/fs/cgroup/unified")
        return (unified if unified.is_dir() else Path("/sys/fs/cgroup")) / self._host_name

    @property
    def _host_name(self) -> str:
        """Name of its network namespace and cgroup on the host, where others may run machines too."""
        return f"{self.network.bridge}-{self.name}"

    def run(self, command: str, *, check: bool = True, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
        """Run a shell command line as root in the machine, over ssh."""
        done = subprocess.run(
            ["ssh", "-F", self.network.ssh_config, self.name, command],
            check=False, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise AssertionError(f"{self.name}: {command}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def boot(self) -> None:
        """Start the machine and return when its systemd has finished booting."""
        namespace, cgroup = self._host_name, self._cgroup
        _ip("netns", "add", namespace)
        _ip("link", "add", self.link, "type", "veth", "peer", "name", "host0", "netns", namespace)
        _ip("link", "set", self.link, "master", self.network.bridge, "up")
        _ip("-n", namespace, "addr", "add", f"{self.address}/24", "dev", "host0")
        _ip("-n", namespace, "link", "set", "host0", "up")
        _ip("-n", namespace, "link", "set", "lo", "up")
        cgroup.mkdir(exist_ok=True)
        nspawn = [
            # In the network of the machine from the start: the /sys it mounts then shows the devices of that network.
            "nsenter", f"--net=/run/netns/{namespace}", "systemd-nspawn", "--quiet", "--boot", f"--directory={self.root}", f"--machine={self.name}",
            "--register=no", "--keep-unit", "--link-journal=no", "--console=pipe", "--resolv-conf=off",
            f"--network-namespace-path=/run/netns/{namespace}",
            # nspawn's own filter would refuse these to every unit; the hand-off inside one machine, and registered memory, need them.
            "--system-call-filter=pidfd_getfd @memlock",
        ]  # fmt: skip
        with (self.network.directory / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["bash", "-euc", _BOOT, "boot", cgroup, *nspawn], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.wait_until_booted()

    def wait_until_booted(self) -> None:
        """Return when systemd in the machine has finished booting; used after a reboot as well."""
        deadline = time.monotonic() + _BOOT_S
        while time.monotonic() < deadline:
            done = self.run("systemctl is-system-running --wait", check=False)
            if done.stdout.strip() in {"running", "degraded"}:
                return
            if self._process is not None and self._process.poll() is not None:
                break
            time.sleep(0.2)
        log = (self.network.directory / f"{self.name}.log").read_text(errors="replace")
        raise AssertionError(f"{self.name} did not boot:\n{log[-3000:]}")

    def reboot(self) -> None:
        """Reboot and wait until the machine is up again."""
        ask = "systemctl show --property=UserspaceTimestampMonotonic"
        before = self.run(ask).stdout
        self.run("systemctl reboot", check=False)
        deadline = time.monotonic() + _BOOT_S
        while time.monotonic() < deadline:
            now = self.run(ask, check=False).stdout
            if now not in {"", before}:
                break
            time.sleep(0.2)
        self.wait_until_booted()

    def stop(self) -> None:
        """Power the machine off and remove its network; the root file system stays."""
        if self._process is not None and self._process.poll() is None:
            nspawn = [pid for pid in _below(self._process.pid) if _name_of(pid) == "systemd-nspawn"]
            for pid in nspawn:
                os.kill(pid, signal.SIGTERM)  # an orderly power-off; unshare itself ignores TERM
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                for pid in reversed(_below(self._process.pid)):
                    os.kill(pid, signal.SIGKILL)
                self._process.wait()
        subprocess.run(["ip", "netns", "del", self._host_name], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "link", "del", self.link], check=False, stderr=subprocess.DEVNULL)
        for directory in sorted(self._cgroup.rglob("*/"), reverse=True):
            _remove(directory)
        _remove(self._cgroup)


@dataclass(frozen=True)
class Network:
    """A bridge of the host that machines are attached to. `directory` holds their roots, logs and the ssh key."""

    bridge: str
    prefix: str
    directory: Path
    template: Path

    @property
    def ssh_config(self) -> Path:
        """The client configuration that knows every machine by name."""
        return self.directory / "ssh_config"

    @contextmanager
    def machines(self, names: Sequence[str]) -> Iterator[list[Machine]]:
        """Boot one machine per name; they are powered off when the block ends."""
        key = self.directory / "id_ed25519"
        if not key.exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tests", "-f", key], check=True)
        made = [
            Machine(name, self.directory / name, f"{self.prefix}.{10 + i}", f"{self.bridge}{i}", self)
            for i, name in enumerate(names)
        ]
        self._write_ssh_config(made, key)
        _ip("link", "add", self.bridge, "type", "bridge")
        try:
            _ip("addr", "add", f"{self.prefix}.1/24", "dev", self.bridge)
            _ip("link", "set", self.bridge, "up")
            for machine in made:
                if not machine.root.exists():
                    subprocess.run(["cp", "-a", self.template, machine.root], check=True)
                (machine.root / "etc/hostname").write_text(f"{machine.name}\n")
                shutil.copyfile(f"{key}.pub", machine.root / "etc/ssh/authorized_keys")
            for machine in made:
                machine.boot()
            yield made
        finally:
            for machine in made:
                machine.stop()
            _ip("link", "del", self.bridge)

    def _write_ssh_config(self, machines: Sequence[Machine], key: Path) -> None:
        hosts = "".join(f"Host {machine.name}\n  HostName {machine.address}\n" for machine in machines)
        common = (
            f"Host *\n  User root\n  IdentityFile {key}\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
            f"  LogLevel ERROR\n  ConnectTimeout 30\n  ControlMaster auto\n  ControlPersist 30\n  ControlPath {self.directory}/%n.ssh\n"
        )
        self.ssh_config.write_text(hosts + common)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _below(pid: int) -> list[int]:
    """Return every descendant of `pid`, parents before children."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *_below(child)]
    return found


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _remove(directory: Path) -> None:
    for _ in range(20):
        try:
            directory.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.1)
        else:
            return
