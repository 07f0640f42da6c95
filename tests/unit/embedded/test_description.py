"""deploy/models/*.toml: valid, honest about what is unknown, and the whole of what a model's key depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dsv41_serving import resources
from dsv41_serving.embedded import load_description, special_tokens
from dsv41_serving.embedded.description import Checkpoint, Converted, Random, Synthetic, parse_description
from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

MODELS = resources.data_dir("deploy") / "models"


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_file_is_valid_and_named_after_its_model(path: Path) -> None:
    """Each file parses, and its name is the model's."""
    assert load_description(path.stem).name == path.stem


def test_nothing_is_invented_about_the_production_checkpoint() -> None:
    """Digests and repository are marked unknown; revision, count and size are those of the reports."""
    found = load_description("deepseek-v4.1-flash")
    assert isinstance(found, Checkpoint)
    assert (found.files, found.repository, found.licence) == ("unknown", "unknown", "unknown")
    assert (found.revision, found.weight_files, found.size_gb) == ("dba1be0a", 48, 510)
    assert list(found.former_revisions) == ["fb2764a5"]


def test_held_out_prompts_are_not_trained_on() -> None:
    """Neither the training prompts nor the teacher's worked turns contain a held-out prompt."""
    found = load_description("smollm2-v41")
    assert isinstance(found, Converted)
    seen = {*found.training_prompts, *(turn.user for turn in (*found.answers.turns, *found.thoughts.turns))}
    assert not seen & {each.prompt for each in found.held_out}
    assert len(found.held_out) >= 16


@pytest.mark.parametrize("name", ["smollm2-v41", "canary", "v41-rank"])
def test_renames_lead_to_special_tokens(name: str) -> None:
    """Every token that takes an existing id, and every row that learns, is one of V4.1's."""
    found = load_description(name)
    assert isinstance(found, Converted | Random | Synthetic)
    assert set(found.renames.values()) <= set(special_tokens.ALL)
    if isinstance(found, Converted):
        assert set(found.initial_rows) <= set(special_tokens.REQUIRED)


def test_the_key_depends_on_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed constant or torch version gives another key; the same inputs give the same."""
    found = load_description("smollm2-v41")
    assert isinstance(found, Converted)
    again = load_description("smollm2-v41")
    assert isinstance(again, Converted)
    assert found.key() == again.key()
    assert found.model_copy(update={"recipe_version": found.recipe_version + 1}).key() != found.key()
    source = found.source.model_copy(update={"sha256": "0" * 64})
    assert found.model_copy(update={"source": source}).key() != found.key()
    before = found.key()
    monkeypatch.setattr("dsv41_serving.embedded.description.metadata.version", lambda _: "0.0.0")
    assert found.key() != before


def test_an_unknown_model() -> None:
    """The line lists the models there are."""
    with pytest.raises(
        InputError, match=r"no model 'gpt'; use one of canary, deepseek-v4\.1-flash, smollm2-v41, v41-rank"
    ):
        load_description("gpt")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("kind = ", r"is not valid TOML: .*; mend the file"),
        ('kind = "random"\ncolour = 1', r"name: Field required; mend the key"),
        ('kind = "other"', r"kind: Input tag 'other'"),
    ],
)
def test_a_bad_file_gives_one_line(text: str, line: str, tmp_path: Path) -> None:
    """File, key and problem stand in one line."""
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=rf"bad\.toml: {line}") as caught:
        parse_description(path)
    assert "\n" not in str(caught.value)


def test_an_unknown_key_is_named(tmp_path: Path) -> None:
    """A misspelt key does not pass in silence."""
    path = tmp_path / "canary.toml"
    path.write_text((MODELS / "canary.toml").read_text().replace("seed = 0", "sed = 0"))
    with pytest.raises(InputError, match=r"weights\.seed: Field required|weights\.sed: Extra inputs"):
        parse_description(path)
