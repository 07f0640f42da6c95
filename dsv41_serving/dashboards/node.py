"""The node board: GPUs, where memory lies, links, and the host."""

from __future__ import annotations

from dsv41_serving.dashboards.annotations import ANNOTATIONS
from dsv41_serving.dashboards.panel import Board, Panel, Query, Row, Step
from dsv41_serving.dashboards.promql import rate, select, total_rate

_BUSY = 'mode!="idle"'
_ROOT_DISKS = 'fstype!~"tmpfs|overlay|squashfs|ramfs|devtmpfs"'
_REAL_LINKS = 'device!~"lo|veth.*|docker.*|br.*|ifb.*|dummy.*"'

NO_GPU = "no GPU driver on this node"

GPUS = Row(
    title="GPUs",
    panels=(
        Panel(
            title="GPUs now",
            question="Which GPU is which, and where does it sit?",
            kind="table",
            unit="short",
            queries=(Query(select("dsv41_gpu_info"), "{{gpu}}"),),
            empty=NO_GPU,
            width=12,
        ),
        Panel(
            title="Utilisation",
            question="Do all GPUs of a group work alike?",
            kind="lines",
            unit="percentunit",
            queries=(Query(select("dsv41_gpu_utilization_ratio"), "GPU {{gpu}}"),),
            empty=NO_GPU,
            width=6,
            bounds=(0, 1),
        ),
        Panel(
            title="GPU memory",
            question="How much GPU memory is left?",
            kind="lines",
            unit="percentunit",
            queries=(
                Query(
                    f"{select('dsv41_gpu_memory_used_bytes')} / {select('dsv41_gpu_memory_total_bytes')}", "GPU {{gpu}}"
                ),
            ),
            empty=NO_GPU,
            width=6,
            bounds=(0, 1),
            steps=(Step(0.97, "red"),),
        ),
        Panel(
            title="Power",
            question="Does a GPU draw less than its neighbours?",
            reading="Low power under load: the work is not on the tensor cores, or the clocks are held down.",
            kind="lines",
            unit="watt",
            queries=(Query(select("dsv41_gpu_power_watts"), "GPU {{gpu}}"),),
            empty=NO_GPU,
            width=6,
        ),
        Panel(
            title="Temperature",
            question="Is cooling sufficient?",
            kind="lines",
            unit="celsius",
            queries=(Query(select("dsv41_gpu_temperature_celsius"), "GPU {{gpu}}"),),
            empty=NO_GPU,
            width=6,
            steps=(Step(80, "yellow"), Step(90, "red")),
        ),
        Panel(
            title="Clocks",
            question="Do the multiprocessors run at full clock?",
            kind="lines",
            unit="hertz",
            queries=(Query(select("dsv41_gpu_sm_clock_hertz"), "GPU {{gpu}}"),),
            empty=NO_GPU,
            width=6,
        ),
        Panel(
            title="Throttled",
            question="What holds the clocks down?",
            kind="lines",
            unit="short",
            queries=(Query(f"{select('dsv41_gpu_throttled')} > 0", "GPU {{gpu}}: {{reason}}"),),
            empty="no clock is held down",
            reach=2,
            width=6,
            steps=(Step(1, "red"),),
            alerts=("Dsv41GpuThrottled",),
        ),
        Panel(
            title="Xid errors",
            question="Did the driver report an error, and which one?",
            kind="lines",
            unit="short",
            queries=(Query(select("dsv41_gpu_xid_errors_total"), "GPU {{gpu}}: Xid {{xid}}"),),
            empty="no Xid so far",
            reach=2,
            width=6,
            steps=(Step(1, "red"),),
            alerts=("Dsv41GpuXid", "Dsv41GpuXidMinor"),
        ),
        Panel(
            title="ECC errors and remapped rows",
            question="Is GPU memory wearing out?",
            reading="A pending remap needs a reset; a failed one a new GPU.",
            kind="lines",
            unit="short",
            queries=(
                Query(f"increase({select('dsv41_gpu_ecc_errors_total')}[1h])", "GPU {{gpu}}: {{kind}} in 1 h"),
                Query(select("dsv41_gpu_remapped_rows"), "GPU {{gpu}}: rows, {{cause}}"),
                Query(f"{select('dsv41_gpu_remap_pending')} > 0", "GPU {{gpu}}: remap pending"),
                Query(f"{select('dsv41_gpu_remap_failed')} > 0", "GPU {{gpu}}: remap FAILED"),
            ),
            empty=NO_GPU,
            reach=2,
            width=6,
            steps=(Step(1, "red"),),
            alerts=("Dsv41GpuMemoryWorn",),
        ),
        Panel(
            title="Memory bandwidth",
            question="Which share of its memory bandwidth does each GPU use?",
            kind="lines",
            unit="percentunit",
            queries=(Query(select("dsv41_gpu_memory_bandwidth_ratio"), "GPU {{gpu}}"),),
            empty=NO_GPU,
            width=6,
            bounds=(0, 1),
        ),
        Panel(
            title="Tensor cores",
            question="Do the tensor cores of all GPUs of a group work alike?",
            kind="lines",
            unit="percentunit",
            queries=(Query(select("dsv41_gpu_tensor_active_ratio"), "GPU {{gpu}}"),),
            empty=NO_GPU,
            width=6,
            bounds=(0, 1),
        ),
        Panel(
            title="NVLink",
            question="How much do GPUs exchange?",
            kind="lines",
            unit="Bps",
            queries=(
                Query(total_rate("dsv41_gpu_nvlink_bytes_total", by=("gpu", "direction")), "GPU {{gpu}} {{direction}}"),
            ),
            empty=NO_GPU,
            width=8,
        ),
        Panel(
            title="PCIe",
            question="How much goes between host and GPU?",
            reading="Engram tables in host memory and a hand-off without NVLink go this way.",
            kind="lines",
            unit="Bps",
            queries=(
                Query(total_rate("dsv41_gpu_pcie_bytes_total", by=("gpu", "direction")), "GPU {{gpu}} {{direction}}"),
            ),
            empty=NO_GPU,
            width=8,
        ),
        Panel(
            title="PCIe replays",
            question="Is a slot or riser failing?",
            kind="lines",
            unit="short",
            queries=(Query(rate("dsv41_gpu_pcie_replays_total"), "GPU {{gpu}} per second"),),
            empty=NO_GPU,
            reach=12,
            width=8,
            steps=(Step(1, "yellow"), Step(10, "red")),
            alerts=("Dsv41PcieReplays",),
        ),
    ),
)

