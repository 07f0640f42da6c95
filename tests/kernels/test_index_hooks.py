"""The index ops behind the engine's functions: same arguments in, same buffers and objects out."""

import importlib
import inspect
import itertools
import math
import types
import warnings
from unittest import mock

import pytest
import torch

pytest.importorskip("sglang", reason="the engine is not installed: pip install -e .[engine]")

from dsv41_kernels.ops.candidate_scores import compare
from dsv41_kernels.ops.candidate_scores import hooks as candidate_hooks
from dsv41_kernels.ops.candidates import reference as selection
from dsv41_kernels.ops.index_scores import hooks, reference, scene

CPU = torch.device("cpu")
TOPK = 64
COUNT = 128


@pytest.fixture(scope="module")
def scoring() -> types.ModuleType:
    """The engine's scoring module; its import warns about absent accelerators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sglang.srt.layers.attention.dsv4.v41_indexer import scoring
    return scoring


def call(function, *args, **kwargs) -> inspect.BoundArguments:
    """A call of an engine function as the plugin hands it over."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound


def refuse(*_: object, **__: object) -> None:
    """An original that must not be reached."""
    pytest.fail("the engine's path was called")


class Indexer:
    """The engine's indexer with queries and weights given beforehand."""

    index_topk = TOPK

    def __init__(self, inputs: dict):
        self.inputs = inputs

    def queries(self, *_: object) -> torch.Tensor:
        return self.inputs["query"]

    def head_weights(self, _: object) -> torch.Tensor:
        return self.inputs["weight"]

    def scores(self, query: torch.Tensor, keys: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        products = torch.einsum("bhd,nd->bhn", query.float(), keys.float()).relu()
        return (products * weight.float()[:, :, None]).sum(dim=1)


def decode_case(newest: list[int], rows: int, ratio: int, spare_rows: int = 0):
    """A backend and decode inputs as the engine's attention backend makes them, and the same for the reference."""
    lengths = [scene.consecutive_lengths(length, rows, ratio) for length in newest]
    inputs = scene.make_scene(lengths, ratio=ratio, heads=16, max_length=1300, device=CPU, seed=5)
    count = sum(len(request) for request in lengths)
    positions = torch.cat(
        [torch.arange(length * ratio - rows, length * ratio) for length in newest]
    )  # the newest token completes the newest position
    backend = types.SimpleNamespace(
        req_to_token=inputs["table"],
        token_to_kv_pool=types.SimpleNamespace(get_index_k_with_scale_buffer=lambda _: inputs["keys"]),
        topk_blocks=COUNT,
    )
    engine_inputs = types.SimpleNamespace(
        indexer=Indexer(inputs),
        layer_id=20,
        compress_ratio=ratio,
        freqs_cis=torch.zeros(8000, 1),
        x=None,
        q_lora=None,
        positions=positions,
        req_rows=inputs["request"],
        paged_metadata=types.SimpleNamespace(max_compressed_seq_len=1300, rows_per_request=rows),
        out_page_indices=torch.full((count + spare_rows, TOPK), 77, dtype=torch.int32),
    )
    return backend, engine_inputs, inputs


@pytest.mark.usefixtures("scoring")
@pytest.mark.parametrize(("rows", "ratio"), [(1, 1), (6, 1), (6, 2)])
def test_source_and_consumer_fill_the_engines_buffers(rows: int, ratio: int):
    """Decode and verify: slots as the float64 reference selects them, spare rows of a captured graph -1, consumer likewise."""
    from sglang.srt.layers.attention.dsv4.v41_indexer.dense_blocks import DenseBlocksBackend

    backend, engine_inputs, inputs = decode_case([1100] if rows > 1 else [1100, 40], rows, ratio, spare_rows=2)
    published = candidate_hooks.run_publish(refuse, call(DenseBlocksBackend.publish_decode, backend, engine_inputs))
    full = reference.index_scores(**inputs, ratio=ratio, max_length=1300)
    shared = {name: inputs[name] for name in ("length", "request", "table")}
    expected = selection.candidates(**full, **shared, ratio=ratio, count=COUNT, topk=TOPK)
    total = len(inputs["length"])
    assert torch.equal(published.blocks, expected["blocks"])
    assert torch.equal(engine_inputs.out_page_indices[:total], expected["slots"])
    assert (engine_inputs.out_page_indices[total:] == -1).all()
    engine_inputs.out_page_indices.fill_(77)
    candidate_hooks.run_consume(refuse, call(DenseBlocksBackend.consume_decode, backend, engine_inputs, published))
    assert torch.equal(engine_inputs.out_page_indices[:total], expected["slots"])
    assert (engine_inputs.out_page_indices[total:] == -1).all()


@pytest.mark.usefixtures("scoring")
def test_nothing_to_score_leaves_an_empty_selection():
    """No capacity: nothing is published, the whole buffer is -1, and a consumer of nothing does the same."""
    from sglang.srt.layers.attention.dsv4.v41_indexer.dense_blocks import DenseBlocksBackend

    backend, engine_inputs, _ = decode_case([40], 1, 1)
    engine_inputs.paged_metadata.max_compressed_seq_len = 0
    assert candidate_hooks.run_publish(refuse, call(DenseBlocksBackend.publish_decode, backend, engine_inputs)) is None
    assert (engine_inputs.out_page_indices == -1).all()
    engine_inputs.out_page_indices.fill_(77)
    candidate_hooks.run_consume(refuse, call(DenseBlocksBackend.consume_decode, backend, engine_inputs, None))
    assert (engine_inputs.out_page_indices == -1).all()


def test_verify_rows_share_their_keys(scoring: types.ModuleType, monkeypatch: pytest.MonkeyPatch):
    """What `decode_scores` knows of rows per request reaches the scorer below it, and is forgotten afterwards."""
    from sglang.kernels.ops.attention.dsv4 import fp4_indexer

    _, engine_inputs, inputs = decode_case([70, 66], 6, 1)
    paged = call(
        fp4_indexer.fp4_index_logits_paged,
        inputs["query"],
        inputs["weight"],
        inputs["request"],
        inputs["table"],
        inputs["length"],
        inputs["keys"],
        64,
        128,
        1,
    )
    groups = []
    scorer = hooks.index_scores
    monkeypatch.setattr(
        hooks, "index_scores", lambda *args, **kwargs: groups.append(kwargs["group_rows"]) or scorer(*args, **kwargs)
    )
    decode = call(scoring.decode_scores, inputs=engine_inputs, token_to_kv_pool=None, req_to_token=inputs["table"])
    scores = hooks.run_decode_scores(lambda **_: hooks.run_paged(refuse, paged), decode)
    hooks.run_paged(refuse, paged)
    assert groups == [6, 1]
    expected = reference.index_scores(**inputs, ratio=1, max_length=128)["scores"]
    seen = ~expected.isnan()
    torch.testing.assert_close(scores.double()[seen], expected[seen], rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("scoring")
def test_masked_scores_stay_with_the_engine():
    """A call under a candidate mask is passed on with its arguments."""
    from sglang.kernels.ops.attention.dsv4 import fp4_indexer

    _, _, inputs = decode_case([70], 1, 1)
    mask = torch.ones(1, 128, dtype=torch.bool)
    operands = [inputs[name] for name in ("query", "weight", "request", "table", "length", "keys")]
    paged = call(fp4_indexer.fp4_index_logits_paged, *operands, 64, 128, 1, mask)
    received = hooks.run_paged(lambda *args, **_: args, paged)
    assert received[-1] is mask


def prefill_case(tokens: list[int], rows: list[int], ratio: int, topk: int = TOPK):
    """Inputs of a prefill whose requests have `tokens` so far, the last `rows` of them in this chunk; the pool; the scene."""
    newest = [t // ratio for t in tokens]
    lengths = [scene.consecutive_lengths(n, r, ratio) for n, r in zip(newest, rows, strict=True)]
    inputs = scene.make_scene(lengths, ratio=ratio, heads=16, max_length=max(newest) + 20, device=CPU, seed=6)
    first = list(itertools.accumulate(rows, initial=0))[:-1]
    owners = inputs["request"][first]
    slots = [
        reference.slots_of(inputs["table"], owner, torch.arange(n), ratio)
        for owner, n in zip(owners, newest, strict=True)
    ]
    keys = inputs["keys"]
    pool = types.SimpleNamespace(
        get_index_k_with_scale_buffer=lambda _: keys,
        get_low_ratio_index_k_dequant=lambda _, index: reference.layout.read(
            reference.layout.INDEX_KEY, keys, 64, index
        ),
    )
    prefill = types.SimpleNamespace(
        indexer=Indexer(inputs),
        layer_id=2,
        compress_ratio=ratio,
        freqs_cis=torch.zeros(8000, 1),
        x=None,
        q_lora=None,
        positions=torch.cat([torch.arange(t - r, t) for t, r in zip(tokens, rows, strict=True)]),
        req_rows=inputs["request"],
        req_pool_indices=owners,
        k_slots=torch.cat(slots),
        seq_lens_cpu=tokens,
        rows_per_request=rows,
        rows_per_request_device=None,
        reset_outputs=mock.Mock(),
    )
    prefill.indexer.index_topk = topk
    prefill.out_raw_indices, prefill.out_page_indices = torch.full((2, sum(rows) + 1, topk), 77, dtype=torch.int32)
    return prefill, pool, inputs


@pytest.mark.parametrize("ratio", [1, 2])
def test_prefill_yields_what_the_engine_yields(scoring: types.ModuleType, monkeypatch: pytest.MonkeyPatch, ratio: int):
    """Requests, chunks and scores against the engine's own generator, with a request that sees nothing and small chunks."""
    tokens, rows = ([140, 33], [70, 5]) if ratio == 1 else ([280, 1, 66], [70, 1, 5])
    prefill, pool, _ = prefill_case(tokens, rows, ratio)
    monkeypatch.setattr(hooks, "SCORE_BUDGET", 4 * 140 * 32)
    bound = call(scoring.prefill_requests, inputs=prefill, token_to_kv_pool=pool)
    theirs = [
        (request, list(chunks)) for request, chunks in scoring.prefill_requests(inputs=prefill, token_to_kv_pool=pool)
    ]
    ours = [(request, list(chunks)) for request, chunks in hooks.run_prefill(refuse, bound)]
    assert prefill.reset_outputs.call_count == 2
    assert len(ours) == len(theirs) == 2  # a request that sees nothing is left out
    for (mine, my_chunks), (other, other_chunks) in zip(ours, theirs, strict=True):
        assert (mine.lc, mine.k) == (other.lc, other.k)
        for name in ("columns", "tok", "lens", "slots"):
            assert torch.equal(getattr(mine, name).long(), getattr(other, name).long()), name
        assert torch.equal(
            torch.cat([chunk.tok for chunk in my_chunks]), torch.cat([chunk.tok for chunk in other_chunks])
        )
        mine_scores, other_scores = (torch.cat([c.scores for c in chunks]) for chunks in (my_chunks, other_chunks))
        torch.testing.assert_close(mine_scores, other_scores, rtol=1e-4, atol=1e-5)


def reset(prefill) -> None:
    """What the engine's `PrefillInputs.reset_outputs` does."""
    prefill.out_raw_indices.fill_(-1)
    prefill.out_page_indices.fill_(-1)


@pytest.fixture
def prefill_backend(scoring: types.ModuleType):
    """The engine's own backend over a prefill: one request whose list is full, one that lists all it sees, one that sees nothing."""
    return make_backend(scoring, [2300, 1, 140], [5, 1, 9], 128)


def make_backend(scoring: types.ModuleType, tokens: list[int], rows: list[int], topk: int):
    """The engine's backend, and inputs of a prefill of ratio 2."""
    prefill, pool, _ = prefill_case(tokens, rows, 2, topk=topk)
    prefill.reset_outputs = lambda: reset(prefill)
    dense_blocks = importlib.import_module(f"{scoring.__package__}.dense_blocks")
    backend = dense_blocks.DenseBlocksBackend(
        token_to_kv_pool=pool,
        req_to_token=torch.empty(0),
        candidate_topk_blocks=COUNT,
        candidate_block_size=8,
        use_deep_gemm_prefill=False,
    )
    return backend, prefill


def test_prefill_publishes_and_consumes_as_the_engine_does(prefill_backend, monkeypatch: pytest.MonkeyPatch):
    """Blocks and selections are the engine's, in chunks of a row group too; the last layer's tail finds its rows' lists."""
    backend, prefill = prefill_backend
    publish, consume = type(backend).publish_prefill, type(backend).consume_prefill
    theirs = publish(backend, prefill)
    engine_own = [t.sort(dim=1).values for t in (prefill.out_raw_indices, prefill.out_page_indices)]
    lower = torch.arange(COUNT, dtype=torch.int32).repeat(15, 1)  # leaves out the newest blocks of the long request
    consume(backend, prefill, types.SimpleNamespace(blocks=lower))
    engine_consumed = [t.sort(dim=1).values for t in (prefill.out_raw_indices, prefill.out_page_indices)]
    monkeypatch.setattr(candidate_hooks.prefill, "SCORE_BUDGET", 1)
    published = candidate_hooks.run_publish_prefill(refuse, call(publish, backend, prefill))
    assert published.blocks.shape == (15, COUNT)
    assert torch.equal(
        published.blocks.sort(dim=1).values, candidate_hooks._ascending(theirs.blocks, COUNT).sort(dim=1).values
    )
    for mine, other in zip((prefill.out_raw_indices, prefill.out_page_indices), engine_own, strict=True):
        assert torch.equal(mine.sort(dim=1).values, other)
    assert not torch.equal(engine_own[0], engine_consumed[0])
    given = types.SimpleNamespace(blocks=lower)
    candidate_hooks.run_consume_prefill(refuse, call(consume, backend, prefill, given))
    for mine, other in zip((prefill.out_raw_indices, prefill.out_page_indices), engine_consumed, strict=True):
        assert torch.equal(mine.sort(dim=1).values, other)
    assert torch.equal(published.tail([2, 1, 3]).blocks, published.blocks[[3, 4, 5, 12, 13, 14]])


def test_prefill_in_shadow_leaves_the_engines_selection(prefill_backend):
    """No difference from the engine, whose buffers hold its own result; a wrong list shows."""
    backend, prefill = prefill_backend
    publish, consume = type(backend).publish_prefill, type(backend).consume_prefill
    published, error = candidate_hooks.compare_publish_prefill(publish, call(publish, backend, prefill))
    assert error == 0
    kept = prefill.out_raw_indices.clone()
    assert candidate_hooks.compare_consume_prefill(consume, call(consume, backend, prefill, published)) == (None, 0)
    assert torch.equal(
        prefill.out_raw_indices.sort(dim=1).values, kept.sort(dim=1).values
    )  # a full list changes nothing here
    prefill.out_page_indices = None  # attention reads positions alone
    _, error = candidate_hooks.compare_consume_prefill(
        lambda *_: prefill.out_raw_indices.copy_(kept.roll(1, dims=0)), call(consume, backend, prefill, published)
    )
    assert error > 1


def round_scores(_indexer: object, query: torch.Tensor, keys: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The engine's scores with its three roundings to bfloat16."""
    from sglang.srt.layers.attention.dsv4.dsv41_sparse import DeepseekV41Indexer

    return DeepseekV41Indexer.scores(None, query, keys.bfloat16(), weight)


def spoil(row: torch.Tensor, among: list[int]) -> None:
    """Put another of `among` in the place of the first that `row` holds of it."""
    held = row.tolist()
    row[next(i for i, value in enumerate(held) if value in among)] = next(value for value in among if value not in held)


@pytest.mark.parametrize("wrong", ["nothing", "position", "block"])
def test_prefill_in_shadow_tells_rounding_from_a_fault(
    scoring: types.ModuleType, monkeypatch: pytest.MonkeyPatch, wrong: str
):
    """Scores rounded as the engine rounds them select other positions, and that is no error; what is far from the threshold is."""
    backend, prefill = make_backend(scoring, [2300], [5], 512)
    monkeypatch.setattr(Indexer, "scores", round_scores)
    publish, consume = type(backend).publish_prefill, type(backend).consume_prefill
    exact = candidate_hooks.prefill.Selection.of(prefill).like()
    candidate_hooks.prefill.publish(backend, prefill, exact)

    def spoiled(*args: object) -> object:
        published = publish(*args)
        if wrong == "position":
            spoil(prefill.out_raw_indices[4], list(range(1150)))
        if wrong == "block":
            spoil(published.blocks[4], list(range(143)))
        return published

    published, error = candidate_hooks.compare_publish_prefill(spoiled, call(publish, backend, prefill))
    assert (error > 1) is (wrong != "nothing")
    assert 0 < error < math.inf
    if wrong == "nothing":
        assert not torch.equal(prefill.out_raw_indices.sort(dim=1).values, exact.positions.sort(dim=1).values)
        _, error = candidate_hooks.compare_consume_prefill(consume, call(consume, backend, prefill, published))
        assert 0 < error <= 1


def engine_decode(backend, engine_inputs, inputs: dict, blocks: torch.Tensor | None, wrong: str):
    """What the engine's decode source (`blocks` None) or consumer selects by its rounded scores, all rows of one request of ratio 1."""
    from sglang.kernels.ops.attention.dsv4.candidate_blocks import select_candidate_block_ids, topk_among_blocks
    from sglang.srt.layers.attention.dsv4.v41_indexer.dense_blocks import BlockIds

    length, topk = inputs["length"], engine_inputs.indexer.index_topk
    slots = reference.slots_of(inputs["table"], inputs["request"][0], torch.arange(int(length.max())), 1)
    keys = reference.layout.read(reference.layout.INDEX_KEY, inputs["keys"], 64, slots)
    scores = round_scores(None, inputs["query"], keys, inputs["weight"])
    scores = scores.masked_fill(torch.arange(len(slots))[None, :] >= length[:, None], -torch.inf)
    if blocks is None:
        blocks = select_candidate_block_ids(scores, length[:, None], backend.topk_blocks, 8)
        positions = scores.topk(topk, dim=1, sorted=False).indices
    else:
        positions = topk_among_blocks(scores, length, blocks, topk, block_size=8)
    if wrong == "position":
        spoil(positions[0], list(range(1200)))
    if wrong == "block":
        spoil(blocks[0], list(range(140)))
    engine_inputs.out_page_indices.fill_(-1)
    engine_inputs.out_page_indices[: len(positions)] = slots[positions].to(torch.int32)
    return BlockIds(blocks=blocks)


@pytest.mark.usefixtures("scoring")
@pytest.mark.parametrize("wrong", ["nothing", "position", "block", "slot"])
def test_decode_in_shadow_tells_rounding_from_a_fault(wrong: str):
    """As in prefill, from slots alone; a slot that is no position of the request is wrong at once."""
    from sglang.srt.layers.attention.dsv4.v41_indexer.dense_blocks import DenseBlocksBackend

    backend, engine_inputs, inputs = decode_case([1290], 3, 1)
    engine_inputs.indexer.index_topk = 512
    engine_inputs.out_page_indices = torch.full((4, 512), 77, dtype=torch.int32)  # a spare row

    def publish(*_: object):
        published = engine_decode(backend, engine_inputs, inputs, None, wrong)
        if wrong == "slot":
            engine_inputs.out_page_indices[1, 5] = 1 << 20
        return published

    published, error = candidate_hooks.compare_publish(
        publish, call(DenseBlocksBackend.publish_decode, backend, engine_inputs)
    )
    assert error > 0
    assert (error > 1) is (wrong != "nothing")
    assert (error == math.inf) is (wrong == "slot")
    if wrong in {"nothing", "position"}:

        def consume(*_: object) -> None:
            engine_decode(backend, engine_inputs, inputs, published.blocks, wrong)

        consumed = call(DenseBlocksBackend.consume_decode, backend, engine_inputs, published)
        _, error = candidate_hooks.compare_consume(consume, consumed)
        assert 0 < error < math.inf
        assert (error > 1) is (wrong == "position")


@pytest.mark.parametrize(
    ("ours", "theirs", "error"),
    [
        ([0, 2, 4], [4, 0, 2], 0),  # in any order
        ([0, 2, 4], [0, 2, 3], 0.5),  # 1 apart, rounding may move both by 1
        ([0, 2, 3], [0, 2, 4], 0.5),  # whoever has the better one
        ([0, 2, 4], [0, 2, 1], 3),
        ([0, 2, 4], [0, 2, -1], math.inf),  # one left out
        ([0, 2, 4], [0, 2, 2], math.inf),  # one twice
        ([0, 2, 4], [0, 2, 5], math.inf),  # not visible
        ([0, 2, 6], [0, 2, 6], math.inf),  # no position, in both
        ([0, 2, 1 << 30], [0, 2, 4], math.inf),
    ],
)
def test_the_error_of_a_selection_is_in_units_of_rounding(ours: list[int], theirs: list[int], error: float):
    """Scores 9, 1, 8, 6, 7 and a place that is not visible; each may be off by 1."""
    scores, bound = torch.tensor([[9.0, 1, 8, 6, 7, -math.inf]]), torch.tensor([[1.0, 1, 1, 1, 1, 0]])
    found = compare.excess(scores, bound, torch.tensor([ours]), torch.tensor([theirs]))
    assert found == error


@pytest.mark.usefixtures("scoring")
def test_exact_scores_bound_the_engines():
    """No score of the engine's lies further from ours than the bound, and the bound is not void: some come to a tenth of it."""
    inputs = scene.make_scene([[1290, 1289, 700]], ratio=1, heads=32, max_length=1300, device=CPU, seed=7)
    scores, bound = compare.score_exactly({**inputs, "ratio": 1})
    slots = reference.slots_of(inputs["table"], inputs["request"][0], torch.arange(1290), 1)
    keys = reference.layout.read(reference.layout.INDEX_KEY, inputs["keys"], 64, slots)
    engines = round_scores(None, inputs["query"], keys, inputs["weight"])
    seen = scores > -math.inf
    assert seen.sum(dim=1).tolist() == [1290, 1289, 700]
    share = (engines - scores).abs()[seen] / bound[seen]
    assert 0.1 < share.max() <= 1


@pytest.mark.parametrize(("scale", "exceeded"), [(1.0, False), (1.2, True)])
def test_prefill_scores_in_shadow_are_compared_on_a_chunk(scoring: types.ModuleType, scale: float, *, exceeded: bool):
    """The engine's requests and chunks go on complete; the first chunk's scores are compared; wrong ones show."""
    prefill, pool, _ = prefill_case([140, 33], [70, 5], 1)

    def engine(**given: object):
        for request, chunks in scoring.prefill_requests(**given):
            yield (
                request,
                (scoring.ChunkScores(rows=c.rows, tok=c.tok, lens=c.lens, scores=c.scores * scale) for c in chunks),
            )

    bound = call(scoring.prefill_requests, inputs=prefill, token_to_kv_pool=pool)
    theirs, error = hooks.compare_prefill(engine, bound)
    assert (error > hooks.INTEGRATION.tolerance) is exceeded
    got = [(request.lc, torch.cat([chunk.scores for chunk in chunks])) for request, chunks in theirs]
    whole = [
        (request.lc, torch.cat([chunk.scores for chunk in chunks]))
        for request, chunks in scoring.prefill_requests(inputs=prefill, token_to_kv_pool=pool)
    ]
    assert [lc for lc, _ in got] == [140, 33]
    for (_, mine), (_, other) in zip(got, whole, strict=True):
        torch.testing.assert_close(mine, other * scale)


def test_prefill_scores_of_a_context_parallel_rank_are_not_compared(scoring: types.ModuleType):
    prefill, pool, _ = prefill_case([140, 33], [70, 5], 1)
    prefill.req_rows = None
    bound = call(scoring.prefill_requests, inputs=prefill, token_to_kv_pool=pool)
    assert hooks.compare_prefill(lambda **_: "theirs", bound) == ("theirs", None)


def test_prefill_of_a_context_parallel_rank_stays_with_the_engine(prefill_backend):
    """Its rows are not consecutive: source and consumers are passed on."""
    backend, prefill = prefill_backend
    prefill.req_rows = None
    publish, consume = type(backend).publish_prefill, type(backend).consume_prefill
    assert candidate_hooks.run_publish_prefill(lambda *_: "theirs", call(publish, backend, prefill)) == "theirs"
    passed = []
    candidate_hooks.run_consume_prefill(lambda *args: passed.append(args), call(consume, backend, prefill, "theirs"))
    assert passed == [(backend, prefill, "theirs")]
