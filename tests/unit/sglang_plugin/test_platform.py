"""The platform as SGLang finds it: chosen by name only, patched before the workers start, loud on another version."""

import subprocess
import threading
from collections.abc import Callable

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]

APPLY_THE_TABLE = """
from sglang.srt.platforms import current_platform
current_platform.apply_server_args_defaults(None)
current_platform.init_backend()
import ctypes, nixl._api, nixl._bindings
agent = nixl._api.nixl_agent("test", nixl._api.nixl_agent_config(backends=["UCX"]))
memory = ctypes.create_string_buffer(4096)
descriptors = agent.register_memory([(ctypes.addressof(memory), 4096, 0, "")], "VRAM")
print("memory", descriptors.getType() == nixl._bindings.DRAM_SEG)
agent.deregister_memory(descriptors)
config = nixl._bindings.nixlAgentConfig()
nixl._bindings.nixlAgent("other", config)
print("delay", config.pthrDelay)
from sglang.srt.managers.load_snapshot import shm_path_for
import tempfile
print("snapshot", shm_path_for("abc") == tempfile.gettempdir() + "/loads-abc")
from dsv41_serving.sglang_plugin.models.llama import EntryClass
print("model", EntryClass.__module__, EntryClass.__name__)
"""


def test_platform_is_not_offered_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang asks every installed platform when `SGLANG_PLATFORM` is unset; a GPU node must get none from us."""
    from dsv41_serving.sglang_plugin import platform

    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    assert platform.activate() is None
    monkeypatch.setenv("SGLANG_PLATFORM", "another")
    assert platform.activate() is None
    monkeypatch.setenv("SGLANG_PLATFORM", "dsv41_embedded")
    assert platform.activate() == "dsv41_serving.sglang_plugin.platform:EmbeddedPlatform"


def test_sglang_resolves_the_platform_and_every_patch_is_in_force(run_python: RunPython) -> None:
    """The whole table against the installed SGLang and NIXL, with a real NIXL agent and UCX behind it."""
    done = run_python(APPLY_THE_TABLE)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert "memory True" in lines
    assert "delay 100000" in lines
    assert "snapshot True" in lines
    assert "model sglang.srt.models.llama LlamaForCausalLM" in lines


def test_another_sglang_stops_the_start(run_python: RunPython) -> None:
    """SGLang catches what a plugin raises; the process ends all the same, and the last line says why."""
    done = run_python(
        "from sglang.srt.platforms import current_platform\ncurrent_platform.device_name\nprint('went on')",
        versions={"sglang": "0.5.24"},
    )
    assert done.returncode == 2
    assert "went on" not in done.stdout
    assert done.stderr.splitlines()[-1] == (
        "dsv41_embedded: sglang 0.5.24 is installed, the patches are for 0.5.23; "
        "install the versions of requirements.lock"
    )


@pytest.mark.parametrize("step", ["apply_server_args_defaults", "init_backend"])
def test_a_drifted_row_ends_server_and_scheduler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], step: str
) -> None:
    """Both places where SGLang calls the platform end the process when a target went."""
    from dsv41_serving.sglang_plugin import platform
    from dsv41_serving.sglang_plugin.drift import Patch

    gone = Patch("sglang.srt.gone.start", "()", "replace", lambda: None, why="a test", effect="a test")
    monkeypatch.setattr(platform, "_patches", lambda: [gone])
    arguments = [None] if step == "apply_server_args_defaults" else []
    with pytest.raises(SystemExit) as caught:
        getattr(platform.EmbeddedPlatform(), step)(*arguments)
    assert caught.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith("dsv41_embedded: sglang.srt.gone.start: not found")
    assert "installed is sglang 0.5.23, the patch is for 0.5.23" in line


def test_a_server_with_threads_is_not_forked(capsys: pytest.CaptureFixture[str]) -> None:
    """A fork would copy one thread and the locks of the others."""
    from dsv41_serving.sglang_plugin import patches

    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with pytest.raises(SystemExit) as caught:
            patches.fork_workers(None, None)
    finally:
        stop.set()
        thread.join()
    assert caught.value.code == 2
    assert "threads before it starts its workers" in capsys.readouterr().err


def test_mask_forbids_tokens_on_cpu() -> None:
    """One bit per token, lowest bit first: 0b101 allows tokens 0 and 2."""
    from dsv41_serving.sglang_plugin import patches

    logits = torch.zeros(1, 32)
    patches.mask_on_cpu(logits, torch.tensor([[0b101]], dtype=torch.int32))
    assert torch.isinf(logits[0]).tolist() == [token not in (0, 2) for token in range(32)]


def test_the_checksum_on_a_cpu_is_that_of_the_items_in_order() -> None:
    """Adler-32 of what stands at the given items of every pool; a byte elsewhere does not matter, one of theirs does."""
    import zlib
    from types import SimpleNamespace

    from dsv41_serving.sglang_plugin.patches import sum_on_cpu

    kv, state = torch.arange(40, dtype=torch.uint8).view(10, 4), torch.arange(100, 112, dtype=torch.uint8).view(2, 6)
    computer = SimpleNamespace(
        _kv_data_ptrs=[kv.data_ptr()],
        _kv_item_lens=[4],
        _state_data_ptrs=[state.data_ptr()],
        _state_item_lens=[6],
    )
    pages, rows = torch.tensor([3, 1]), torch.tensor([1])
    expected = zlib.adler32(bytes([12, 13, 14, 15, 4, 5, 6, 7, *range(106, 112)]))
    assert sum_on_cpu(computer, pages, rows) == expected
    kv[0, 0] = 99
    assert sum_on_cpu(computer, pages, rows) == expected
    kv[3, 0] = 99
    assert sum_on_cpu(computer, pages, rows) != expected
    assert sum_on_cpu(computer, torch.tensor([], dtype=torch.int64)) == 1
