"""A bundle with wheels installs on a machine that has neither network nor package cache."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.node.conftest import BIN, ROOT, Operator


def test_a_bundle_with_wheels_needs_nothing_else(operator: Operator) -> None:
    here = f"{sys.version_info.major} {sys.version_info.minor}"
    if operator.node.run("python3 -c 'import sys; print(*sys.version_info[:2])'").stdout.strip() != here:
        pytest.skip(f"wheels are those of one Python, here {here}: choose the NODE_BASE that has it")
    # The extra is a small one: what an engine needs is five gigabytes of the same.
    made = subprocess.run(
        [
            BIN / "dsv41",
            "bundle",
            "--wheels",
            "--extra",
            "monitoring",
            "--output",
            operator.directory,
            "--source",
            ROOT,
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    node = operator.node
    shutil.copyfile(made.stdout.strip(), node.root / "root/bundle.tar")
    node.run("echo 'profile = \"embedded\"' > /root/node.toml; cd /root && tar xf bundle.tar install.py")
    install = "python3 /root/install.py /root/bundle.tar --root /opt/other --name first --node-file /root/node.toml"
    assert node.run(install).stdout == "installed /opt/other/releases/first\n"
    assert node.run(install).stdout == "/opt/other/releases/first is installed\n"
    dsv41 = "/opt/other/releases/first/venv/bin/dsv41"
    assert node.run(f"{dsv41} --profile h200x8 config check").stdout.startswith("ok: profile h200x8")
    assert "* first" not in node.run(f"{dsv41} release --directory /opt/other list").stdout
    assert node.run("ls -A /opt/other").stdout.split() == ["environments", "releases"]
    node.run("head -c 1000000 /root/bundle.tar > /root/half.tar")
    broken = node.run(install.replace("bundle.tar", "half.tar").replace("first", "second"), check=False)
    assert broken.returncode == 2
    assert broken.stderr.startswith("/root/half.tar: ")
    assert len(broken.stderr.splitlines()) == 1
    node.run("rm -r /opt/other /root/*")
