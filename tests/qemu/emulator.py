"""A machine with two NUMA nodes and a whole kernel of its own, by QEMU: what a container takes from its host is real here.

Every instruction is emulated, so that it runs wherever QEMU does; an engine would take a quarter of an hour to start. It has no network. What it shall do and with what lies in directories that it mounts read-only; what it found comes out of its
serial port.
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

from tests.node.machine import held

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# The full kernel: Debian's small one for clouds cannot mount a directory of the host (9p).
PACKAGES = ("linux-image-amd64", "udev")
DISK_BYTES = 4 << 30
_VERSION = 1
_LIMIT_S = 1200.0
_BEGIN, _END = "--- report ---", "--- end ---"
_PROBE = "usr/local/sbin/probe"
_SCRIPT = """#!/bin/sh
exec > /run/report 2>&1
while read -r tag directory; do
    mkdir -p "$directory"
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,cache=loose,ro "$tag" "$directory"
done < /sys/firmware/qemu_fw_cfg/by_name/opt/shares/raw
python3 /opt/repository/tests/qemu/guest.py
"""
_TELL = f"{{ echo; echo '{_BEGIN}'; cat /run/report; echo; echo '{_END}'; }} > /dev/ttyS0"
# Runs when the machine has booted, and switches it off.
_UNIT = f"""[Unit]
After=multi-user.target
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStartPre=modprobe qemu_fw_cfg
ExecStart=/{_PROBE}
ExecStopPost=sh -c "{_TELL}"
ExecStopPost=systemctl poweroff --force
[Install]
WantedBy=default.target
"""


def missing_tools() -> str:
    """Return what keeps the machine from being built and run here, with the command that helps; '' when nothing does."""
    if os.geteuid() != 0:
        return "needs root: sudo make test-qemu"
    tools = {"qemu-system-x86_64": "qemu-system-x86", "mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs"}
    if packages := sorted(package for tool, package in tools.items() if shutil.which(tool) is None):
        return f"apt-get install --no-install-recommends {' '.join(packages)}"
    return ""


def make_image(cache: Path, template: Path) -> Path:
    """Return the disk of a machine made from the root file system `template`, with kernel and initrd beside it.

    Of two runs that need it at once, one makes it and the other waits.
    """
    recipe = repr((template.name, PACKAGES, DISK_BYTES, _SCRIPT, _UNIT, _VERSION))
    image = cache / f"qemu-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}.raw"
    with held(image):
        if not image.exists():
            _make_image(image, template)
    return image


def _make_image(image: Path, template: Path) -> None:
    root = image.with_suffix(".root")
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(["cp", "-a", template, root], check=True)
    with _mounted(root):
        for command in (("update", "-qq"), ("install", "-qq", "-y", "--no-install-recommends", *PACKAGES)):
            subprocess.run(
                ["chroot", root, "apt-get", *command],
                check=True,
                capture_output=True,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            )
    (root / "etc/systemd/system/probe.service").write_text(_UNIT)
    (root / _PROBE).write_text(_SCRIPT)
    (root / _PROBE).chmod(0o755)
    subprocess.run(["systemctl", f"--root={root}", "-q", "enable", "probe.service"], check=True)
    timers = ("apt-daily.timer", "apt-daily-upgrade.timer")
    subprocess.run(["systemctl", f"--root={root}", "-q", "mask", *timers], check=True)
    (root / "etc/fstab").write_text("/dev/vda / ext4 rw,noatime 0 1\n")
    (root / "etc/machine-id").write_text("")
    shutil.copyfile(next((root / "boot").glob("vmlinuz-*")), image.with_suffix(".vmlinuz"))
    shutil.copyfile(next((root / "boot").glob("initrd.img-*")), image.with_suffix(".initrd"))
    making = image.with_suffix(".making")
    making.unlink(missing_ok=True)
    with making.open("wb") as stream:
        stream.truncate(DISK_BYTES)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", root, making], check=True)
    shutil.rmtree(root)
    making.rename(image)


def run_machine(image: Path, shares: Mapping[str, Path]) -> Any:
    """Boot `image`, wait until it has switched itself off, and return what its guest.py printed as JSON.

    Four CPUs in two nodes of 1 GiB each, distance 21. `shares` are directories of the host by the path where the
    machine finds them. Changes to the disk are thrown away.
    """
    console = image.with_suffix(".console")
    command = ["qemu-system-x86_64", "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "2048M"]
    command += [
        "-smp",
        "4,sockets=2,cores=2",
        "-nographic",
        "-no-reboot",
        "-monitor",
        "none",
        "-serial",
        f"file:{console}",
    ]
    for node in (0, 1):
        command += ["-object", f"memory-backend-ram,id=m{node},size=1024M"]
        command += ["-numa", f"node,nodeid={node},cpus={2 * node}-{2 * node + 1},memdev=m{node}"]
    command += ["-numa", "dist,src=0,dst=1,val=21", "-nic", "none", "-snapshot"]
    command += ["-kernel", str(image.with_suffix(".vmlinuz")), "-initrd", str(image.with_suffix(".initrd"))]
    command += ["-append", "root=/dev/vda rw console=ttyS0 quiet mitigations=off tsc=unstable"]
    command += ["-drive", f"file={image},if=virtio,format=raw,cache=unsafe", "-device", "virtio-rng-pci"]
    tags = {f"share{i}": where for i, where in enumerate(shares)}
    command += ["-fw_cfg", "name=opt/shares,string=" + "".join(f"{tag} {where}\n" for tag, where in tags.items())]
    for tag, where in tags.items():
        command += ["-fsdev", f"local,id={tag},path={shares[where]},security_model=none,readonly=on,multidevs=remap"]
        command += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=_LIMIT_S)
    said = console.read_text(errors="replace").replace("\r", "")
    _, begin, rest = said.partition(f"\n{_BEGIN}\n")
    report, end, _ = rest.partition(f"\n{_END}")
    if not (begin and end):
        raise AssertionError(f"the machine reported nothing:\n{said[-3000:]}")
    try:
        return json.loads(report)
    except ValueError:
        raise AssertionError(f"the machine's report is no JSON:\n{report[-6000:]}") from None


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
