# ruff: noqa: ARG001, PLR0917  (functions shaped like the engine's)
"""The plugin: what an operator may write, what is decided from it, and that every hook fits the installed engine."""

import inspect
import os
import pkgutil
import subprocess
import sys
import types

import pytest
import torch

from dsv41_kernels import check, layout, registry
from dsv41_kernels.op import UnsupportedProblemError
from dsv41_kernels.ops.compress import hooks as compress_hooks
from dsv41_kernels.ops.index_keys import hooks as index_hooks
from dsv41_kernels.ops.sparse_decode import hooks as decode_hooks
from dsv41_kernels.plugin import shadow, start
from dsv41_kernels.plugin.integration import Default, Hook, Integration
from dsv41_kernels.plugin.modes import Mode, PluginError, parse

KNOWN = ["compress", "sparse_decode"]


@pytest.mark.parametrize(
    ("text", "modes"),
    [
        ("", {}),
        ("compress=on", {"compress": Mode.ON}),
        (" compress = off , sparse_decode=SHADOW,", {"compress": Mode.OFF, "sparse_decode": Mode.SHADOW}),
        ("all=on,compress=off", {"compress": Mode.OFF, "sparse_decode": Mode.ON}),
    ],
)
def test_modes_are_read(text: str, modes: dict[str, Mode]):
    """Ops and modes in any case and spacing; `all` first, then what is named."""
    assert parse(text, KNOWN) == modes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("compress", "'compress' is not op=off, op=on or op=shadow"),
        ("compress=yes", "'compress=yes' is not op=off, op=on or op=shadow"),
        ("attention=on", "no op 'attention' can be hooked; known are all, compress, sparse_decode"),
    ],
)
def test_a_wrong_request_is_named(text: str, message: str):
    """The message repeats what was written and says what could be."""
    with pytest.raises(PluginError, match=message):
        parse(text, KNOWN)


def test_states_come_from_the_architecture_unless_asked():
    """On sm_90 the compressor is on by its measurement; the environment overrides; sm_100 keeps the engine's kernels."""
    known = start.integrations()

    def modes(text: str, capability: tuple[int, int]) -> dict[str, Mode]:
        return {integration.op: mode for integration, mode, _ in start.decide(known, text, capability)}

    hopper = modes("", (9, 0))
    assert (hopper["compress"], hopper["index_keys"], hopper["sparse_decode"]) == (Mode.ON, Mode.OFF, Mode.OFF)
    assert modes("compress=off,sparse_decode=on", (9, 0))["compress"] is Mode.OFF
    assert modes("compress=off,sparse_decode=on", (9, 0))["sparse_decode"] is Mode.ON
    assert modes("", (10, 0))["compress"] is Mode.OFF


def test_an_op_that_cannot_serve_the_gpu_is_refused():
    """Asking for a kernel on a GPU without its instructions stops the start and says how to go on."""
    with pytest.raises(
        PluginError, match=r"sparse_decode cannot be on here: compute capability 8\.9 .* set sparse_decode=off"
    ):
        start.decide(start.integrations(), "sparse_decode=on", (8, 9))


def test_every_default_that_is_on_cites_its_measurement():
    """No op is on without a number."""
    for integration in start.integrations():
        for capability in ((9, 0), (10, 0), (10, 3), (12, 0)):
            default = integration.default(capability)
            assert default.mode is Mode.OFF or "RESULTS.md" in default.reason
            assert default.mode is not Mode.SHADOW


def test_the_start_up_gate_runs_a_small_problem_that_exists():
    """Each integration names a correctness problem of its op, so that start-up stays short."""
    for integration in start.integrations():
        assert registry.load(integration.op).problem(integration.check).kind == "correctness"


def test_a_failed_self_check_stops_the_start(monkeypatch: pytest.MonkeyPatch):
    """The first fault is in the message, with the way to start without the op."""
    monkeypatch.setattr(check, "check", lambda *_: check.Verdict(("latent: relative error 1.0 above 3e-03",), {}))
    decided = [(integration, Mode.ON, "") for integration in start.integrations() if integration.op == "compress"]
    with pytest.raises(
        PluginError, match=r"compress: self-check failed .* relative error 1\.0 .* DSV41_KERNELS=compress=off"
    ):
        start.gate(decided, "cpu")


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.ON, Mode.SHADOW])
def test_the_table_says_how_every_op_runs(mode: Mode):
    """Ops with hooks by their state; those that another's hooks run by that one's; the others by who calls them."""
    decided = [
        (integration, mode if integration.op == "candidate_scores" else Mode.OFF, "asked")
        for integration in start.integrations()
    ]
    rows = {line.split()[1]: line.split()[2:] for line in start.describe(decided)[1:]}
    assert set(rows) == set(registry.names())
    assert rows["candidates"] == [mode.value, "runs", "within", "candidate_scores"]
    assert rows["index_scores"][0] == "off"
    assert (" ".join(rows["index_scores"]).endswith("asked; candidate_scores runs it too")) is (mode is not Mode.OFF)
    for op in ("pack", "unpack"):
        assert rows[op] == ["library", "called", "by", "dsv41_serving.sglang_plugin.handoff.pools.GpuCopier"]


