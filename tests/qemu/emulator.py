"""A machine with two NUMA nodes, in software emulation: a whole kernel of its own, so that nothing is only accepted.

It has no network. What it shall do lies in a directory that it mounts read-only; what it found comes out of its serial port.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = ("linux-image-cloud-amd64", "udev", "numactl")
_VERSION = 1
_BOOT_S = 900.0
_BEGIN, _END = "--- report ---", "--- end ---"
_PROBE = "usr/local/sbin/probe"
_SCRIPT = f"""#!/bin/sh
for share in repository packages input; do
    mkdir -p /opt/$share
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,cache=loose,ro $share /opt/$share
done > /run/report 2>&1
python3 /opt/repository/tests/qemu/guest.py >> /run/report 2>&1
{{ echo; echo "{_BEGIN}"; cat /run/report; echo "{_END}"; }} > /dev/ttyS0
"""
# Runs when the machine has booted, and switches it off.
_UNIT = f"""[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/{_PROBE}
ExecStopPost=/bin/systemctl poweroff --force
[Install]
WantedBy=default.target
"""


def missing_tools() -> str:
    """Return the command that installs what is missing here; '' when the machine can be built and run."""
    if os.geteuid() != 0:
        return "needs root: sudo make test-qemu"
    tools = {"qemu-system-x86_64": "qemu-system-x86", "mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs"}
    packages = sorted(package for tool, package in tools.items() if shutil.which(tool) is None)
    return f"apt-get install --no-install-recommends {' '.join(packages)}" if packages else ""


def make_image(cache: Path, template: Path) -> Path:
    """Return the disk of a machine made from the root file system `template`, with kernel and initrd beside it."""
    recipe = repr((template.name, PACKAGES, _SCRIPT, _UNIT, _VERSION))
    image = cache / f"qemu-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}.raw"
    if image.exists():
        return image
    root = image.with_suffix(".root")
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(["cp", "-a", template, root], check=True)
    with _mounted(root):
        for command in (("update", "-qq"), ("install", "-qq", "-y", "--no-install-recommends", *PACKAGES)):
            subprocess.run(
                ["chroot", root, "apt-get", *command],
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            )
    (root / "etc/systemd/system/probe.service").write_text(_UNIT)
    (root / _PROBE).write_text(_SCRIPT)
    (root / _PROBE).chmod(0o755)
    subprocess.run(["systemctl", f"--root={root}", "-q", "enable", "probe.service"], check=True)
    subprocess.run(
        ["systemctl", f"--root={root}", "-q", "mask", "apt-daily.timer", "apt-daily-upgrade.timer"], check=True
    )
    (root / "etc/fstab").write_text("/dev/vda / ext4 rw,noatime 0 1\n")
    (root / "etc/machine-id").write_text("")
    shutil.copyfile(next((root / "boot").glob("vmlinuz-*")), image.with_suffix(".vmlinuz"))
    shutil.copyfile(next((root / "boot").glob("initrd.img-*")), image.with_suffix(".initrd"))
    making = image.with_suffix(".making")
    making.unlink(missing_ok=True)
    with making.open("wb") as stream:
        stream.truncate(3 << 30)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", root, making], check=True)
    shutil.rmtree(root)
    making.rename(image)
    return image


def run_machine(image: Path, shares: dict[str, Path]) -> Any:
    """Boot `image` with `shares` (tag -> directory), wait until it has switched itself off, return what its guest.py printed.

    Four CPUs in two nodes of 1 GiB, distance 21. Changes to the disk are thrown away.
    """
    command = ["qemu-system-x86_64", "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "2048M"]
    command += ["-smp", "4,sockets=2,cores=2", "-nographic", "-no-reboot", "-monitor", "none", "-serial", "stdio"]
    for node in (0, 1):
        command += ["-object", f"memory-backend-ram,id=m{node},size=1024M"]
        command += ["-numa", f"node,nodeid={node},cpus={2 * node}-{2 * node + 1},memdev=m{node}"]
    command += ["-numa", "dist,src=0,dst=1,val=21", "-nic", "none", "-snapshot"]
    command += ["-kernel", str(image.with_suffix(".vmlinuz")), "-initrd", str(image.with_suffix(".initrd"))]
    command += ["-append", "root=/dev/vda rw console=ttyS0 quiet mitigations=off tsc=unstable"]
    command += ["-drive", f"file={image},if=virtio,format=raw,cache=unsafe", "-device", "virtio-rng-pci"]
    for tag, directory in shares.items():
        command += ["-fsdev", f"local,id={tag},path={directory},security_model=none,readonly=on"]
        command += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        timeout=_BOOT_S,
    )
    _, begin, rest = done.stdout.replace("\r", "").partition(f"\n{_BEGIN}\n")
    report, end, _ = rest.partition(f"\n{_END}")
    if not (begin and end):
        raise AssertionError(f"the machine reported nothing:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    try:
        return json.loads(report)
    except ValueError:
        raise AssertionError(f"the machine's report is no JSON:\n{report[-3000:]}") from None


@contextmanager
def _mounted(root: Path) -> Iterator[None]:
    """Give programs that run below `root` their /proc and /dev, and keep packages from starting anything."""
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    shutil.copyfile("/etc/resolv.conf", root / "etc/resolv.conf")
    mounts = [(["-t", "proc", "proc"], root / "proc"), (["--bind", "/dev"], root / "dev")]
    for options, target in mounts:
        subprocess.run(["mount", *options, target], check=True)
    try:
        yield
    finally:
        for _, target in reversed(mounts):
            subprocess.run(["umount", target], check=True)
        policy.unlink()