ENGINES_ON_NODE = Row(
    title="Services and where their memory lies",
    panels=(
        Panel(
            title="Processor time by service",
            question="Which service needs the processors?",
            kind="stack",
            unit="short",
            queries=(Query(rate("dsv41_service_cpu_seconds_total"), "{{service}} cores"),),
            width=8,
        ),
        Panel(
            title="Resident memory by service",
            question="Which service needs host memory?",
            kind="stack",
            unit="bytes",
            queries=(Query(select("dsv41_service_resident_bytes"), "{{service}}"),),
            width=8,
            alerts=("Dsv41HostMemoryLow",),
        ),
        Panel(
            title="Memory by NUMA node",
            question="On which NUMA node does the memory of each engine really lie?",
            kind="stack",
            unit="bytes",
            queries=(Query(select("dsv41_numa_resident_bytes"), "{{service}} on node {{numa_node}}"),),
            width=8,
        ),
        Panel(
            title="Memory on the wrong node",
            question="How much memory of an engine lies outside the NUMA node of its plan?",
            empty="no engine is bound to a NUMA node",
            kind="lines",
            unit="bytes",
            queries=(Query(select("dsv41_numa_foreign_bytes"), "{{service}}"),),
            width=8,
            steps=(Step(1e9, "yellow"), Step(1e10, "red")),
            alerts=("Dsv41ForeignPages",),
        ),
        Panel(
            title="Restarts",
            question="Which service has been restarted?",
            kind="lines",
            unit="short",
            queries=(Query(select("dsv41_service_restarts_total"), "{{service}}"),),
            reach=4,
            width=8,
            steps=(Step(1, "yellow"), Step(3, "red")),
            alerts=("Dsv41Restarted",),
        ),
        Panel(
            title="Age of the last start",
            question="Since when does each service run?",
            kind="bars",
            unit="s",
            queries=(Query(f"time() - {select('dsv41_service_started_timestamp_seconds')}", "{{service}}"),),
            width=8,
            base="blue",
        ),
    ),
)