def test_every_op_is_hooked_run_by_hooks_or_called():
    """And who is said to call it does: the source of the caller imports the launcher's module."""
    known = start.integrations()
    hooked = {integration.op for integration in known}.union(*(integration.runs for integration in known))
    for integration in known:
        source = inspect.getsource(sys.modules[f"dsv41_kernels.ops.{integration.op}.hooks"])
        for name, problem in integration.runs.items():
            assert f"from dsv41_kernels.ops.{name}.kernel import" in source
            assert registry.load(name).problem(problem).kind == "correctness"
    for op in registry.load_all():
        assert (op.name in hooked) is not bool(op.called_by)
        for caller in op.called_by:
            called = pkgutil.resolve_name(caller)
            source = inspect.getsource(called)
            module = registry.load(op.name).kernel.__module__.rpartition(".")[0]
            assert f"from {module} import kernel" in source
            assert callable(getattr(called, op.name))


def test_the_check_covers_what_the_hooks_run(monkeypatch: pytest.MonkeyPatch):
    """A fault of the selection stops a start that asks for candidate scores alone."""
    monkeypatch.setattr(
        check, "check", lambda op, *_: check.Verdict(("slots: 1 differ",) if op.name == "candidates" else (), {})
    )
    decided = [(each, Mode.ON, "") for each in start.integrations() if each.op == "candidate_scores"]
    with pytest.raises(PluginError, match=r"candidates: self-check failed .* slots: 1 differ; .*=candidate_scores=off"):
        start.gate(decided, "cpu")


def test_a_self_check_that_raises_is_one_line(monkeypatch: pytest.MonkeyPatch):
    """Whatever a compiler or a driver throws: its kind, its first line, and how to start without the op."""

    def raise_error(*_: object) -> None:
        raise RuntimeError("out of resource: shared memory\nRequired: 300000")

    monkeypatch.setattr(check, "check", raise_error)
    decided = [(integration, Mode.ON, "") for integration in start.integrations() if integration.op == "compress"]
    with pytest.raises(PluginError) as raised:
        start.gate(decided, "cuda")
    assert str(raised.value) == (
        "compress: self-check failed on this GPU: RuntimeError: out of resource: shared memory; set DSV41_KERNELS=compress=off"
    )


@pytest.mark.parametrize(
    ("text", "message"), [("compres=on", "no op 'compres' can be hooked"), ("compress=on", "there is no NVIDIA GPU")]
)
def test_a_wrong_name_is_told_before_the_missing_gpu(text: str, message: str, monkeypatch: pytest.MonkeyPatch):
    """Both are wrong on such a host; the name is what the operator can mend."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("DSV41_KERNELS", text)
    with pytest.raises(PluginError, match=message):
        start.start()


@pytest.mark.parametrize("op", ["compress", "sparse_decode"])
def test_an_unknown_layout_is_refused_by_its_name(op: str):
    """Such as the engine's interleaved ones."""
    op = registry.load(op)
    given = op.make_inputs(op.select("correctness")[0], torch.device("cpu"), 1)
    given |= {name: "v41_new" for name in ("layout", "window_layout") if name in given}
    with pytest.raises(UnsupportedProblemError, match="v41_new"):
        op.kernel(**given)


def test_a_call_with_nothing_to_compare_is_not_counted():
    """A check that compared nothing would look like agreement."""
    hook = Hook("t", ("x",), lambda *_: None, lambda original, call: (original(*call.args), None))
    integration = Integration("shadow-none", "", (hook,), lambda _: Default(Mode.OFF, ""), "", 0.01)
    around = shadow.wrap(integration, hook, lambda x: x + 1, every=1)
    assert around(lambda x: x + 1, 1) == 2
    assert shadow.CHECKS.labels("shadow-none")._value.get() == 0


def test_a_missing_target_or_another_signature_is_named():
    """Engine drift is a message with the target and both signatures, not a hook that silently does nothing."""
    with pytest.raises(PluginError, match=r"sglang\.no\.such: not found in the installed engine"):
        start.resolve(Hook("no.such", (), lambda *_: None))
    with pytest.raises(PluginError, match=r"parameters are \(.*\), expected \(other\)"):
        start.resolve(Hook("srt.plugins.load_plugins_by_group", ("other",), lambda *_: None))


