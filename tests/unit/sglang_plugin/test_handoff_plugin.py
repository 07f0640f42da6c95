"""The entry point: what it reads, what it refuses."""

import pytest

from dsv41_serving.errors import EngineDriftError
from dsv41_serving.sglang_plugin import drift
from dsv41_serving.sglang_plugin.handoff import plugin
from dsv41_serving.spec.model import Handoff


def test_an_sglang_without_the_table_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DSV41_HANDOFF", raising=False)
    monkeypatch.setattr(drift, "apply", lambda _: pytest.fail("hooks without a table"))
    plugin.register()


def test_the_table_is_read_as_the_plan_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Handoff(packed=True, slots=2, slot_mib=16)
    monkeypatch.setenv("DSV41_HANDOFF", table.model_dump_json())
    assert drift.read_table(plugin.VARIABLE, Handoff) == table


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_scheduler_rests_as_long_as_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "check_versions", lambda: None)
    applied: list[str] = []
    monkeypatch.setattr(drift, "apply", lambda hooks: applied.extend(hook.target for hook in hooks))
    for longest, count in ((125, 1), (0, 0)):
        applied.clear()
        monkeypatch.setenv("DSV41_HANDOFF", Handoff(rest_us=longest).model_dump_json())
        plugin.register()
        assert applied.count("sglang.srt.managers.scheduler.Scheduler.on_idle") == count
        # Behind the waterfall's own hook of the status: a scheduler that is woken finds its stage counted.
        assert ([target.rsplit(".", 1)[-1] for target in applied[-2:]] == ["on_idle", "update_status"]) == bool(count)


def test_a_table_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV41_HANDOFF", '{"packed": "yes"}')
    with pytest.raises(EngineDriftError, match=r"environment DSV41_HANDOFF: is no table \[handoff\]"):
        drift.read_table(plugin.VARIABLE, Handoff)
