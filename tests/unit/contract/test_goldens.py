# ruff: noqa: RUF001  # the tokens are spelt with full-width bars
"""The golden encodings are what the V4.1 reference encoder makes, and a difference can be read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from dsv41_serving.cli import cli
from dsv41_serving.contract import goldens
from dsv41_serving.contract.clauses.prompts import CHOSEN
from dsv41_serving.contract.encoder import Encoder, Encoding
from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

CASES = goldens.read_goldens()


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return goldens.embedded_encoder()


def named(name: str) -> goldens.Golden:
    return next(case for case in CASES if case.name == name)


def test_there_are_enough_conversations_and_the_suite_knows_those_it_chooses() -> None:
    assert len(CASES) >= 40
    assert set(CHOSEN) <= {case.name for case in CASES}
    assert all(case.about.endswith(".") for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_file_is_what_the_encoder_makes(case: goldens.Golden, encoder: Encoder) -> None:
    assert goldens.compare_with_encoder(case, encoder) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_token_ids_spell_the_prompt(case: goldens.Golden, encoder: Encoder) -> None:
    assert encoder.decode(case.token_ids) == case.text
    assert "not DeepSeek's" in case.tokenizer


def test_thinking_off_closes_the_reasoning_and_has_no_effort_line() -> None:
    assert (
        named("user-thinking-off").text
        == "<｜begin▁of▁sentence｜><｜User｜>What is the capital of France?<｜Assistant｜></think>"
    )


def test_named_efforts_are_the_budgets_of_the_table() -> None:
    from dsv41_serving.spec.model import EFFORT_BUDGETS

    for level, budget in EFFORT_BUDGETS.items():
        if level != "ultra":
            assert f"Reasoning Effort: {budget} (" in named(f"effort-{level}").text


def test_special_tokens_in_a_users_text_are_not_tokens(encoder: Encoder) -> None:
    """Only the two tokens of the turn itself are special; the spellings in the text are pieces of text."""
    ids = named("content-special-spellings").token_ids
    assert [encoder.spell(i) for i in ids].count("<｜User｜>") == 1


def test_changed_prompt_is_a_diff_of_lines_and_names_the_first_token(encoder: Encoder) -> None:
    case = named("system-thinking-on")
    ids = list(case.token_ids)
    ids[7] += 1
    lines = goldens.compare(
        case, Encoding(case.text.replace("Effort: 75", "Effort: 50"), tuple(ids)), encoder.spell, by="prefill"
    )
    text = "\n".join(lines)
    assert "--- system-thinking-on.json\n" in text
    assert "+++ prefill" in text
    assert "-<｜begin▁of▁sentence｜><｜System｜>Reasoning Effort: 75" in text
    assert "+<｜begin▁of▁sentence｜><｜System｜>Reasoning Effort: 50" in text
    assert "tokens differ from number 7 on" in text


def test_missing_tail_is_said(encoder: Encoder) -> None:
    case = named("user-thinking-off")
    line = goldens.compare(case, Encoding(case.text, case.token_ids[:-1]), encoder.spell, by="decode")[0]
    assert f"number {len(case.token_ids) - 1} on" in line
    assert "decode the end" in line


def test_changed_encoder_shows_in_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verb exits 1 with the diff, --write mends the file, and then it exits 0."""
    case = named("user-thinking-off")
    file = tmp_path / "user-thinking-off.json"
    file.write_text(
        json.dumps({"about": case.about, "request": case.request, "prompt": ["old"], "token_ids": [1]}),
        encoding="utf-8",
    )
    monkeypatch.setattr(goldens, "directory", lambda: tmp_path)
    run = CliRunner().invoke
    shown = run(cli, ["contract", "goldens"])
    assert shown.exit_code == 1
    assert "-old" in shown.output
    assert "1 of 1 files changed" in run(cli, ["contract", "goldens", "--write"]).output
    assert run(cli, ["contract", "goldens"]).exit_code == 0
    assert file.read_text(encoding="utf-8") == (
        goldens.data_dir("deploy") / "contract/encodings" / file.name
    ).read_text(encoding="utf-8")


def test_file_that_is_none_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"about": "x"}', encoding="utf-8")
    with pytest.raises(InputError, match=r"broken\.json: is not a golden encoding .*request"):
        goldens.read_goldens(tmp_path)