_INSTALL = """
import warnings; warnings.simplefilter("ignore")
from dsv41_kernels.plugin import start
from dsv41_kernels.plugin.modes import Mode
from sglang.srt.plugins.hook_registry import HookRegistry
decided = [(integration, Mode.ON, "test") for integration in start.integrations()]
start.install(decided)
print("hooked", len(HookRegistry._patched), sum(len(integration.hooks) for integration, _, _ in decided))
from sglang.srt.layers.attention.dsv4 import dsv41_sparse
print("gate", dsv41_sparse.fused_low_ratio_compress_supported())
"""


def test_every_hook_takes_in_the_installed_engine():
    """The real SGLang: all targets exist with their signatures, the registry applies all hooks, the gate answers open."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, "-c", _INSTALL], check=False, capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr[-2000:]
    hooks = sum(len(integration.hooks) for integration in start.integrations())
    assert f"hooked {hooks} {hooks}" in result.stdout
    assert "gate True" in result.stdout


def test_shadow_compares_a_sample_and_counts_what_is_wrong():
    """Every third call is compared; the engine's result is returned; an error above the tolerance and a NaN are counted."""
    errors = iter([0.001, 0.5, float("nan")])
    hook = Hook("t", ("x",), lambda *_: None, lambda original, call: (original(*call.args), next(errors)))
    integration = Integration("shadow-test", "", (hook,), lambda _: Default(Mode.OFF, ""), "", 0.01)

    def original(x: int) -> int:
        return x + 1

    around = shadow.wrap(integration, hook, original, every=3)
    assert [around(original, x) for x in range(9)] == list(range(1, 10))
    assert shadow.CHECKS.labels("shadow-test")._value.get() == 3
    assert shadow.EXCEEDED.labels("shadow-test")._value.get() == 2
    assert shadow.ERROR.labels("shadow-test")._value.get() == float("inf")


def test_the_sample_rate_must_be_a_positive_integer(monkeypatch: pytest.MonkeyPatch):
    """Zero would divide by nothing, words would be ignored: both are refused."""
    for text in ("0", "often", "-1"):
        monkeypatch.setenv(shadow.VARIABLE, text)
        with pytest.raises(PluginError, match="is not a positive integer"):
            shadow.sample_every()


def _call(function: object, *args: object, **kwargs: object) -> inspect.BoundArguments:
    call = inspect.signature(function).bind(*args, **kwargs)
    call.apply_defaults()
    return call


def c1(kv_input, norm_weight, positions, out_loc, eps, freqs_cis, k_cache, *, page_size, layout="v4", out=None):
    """Shape of `c1_decode_norm_rope_store`."""


def c2_prefill(
    kv_input, kv_state, norm_weight, positions, req, raw_out_loc, eps, freqs_cis, k_cache, extend_start_loc,
    extend_seq_lens, *, page_size, ring_size, layout="v4", out=None,
):  # fmt: skip
    """Shape of `c2_prefill_norm_rope_store`."""


def index_k(input, norm_weight, eps, freqs_cis, positions, loc, cache, *, ratio):  # noqa: A002
    """Shape of `index_k_norm_rope_pack_store`."""


def test_compress_stands_behind_the_engines_calls():
    """Arguments as the backend passes them give the reference's latents and entries, for C1 and for a C2 extend."""
    op = registry.load("compress")
    one = op.make_inputs(op.problem("decode-c1-4-v4"), torch.device("cpu"), 1)
    call = _call(
        c1, one["kv"], one["norm_weight"], one["positions"], one["location"], 1e-6, one["table"], one["cache"],
        page_size=one["slots"], layout=types.SimpleNamespace(value="v4"),
    )  # fmt: skip
    latent = compress_hooks.run(c1, call)
    fresh = op.make_inputs(op.problem("decode-c1-4-v4"), torch.device("cpu"), 1)
    assert not op.compare({"latent": latent, "cache": one["cache"]}, op.reference(**fresh))

    name = "extend-c2-25-v41_fp4"
    two = op.make_inputs(op.problem(name), torch.device("cpu"), 1)
    fused = torch.cat([two["kv"], two["score"]], dim=1)
    out = torch.zeros(len(fused), 512, dtype=torch.bfloat16)
    call = _call(
        c2_prefill, fused, two["ring"], two["norm_weight"], two["positions"], two["request"], two["location"], 1e-6, two["table"],
        two["cache"], two["start"], two["length"], page_size=two["slots"], ring_size=two["ring_size"], layout="v41_fp4", out=out,
    )  # fmt: skip
    assert compress_hooks.run(c2_prefill, call) is out
    expected = op.reference(**op.make_inputs(op.problem(name), torch.device("cpu"), 1))
    assert not op.compare({"latent": out, "cache": two["cache"], "ring": two["ring"]}, expected)