HOST = Row(
    title="Host",
    panels=(
        Panel(
            title="Processors",
            question="What are the cores doing?",
            kind="stack",
            unit="percentunit",
            queries=(Query(f"avg by (mode) ({rate('node_cpu_seconds_total', _BUSY)})", "{{mode}}"),),
            width=8,
            bounds=(0, 1),
        ),
        Panel(
            title="Host memory",
            question="Is there memory left for pinned tables and the page cache?",
            kind="stack",
            unit="bytes",
            queries=(
                Query(
                    f"{select('node_memory_MemTotal_bytes')} - {select('node_memory_MemAvailable_bytes')}",
                    "not available",
                ),
                Query(f"{select('node_memory_Cached_bytes')} + {select('node_memory_Buffers_bytes')}", "page cache"),
                Query(select("node_memory_MemFree_bytes"), "free"),
            ),
            width=8,
            alerts=("Dsv41HostMemoryLow",),
        ),
        Panel(
            title="Huge pages and locked memory",
            question="How much memory is reserved or pinned?",
            kind="lines",
            unit="bytes",
            queries=(
                Query(
                    f"{select('node_memory_HugePages_Total')} * {select('node_memory_Hugepagesize_bytes')}",
                    "huge pages",
                ),
                Query(select("node_memory_Mlocked_bytes"), "locked"),
                Query(select("node_memory_Shmem_bytes"), "shared memory"),
            ),
            width=8,
        ),
        Panel(
            title="Free space",
            question="Will the disks for model and logs last?",
            kind="lines",
            unit="percentunit",
            queries=(
                Query(
                    f"{select('node_filesystem_avail_bytes', _ROOT_DISKS)} / {select('node_filesystem_size_bytes', _ROOT_DISKS)}",
                    "{{mountpoint}}",
                ),
            ),
            width=8,
            bounds=(0, 1),
            base="red",
            steps=(Step(0.05, "yellow"), Step(0.15, "green")),
            alerts=("Dsv41DiskFull",),
        ),
        Panel(
            title="Disk reads",
            question="How fast do weights load?",
            kind="lines",
            unit="Bps",
            queries=(Query(total_rate("node_disk_read_bytes_total", by=("device",)), "{{device}}"),),
            width=8,
        ),
        Panel(
            title="Network",
            question="What goes in and out of the node?",
            kind="lines",
            unit="Bps",
            queries=(
                Query(total_rate("node_network_receive_bytes_total", _REAL_LINKS, by=("device",)), "{{device}} in"),
                Query(total_rate("node_network_transmit_bytes_total", _REAL_LINKS, by=("device",)), "{{device}} out"),
            ),
            width=8,
        ),
    ),
)

MONITORING = Row(
    title="Monitoring itself",
    panels=(
        Panel(
            title="Targets",
            question="Does every page answer Prometheus?",
            kind="bars",
            unit="short",
            queries=(Query(select("up"), "{{job}}"),),
            width=12,
            base="red",
            steps=(Step(1, "green"),),
            bounds=(0, 1),
            alerts=("Dsv41TargetMissing",),
        ),
        Panel(
            title="Scrape time",
            question="What does looking cost?",
            kind="lines",
            unit="s",
            queries=(Query(select("scrape_duration_seconds"), "{{job}}"),),
            width=6,
            steps=(Step(0.15, "yellow"), Step(1, "red")),
        ),
        Panel(
            title="Collectors of the exporter",
            question="Which collector is slow?",
            kind="lines",
            unit="s",
            queries=(Query(select("dsv41_exporter_collect_seconds"), "{{collector}}"),),
            width=6,
            alerts=("Dsv41ExporterFailing",),
        ),
    ),
)

BOARD = Board(
    uid="dsv41-node",
    title="DeepSeek-V4.1: node",
    description="GPUs, NUMA placement, links and the host below the services.",
    rows=(GPUS, ENGINES_ON_NODE, HOST, MONITORING),
    annotations=ANNOTATIONS,
)
