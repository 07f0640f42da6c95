"""Every check passes where all is well, and says what is wrong and how to mend it where it is not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dsv41_serving.check.start import PINNED
from dsv41_serving.embedded.verify import Problem
from dsv41_serving.facts import Limits, Listener
from dsv41_serving.facts.copying import Copying
from dsv41_serving.facts.host import GpuFault
from dsv41_serving.facts.model import Iommu
from dsv41_serving.facts.packages import LockDifference
from dsv41_serving.preflight import CHECKS, run_checks
from dsv41_serving.preflight.traces import Leftover
from dsv41_serving.transport.proof import Collective
from tests.unit.preflight import scenes as on

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv41_serving.facts import Facts
    from dsv41_serving.preflight.check import Outcome, Scene

GIB = 1 << 30
NAMES = [f"{family}.{check.name}" for family, checks in CHECKS.items() for check in checks]
HOST_TABLES = "memory.engram=host_shared"


def listener(port: int, pid: int | None) -> Listener:
    return Listener(
        port=port,
        address="127.0.0.1",
        uid=1000,
        pid=pid,
        holders=() if pid is None else (pid,),
        start_ticks=None,
        start_time=None,
        cgroup=None,
        command=("python3", "-m", "old"),
    )


def proof(**values: object) -> Callable[[Scene], Scene]:
    def change(scene: Scene) -> Scene:
        assert scene.traces.transport is not None
        return on.traces(transport=scene.traces.transport.model_copy(update=values))(scene)

    return change


def lock_memory(soft: int | None, hard: int | None) -> Limits:
    return Limits(memlock_soft=soft, memlock_hard=hard, nofile_soft=1024, nofile_hard=1024)


def listen(port: int, pid: int | None) -> Callable[[Scene], Scene]:
    return lambda scene: on.facts(listeners=(*scene.facts.listeners, listener(port, pid)))(scene)


# check -> cases of (change to a scene in which it passes, verdict, part of what is said)
WRONG: dict[str, list[tuple[Callable[[Scene], Scene], str, str]]] = {
    "settings.fit": [(on.spec("engines.prefill.gpus=[0,1,2,9]"), "fail", "GPU 9 does not exist here")],
    "settings.values": [(lambda scene: scene, "warn", "nobody has run profile h200x8")],
    "settings.speculation": [
        (on.engine_argv("prefill", "--speculative-algorithm", "DSPARK"), "fail", "decode: off"),
    ],
    "settings.window": [
        (on.engine_argv("decode", without="--max-running-requests"), "fail", "decode: the window pool"),
        (on.engine_argv("prefill", "--swa-full-tokens-ratio", "0.1"), "fail", "prefill: the window pool"),
    ],
    "settings.graphs": [(on.engine_argv("decode", "--disable-cuda-graph"), "fail", "decode: graphs are off")],
    "settings.context": [
        (on.spec("engine.compute_capability='12.0'"), "warn", "524288 tokens on compute capability 12.0"),
    ],
    "settings.data-parallel": [
        (
            lambda scene: on.engine_argv("decode", "--dp-size", "2")(
                replace(
                    scene,
                    spec=scene.spec.model_copy(
                        update={"engine": scene.spec.engine.model_copy(update={"compute_capability": "12.0"})}
                    ),
                )
            ),
            "fail",
            "data parallelism crashes",
        ),
    ],
    "settings.answer-cap": [(on.spec("contract.max_tokens=600000"), "warn", "may be 524288 tokens long")],
    "settings.patience": [
        (on.engine_env("decode", SGLANG_DISAGGREGATION_WAITING_TIMEOUT="3600"), "warn", "may wait 3600 s"),
    ],
    "versions.engine": [
        (on.packages(versions={**PINNED, "sglang": "0.5.12"}), "fail", "sglang 0.5.12 instead of 0.5.23"),
    ],
    "versions.lock": [
        (
            on.packages(differences=(LockDifference(name="numpy", wanted="2.3.5", found="1.0"),)),
            "fail",
            "1 of 260 differ, first numpy: 1.0 instead of 2.3.5",
        ),
        (on.packages(locked=None), "warn", "no lock file"),
    ],
    "versions.python": [(on.packages(python=(3, 13)), "fail", "Python 3.13")],
    "versions.cuda": [
        (on.facts(cuda_driver_version="12.8"), "fail", "torch is built for CUDA 13.0, driver 580.95.05 offers 12.8"),
        (on.packages(torch_cuda="13.2"), "warn", "the driver offers 13.0"),
        (on.packages(torch_cuda=None), "fail", "not installed with CUDA"),
    ],
    "versions.plugins": [
        (on.packages(engine_plugins={}), "fail", "plug-in dsv41_contract, dsv41_handoff is not installed"),
    ],
    "versions.parsers": [
        (on.packages(tool_parsers=("deepseekv4",)), "fail", "contract.tool_call_parser deepseekv41"),
    ],
    "gpu.driver": [(on.facts(gpu_problem="GPU 1: GPU is lost"), "fail", "GPU 1: GPU is lost")],
    "gpu.count": [
        (
            lambda scene: on.facts(gpus=scene.facts.gpus[:7])(scene),
            "fail",
            "7 GPUs answer, shape pd uses 8",
        )
    ],
    "gpu.architecture": [
        (on.gpu(3, compute_capability=(10, 0)), "fail", "GPU 3: NVIDIA H200 has compute capability 10.0"),
    ],
    "gpu.uniform": [(on.gpu(2, name="NVIDIA H100"), "warn", "2 kinds")],
    "gpu.memory": [
        (
            on.spec("memory.weights_bytes_per_gpu=150000000000"),
            "fail",
            "prefill: 139.7 GiB of weights, 92% of 140.4 GiB allowed",
        ),
    ],
    "gpu.capacity": [
        (
            on.spec("engines.prefill.memory_fraction=0.85"),
            "fail",
            "does not fit: prefill is ",
        ),
    ],
    "gpu.idle": [
        (on.gpu(4, processes=(7, 9)), "fail", "GPU 4: pid 7, 9"),
        (on.gpu(4, processes=None), "warn", "does not list processes"),
    ],
    "gpu.used": [(on.gpu(6, memory_used_bytes=90 * GIB), "fail", "GPU 6 90.0 GiB")],
    "gpu.persistence": [(on.gpu(0, persistence=False), "warn", "off on GPU 0")],
    "gpu.memory-errors": [
        (on.health(1, ecc_uncorrected=3), "fail", "GPU 1: 3 uncorrected errors"),
        (on.health(1, remap_pending=True), "warn", "GPU 1: a row waits"),
    ],
    "gpu.faults": [
        (on.host(gpu_faults=(GpuFault(pci_address="0000:1b:00", code=79),)), "fail", "Xid 79 on 0000:1b:00"),
        (on.host(gpu_faults=(GpuFault(pci_address="0000:1b:00", code=31),)), "warn", "Xid 31 on 0000:1b:00"),
        (on.host(gpu_faults=None), "warn", "may not read the kernel log"),
    ],
    "gpu.power": [(on.health(5, power_limit_mw=500000), "warn", "GPU 5 capped at 500 of 700 W")],
    "gpu.slowdown": [(on.health(5, slowdowns=("power brake",)), "fail", "GPU 5: power brake")],
    "gpu.pcie": [(on.health(7, pcie_width=8), "warn", "GPU 7: x8 of x16")],
    "gpu.instances": [(on.health(0, mig=True), "fail", "GPU 0 is cut into MIG instances")],
    "gpu.compute-mode": [
        (on.health(0, compute_mode="prohibited"), "fail", "compute is prohibited on GPU 0"),
        (on.health(0, compute_mode="exclusive"), "warn", "GPU 0 takes one process only"),
    ],
    "gpu.modules": [(on.host(modules=("nvidia",)), "fail", "nvidia_uvm is not loaded")],
    "links.nvlink": [
        (on.gpu(0, links=(2, 3, 4, 5, 6, 7)), "warn", "no NVLink between GPU 0 and 1:"),
        (on.gpu(0, links=()), "warn", "(7 pairs)"),
        (on.gpu(0, links=None), "warn", "does not say"),
    ],
    "links.peer-access": [
        (on.health(0, p2p_peers=()), "warn", "no peer access between GPU 0 and 1 (7 pairs)"),
        (on.health(0, p2p_peers=None), "warn", "does not say"),
    ],
    "links.iommu": [
        (on.kernel(iommu=Iommu(mode="translated", reason="type DMA")), "warn", "type DMA: together with ACS"),
        (on.kernel(iommu=Iommu(mode="unknown", reason="sysfs is not mounted")), "warn", "sysfs is not mounted"),
    ],
    "links.acs": [
        (on.kernel(acs_bridges=("0000:19:01.0",)), "warn", "0000:19:01.0"),
        (
            on.kernel(acs_bridges=("0000:19:01.0",), iommu=Iommu(mode="translated", reason="type DMA")),
            "fail",
            "0000:19:01.0",
        ),
        (on.kernel(acs_bridges=None), "warn", "may not read the bridges"),
    ],
    "links.lanes": [
        (on.engine_env("prefill", UCX_TLS="cuda_ipc,cuda_copy,sm,self"), "fail", "prefill: UCX_TLS lacks tcp"),
        (on.engine_env("decode", UCX_TLS="sm,tcp"), "fail", "decode: UCX_TLS lacks cuda_ipc, cuda_copy"),
    ],
    "links.fabric-lanes": [(on.engine_env("decode", UCX_TLS="rc_x,tcp"), "warn", "decode: UCX_TLS names an rc")],
    "links.allocator": [
        (
            on.engine_env("decode", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
            "fail",
            "decode: PYTORCH_CUDA_ALLOC_CONF",
        ),
    ],
    "links.hand-off": [
        (on.traces(transport=None), "warn", "never measured"),
        (proof(driver_version="570.1"), "warn", "before the kernel or the driver changed"),
        (
            proof(reason="data went over tcp", lane="tcp", best_gb_s=0.4, remedy="loosen Yama"),
            "fail",
            "0.40 GB/s over tcp: data went over",
        ),
        (
            proof(reason="5.0 GB/s over NVLink", lane="cuda_ipc", best_gb_s=5.0, remedy="run it on an idle node"),
            "warn",
            "5.00 GB/s over cuda_ipc",
        ),
        (on.engine_env("decode", UCX_TLS="cuda_ipc,tcp"), "warn", "measured before UCX_TLS of decode changed"),
        (
            lambda scene: replace(scene, hand_off_problem="transport: the initiator ended: NIXL_ERR_BACKEND"),
            "fail",
            "NIXL_ERR_BACKEND",
        ),
    ],
    "links.all-reduce": [
        (
            proof(
                collectives=(Collective(engine="prefill", gpus=(0, 1, 2, 3), bus_gb_s=0.0, problem="did not end"),),
            ),
            "fail",
            "prefill: did not end",
        ),
    ],
    "numa.known": [(on.gpu(2, numa_node=None), "warn", "names no node for GPU 2")],
    "numa.groups": [
        (
            on.spec(
                "engines.prefill.gpus=[0,1,4,5]",
                "engines.prefill.cross_socket=true",
                "engines.decode.gpus=[2,3,6,7]",
                "engines.decode.cross_socket=true",
            ),
            "warn",
            "prefill, decode spans sockets",
        ),
    ],
    "numa.apart": [
        (
            on.spec(
                "engines.prefill.tp=2", "engines.prefill.gpus=[0,1]", "engines.decode.tp=2", "engines.decode.gpus=[2,3]"
            ),
            "warn",
            "share node 0",
        ),
    ],
    "numa.memory": [
        (
            on.spec("memory.host_bytes_per_engine=600000000000"),
            "fail",
            "NUMA node 0: 558.8 GiB needed, 512.0 GiB free",
        ),
    ],
    "numa.cpus": [
        (
            on.change_engine(
                "decode",
                lambda service: service.model_copy(
                    update={"placement": service.placement.model_copy(update={"cpus": (48, 49)})}
                ),
            ),
            "warn",
            "decode: fewer than 4 CPUs",
        ),
    ],
    "numa.balancing": [(on.kernel(numa_balancing=1), "warn", "numa_balancing = 1")],
    "numa.owner": [(on.engine_env("decode", SGLANG_NUMA_BIND_V2="1"), "warn", "decode: SGLang binds as well")],
    "memory.host": [
        (
            on.spec("memory.host_bytes_per_engine=2000000000000"),
            "fail",
            "3725.3 GiB needed, 1536.0 GiB available",
        ),
    ],
    "memory.cgroup": [(on.host(memory_limit_bytes=GIB), "fail", "memory.max is 1.0 GiB, the plan needs 74.5 GiB")],
    "memory.engram": [
        (
            on.spec(HOST_TABLES, "memory.engram_bytes=900000000000"),
            "fail",
            "2 copies of 838.2 GiB are 1676.4 GiB, 1536.0 GiB available",
        ),
    ],
    "memory.shm": [
        (on.memory(shm_free_bytes=GIB), "fail", "1.0 GiB free, 31.7 GiB needed"),
        (on.memory(shm_free_bytes=None), "fail", "no shared memory"),
    ],
    "memory.memlock": [
        (on.facts(limits=lock_memory(8388608, None)), "warn", "this shell may lock 8 MiB"),
        (on.host(init_limits=lock_memory(8388608, 8388608)), "warn", "process 1 itself is limited to 8388608 bytes"),
    ],
    "memory.open-files": [
        (on.facts(limits=lock_memory(None, None)), "warn", "at most 1024"),
        (on.facts(limits=None), "warn", "cannot be read"),
    ],
    "memory.shared-huge-pages": [
        (
            lambda scene: on.kernel(shmem_enabled="never")(on.spec(HOST_TABLES)(scene)),
            "fail",
            "shmem_enabled is never",
        ),
    ],
    "memory.huge-pages": [(on.kernel(thp_enabled="never"), "warn", "transparent huge pages are off")],
    "memory.swap": [(on.memory(swap_total_bytes=8 * GIB, swap_free_bytes=2 * GIB), "warn", "6.0 GiB swapped out")],
    "memory.overcommit": [(on.kernel(overcommit=2), "fail", "vm.overcommit_memory = 2")],
    "memory.maps": [(on.kernel(max_map_count=65530), "warn", "vm.max_map_count = 65530")],
    "kernel.version": [
        (on.facts(kernel_release="5.4.0-generic"), "fail", "lacks pidfd_getfd"),
        (on.facts(kernel_release=None), "warn", "does not say"),
    ],
    "kernel.ptrace": [(on.kernel(ptrace_scope=1), "fail", "kernel.yama.ptrace_scope = 1")],
    "kernel.copying": [
        (
            lambda scene: replace(scene, copying=Copying(pidfd_getfd="killed by SIGSYS", process_vm_readv="ok")),
            "fail",
            "pidfd_getfd: killed by SIGSYS",
        ),
    ],
    "kernel.namespace": [(on.host(first_pid_namespace=False), "warn", "a PID namespace of its own")],
    "kernel.tasks": [(on.host(pids_limit=4096), "warn", "pids.max = 4096")],
    "kernel.governor": [(on.host(governors=("performance", "powersave")), "warn", "CPU governor powersave")],
    "files.state": [
        (on.place("state", writable=False), "fail", "/srv/state is not writable"),
        (on.place("state", free_bytes=500_000_000), "fail", "0.5 GB free in /srv/state, 1.0 GB needed"),
    ],
    "files.cache": [(on.place("cache", free_bytes=2 * on.GB), "fail", "2.0 GB free in /srv/cache, 20.0 GB needed")],
    "files.file-count": [(on.place("cache", free_files=12), "fail", "12 files can still be made in /srv/cache")],
    "files.temporary": [
        (on.place("temporary", noexec=True), "fail", "mounted noexec"),
        (on.place("temporary", writable=False), "fail", "not writable"),
    ],
    "files.model": [
        (
            on.checkpoint(problems=(Problem("is missing", "/m/config.json", "fetch it again"),) * 2),
            "fail",
            "/m/config.json: is missing (and 1 more)",
        ),
    ],
    "files.digests": [(on.checkpoint(has_digests=False), "warn", "no digest of")],
    "files.revision": [
        (on.spec("model.revision=fb2764a5"), "fail", "revision fb2764a5: its encoder is the pre-release's"),
        (on.spec("model.revision=''"), "warn", "model.revision is empty"),
        (on.spec("model.revision=abcdef12"), "warn", "is not dba1be0a"),
    ],
    "files.local": [(on.place("model", filesystem="nfs4"), "warn", "/srv/model is nfs4")],
    "files.load-time": [
        (on.checkpoint(read_bytes_per_s=0.2 * on.GB), "warn", "510.0 GB at 0.20 GB/s: about 42 min cold"),
    ],
    "files.user": [(on.host(users=("root",)), "warn", "there is no user dsv41")],
    "files.crash-dumps": [(on.place("crash", writable=False), "warn", "/srv/crash is not writable")],
    "network.ports": [
        (listen(30100, 4242), "fail", "port 30100 is in use by pid 4242 (python3 -m old)"),
        (listen(30001, None), "fail", "port 30001 is in use by a process of uid 1000"),
    ],
    "network.ephemeral": [
        (
            on.host(port_range=(1024, 60999), reserved_ports=(8998, 29000)),
            "warn",
            "port 30001,30100,30101,30102,30200,30201,30202 may",
        ),
    ],
    "network.bootstrap": [
        (on.engine_word("decode", "8998", "9999"), "fail", "prefill: 8998, decode: 9999"),
    ],
    "network.loopback": [(on.host(loopback_up=False), "fail", "lo is down")],
    "network.exposure": [
        (
            on.spec("router.host=10.0.0.5", "router.api_key_file=/etc/dsv41/key"),
            "warn",
            "listens on 10.0.0.5 in plain HTTP",
        ),
    ],
    "network.secrets": [
        (on.secret("router.api_key_file", exists=False), "fail", "router.api_key_file: /etc/dsv41/key"),
        (on.secret("router.tls_key_file", open_to_others=True), "warn", "others may read /etc/dsv41/key"),
    ],
    "network.backlog": [(on.host(somaxconn=128), "warn", "net.core.somaxconn = 128")],
    "leftovers.orphans": [
        (on.traces(leftovers=(Leftover("decode", (77, 78), (), ()),)), "fail", "decode: pid 77, 78"),
    ],
    "leftovers.shared-memory": [
        (on.traces(leftovers=(Leftover("decode", (), ("nccl-a", "nccl-b"), ()),)), "warn", "2 segments in /dev/shm"),
    ],
    "leftovers.sockets": [
        (on.traces(leftovers=(Leftover("decode", (), (), ("/tmp/dsv41-decode-x",)),)), "warn", "/tmp/dsv41-decode-x"),
    ],
    "leftovers.records": [(on.traces(stale=("prefill",)), "warn", "prefill is recorded as running and is gone")],
    "leftovers.strangers": [
        (
            on.traces(strangers=(on.process(99, "sglang::scheduler   "),)),
            "warn",
            "1 not recorded here, never touched by --clean; first pid 99 of uid 1000: sglang::scheduler",
        ),
    ],
}


def ask(scene: Scene, name: str) -> Outcome:
    """Return the answer of one check."""
    report = run_checks(scene)
    return next(answer.outcome for answer in report.answers if answer.check == name)


@pytest.fixture
def node(facts_of: Callable[[str], Facts]) -> Scene:
    """Return an H200 node on which nothing is wrong."""
    return on.good_scene(facts_of("two-socket-8gpu"), "h200x8")


def test_the_list_of_cases_is_complete() -> None:
    """A check without a failing case proves nothing."""
    assert sorted(WRONG) == sorted(NAMES)
    assert len(NAMES) >= 40


def test_all_is_well_on_a_good_node(node: Scene) -> None:
    """Nothing fails; the one warning is that nobody has run the values of this profile."""
    report = run_checks(node)
    assert [(a.check, a.outcome.seen) for a in report.answers if a.outcome.verdict == "fail"] == []
    assert [a.check for a in report.answers if a.outcome.verdict == "warn"] == ["settings.values"]
    assert all(not a.outcome.remedy for a in report.answers if a.outcome.verdict == "pass")
    # Host tables and files with keys are not used on this node; every other question arises.
    assert report.not_applicable == ("memory.engram", "memory.shared-huge-pages", "network.secrets")


def test_a_closed_file_with_a_key_passes(node: Scene) -> None:
    """A certificate may be read by all."""
    scene = on.secret("router.api_key_file")(on.secret("router.tls_cert_file", open_to_others=True)(node))
    assert ask(scene, "network.secrets").verdict == "pass"


def test_packages_that_a_node_does_not_need_may_be_absent(node: Scene) -> None:
    """It installs what its extras name; the lock also holds development tools."""
    absent = (LockDifference(name="pytest", wanted="8.0", found=None),)
    assert (
        ask(on.packages(differences=absent)(node), "versions.lock").seen
        == "259 packages as locked, 1 not installed here"
    )


def test_without_gpus_a_slow_lane_is_a_warning(facts_of: Callable[[str], Facts]) -> None:
    """The embedded stack hands over through sockets as well; a node of GPUs must not."""
    scene = on.kernel(ptrace_scope=1)(on.good_scene(facts_of("laptop"), "embedded"))
    scene = replace(scene, copying=Copying(pidfd_getfd="ok", process_vm_readv="Operation not permitted"))
    assert (ask(scene, "kernel.ptrace").verdict, ask(scene, "kernel.copying").verdict) == ("warn", "warn")


def test_tables_on_the_host_are_asked_about_where_they_are(node: Scene) -> None:
    scene = on.spec(HOST_TABLES)(node)
    assert ask(scene, "memory.engram").seen == "2 copies, 378.1 GiB"
    assert ask(scene, "memory.shared-huge-pages").verdict == "pass"


CASES = [
    pytest.param(name, *case, id=f"{name}-{number}")
    for name, cases in WRONG.items()
    for number, case in enumerate(cases)
]


@pytest.mark.parametrize(("name", "change", "verdict", "said"), CASES)
def test_what_is_wrong_is_said_with_a_remedy(
    node: Scene, name: str, change: Callable[[Scene], Scene], verdict: str, said: str
) -> None:
    """The verdict, the thing that is wrong with its values, and a command or setting that mends it."""
    outcome = ask(change(node), name)
    assert (outcome.verdict, said in outcome.seen) == (verdict, True), outcome
    assert outcome.remedy
    assert "\n" not in outcome.seen + outcome.remedy


def test_a_node_that_cannot_be_planned_is_still_looked_at(node: Scene) -> None:
    """A lost GPU must not hide a noexec /tmp; what needs a plan is not asked."""
    broken = on.place("temporary", noexec=True)(on.facts(gpus=node.facts.gpus[:6])(node))
    broken = on.spec()(broken)
    report = run_checks(broken)
    assert broken.made is None
    failures = [a.check for a in report.answers if a.outcome.verdict == "fail"]
    assert failures == ["settings.fit", "gpu.count", "files.temporary"]
    assert "network.ports" in report.not_applicable


def test_without_gpus_nothing_is_said_about_each_gpu(node: Scene) -> None:
    """An empty list is not a list of sound GPUs."""
    scene = on.spec()(on.facts(gpus=(), gpu_problem="no driver")(node))
    asked = {answer.check for answer in run_checks(scene).answers}
    assert {"gpu.driver", "gpu.count", "gpu.modules"} == {name for name in asked if name.startswith("gpu.")}


def test_what_runs_here_holds_its_ports_and_gpus_by_right(node: Scene) -> None:
    """A preflight beside a running stack does not call it a conflict."""
    running = on.traces(running=("prefill",), own_pids=frozenset({4242}))(node)
    running = on.gpu(0, processes=(4242,))(listen(30100, 4242)(running))
    assert ask(running, "network.ports").seen == "9 ports, held by what runs here"
    assert ask(running, "gpu.idle").verdict == "pass"
    assert "gpu.used" in run_checks(running).not_applicable


def test_beside_what_serves_its_memory_is_no_shortage_and_the_hand_off_is_not_measured(
    facts_of: Callable[[str], Facts],
) -> None:
    """So an upgrade can ask the new release while the old one serves."""
    idle = on.good_scene(facts_of("two-socket-8gpu"), "h200x8", HOST_TABLES)
    full = on.facts(memory=idle.facts.memory.model_copy(update={"available_bytes": GIB, "shm_free_bytes": GIB}))(idle)
    full = proof(kernel_release="older")(full)
    assert {"memory.engram", "memory.shm"} <= {
        row.check for row in run_checks(full).answers if row.outcome.verdict == "fail"
    }
    assert ask(full, "links.hand-off").verdict == "warn"
    beside = on.traces(running=("prefill",))(full)
    assert {"memory.engram", "memory.shm", "memory.host"} <= set(run_checks(beside).not_applicable)
    found = ask(beside, "links.hand-off")
    assert (found.verdict, found.seen) == (
        "pass", "measured before the kernel or the driver changed; the next start measures it, not beside what serves"
    )  # fmt: skip


def test_a_hand_off_to_another_host_needs_no_proof_on_this_one(facts_of: Callable[[str], Facts]) -> None:
    """`dsv41 transport prove` moves memory within one host; the gate of the router sees what moves between them."""
    layout = (
        'node.name="a"', "engine.cross_host=true", 'router.api_key_file="/etc/key"',
        'hosts.a.address="192.0.2.1"', 'hosts.a.services=["prefill","router"]',
        'hosts.b.address="192.0.2.2"', 'hosts.b.services=["decode"]',
    )  # fmt: skip
    report = run_checks(on.good_scene(facts_of("laptop"), "embedded", *layout))
    answers = {answer.check: answer.outcome.verdict for answer in report.answers}
    assert "links.hand-off" not in answers
    assert answers["network.exposure"] == "warn"
    assert report.passed


@pytest.mark.parametrize("machine", ["laptop", "two-socket-8gpu"])
def test_the_embedded_profile_passes_on_any_machine(facts_of: Callable[[str], Facts], machine: str) -> None:
    scene = on.good_scene(facts_of(machine), "embedded")
    report = run_checks(scene)
    assert report.passed
    assert not [answer.check for answer in report.answers if answer.check.startswith("gpu.")]
    assert len(report.answers) >= 35


def test_json_says_the_same_as_the_lines(node: Scene) -> None:
    report = run_checks(on.host(loopback_up=False)(node))
    rows = report.as_json()
    assert rows["passed"] is False
    assert rows["counts"] == {"pass": len(rows["checks"]) - 2, "warn": 1, "fail": 1}
    assert {
        "check": "network.loopback",
        "verdict": "fail",
        "seen": "lo is down",
        "remedy": "sudo ip link set lo up",
    } in rows["checks"]
    lines = [line.plain for line in report.as_lines()]
    assert "fail  network.loopback          lo is down; mend: sudo ip link set lo up" in lines
    assert (
        lines[-1] == f"{len(rows['checks'])} checks: {rows['counts']['pass']} pass, 1 warn, 1 fail; 3 do not apply here"
    )