def test_index_keys_stand_behind_the_engines_call():
    """Keys already projected, slots per page from the cache's width."""
    op = registry.load("index_keys")
    given = op.make_inputs(op.problem("projected"), torch.device("cpu"), 1)
    call = _call(
        index_k, given["latent"], given["norm_weight"], 1e-6, given["table"], given["positions"], given["location"],
        given["cache"], ratio=2,
    )  # fmt: skip
    index_hooks.run(index_k, call)
    expected = op.reference(**op.make_inputs(op.problem("projected"), torch.device("cpu"), 1))
    assert not op.compare({"cache": given["cache"]}, expected)


def test_sparse_decode_stands_behind_flashmla():
    """A query padded to 64 heads and the engine's views of padded pages: the real heads equal the reference."""
    op = registry.load("sparse_decode")
    given = op.make_inputs(op.problem("no-sink"), torch.device("cpu"), 1)
    rows, heads, dim = given["q"].shape
    padded = torch.zeros(rows, 1, 64, dim, dtype=torch.bfloat16)
    padded[:, 0, :heads] = given["q"]
    sink = torch.zeros(64)
    sink[:heads] = given["sink"]

    def view(cache: torch.Tensor) -> torch.Tensor:
        return cache[:, : 64 * 584].view(len(cache), 64, 1, 584)

    arguments = {
        "q": padded,
        "k_cache": view(given["window_cache"]),
        "indices": given["window_index"].unsqueeze(1),
        "topk_length": given["window_length"],
        "attn_sink": sink,
        "extra_k_cache": view(given["selected_cache"]),
        "extra_indices_in_kvcache": given["selected_index"].unsqueeze(1),
        "extra_topk_length": given["selected_length"],
        "softmax_scale": given["scale"],
    }
    out = decode_hooks.attend(heads, arguments)
    assert out.shape == padded.shape
    assert not check.faults({"out": out[:, 0, :heads]}, op.reference(**given), op.tolerances)


def test_sparse_decode_refuses_pages_that_are_not_v4():
    """Entries of another size, as the engine's V4.1 pools on sm_100 have, and pages of another stride."""
    with pytest.raises(ValueError, match=r"entries of 528 B .* are not V4"):
        decode_hooks._pages(torch.zeros(1, 64, 1, 528, dtype=torch.uint8))
    with pytest.raises(ValueError, match="every 37376 B are not V4"):
        decode_hooks._pages(torch.zeros(1, 64, 1, 584, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("op", "capability", "reason"),
    [
        ("sparse_decode", (10, 0), "pools have a V4.1 layout on this GPU"),
        ("sparse_decode", (12, 0), "decodes by a kernel of its own on this GPU"),
        ("index_scores", (10, 0), "index pages hold 128 keys on this GPU"),
        ("candidate_scores", (10, 3), "index pages hold 128 keys on this GPU"),
    ],
)
def test_what_the_engine_would_never_hand_over_is_refused_at_start(op: str, capability: tuple[int, int], reason: str):
    """Not at the first forward pass, and not by doing nothing."""
    with pytest.raises(PluginError, match=rf"{op} cannot be on here: .*{reason}.* set {op}=off"):
        start.decide(start.integrations(), f"all=off,{op}=on", capability)


def test_sparse_decode_is_served_on_sm_100_with_v4_pools(monkeypatch: pytest.MonkeyPatch):
    """The engine's variable chooses the layout."""
    monkeypatch.setenv("SGLANG_DSV4_KV_LAYOUT", "V4")
    decided = start.decide(start.integrations(), "sparse_decode=on", (10, 0))
    assert Mode.ON in {mode for integration, mode, _ in decided if integration.op == "sparse_decode"}


def test_head_count_is_noted_where_attention_is_called():
    """The hook on `_forward_attention` leaves the call alone and remembers the rank's real heads."""

    def forward(self, q, k, v, layer):
        return q + 1

    backend, layer = types.SimpleNamespace(), types.SimpleNamespace(tp_q_head_num=16)
    assert decode_hooks.note_heads(forward, _call(forward, backend, 1, None, None, layer)) == 2
    assert backend.dsv41_heads == 16


def test_registration_outside_a_scheduler_does_nothing(monkeypatch: pytest.MonkeyPatch):
    """The detokenizer and the HTTP server load the plugin too; nothing may be imported or hooked there."""
    monkeypatch.delitem(sys.modules, start._SCHEDULER, raising=False)
    before = set(sys.modules)
    start.register()
    assert not {name for name in set(sys.modules) - before if name.startswith("sglang")}


def test_pages_of_the_index_cache_are_what_the_layout_says():
    """The adapter derives slots per page from the cache's width: 64 keys of 68 B."""
    assert index_hooks._slots(torch.empty(1, 4352, dtype=torch.uint8)) == layout.INDEX_SLOTS
