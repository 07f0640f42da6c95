"""The directory engines load: links into the checkpoint, and the contract's sampling defaults in a file of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dsv41_serving.errors import InputError
from dsv41_serving.plan.model import ServedModel
from dsv41_serving.run.served import lay_out

CONTRACT: dict[str, float | bool] = {"do_sample": True, "temperature": 0.6, "top_p": 0.95}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a checkpoint with generation defaults of its own and a directory in it."""
    directory = tmp_path / "checkpoint"
    (directory / "encoding").mkdir(parents=True)
    (directory / "encoding" / "encode.py").write_text("pass\n")
    (directory / "config.json").write_text("{}\n")
    (directory / "model.safetensors").write_bytes(b"weights")
    (directory / "generation_config.json").write_text('{"eos_token_id": 2, "temperature": 1.0}\n')
    return directory


@pytest.fixture
def model(tmp_path: Path) -> ServedModel:
    """Return what is to be served."""
    return ServedModel(
        manifest="toy", checkpoint="", path=str(tmp_path / "state" / "served" / "toy"), generation_config=CONTRACT
    )


def snapshot(directory: Path) -> dict[str, bytes]:
    """Return every file below a directory."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_every_entry_is_a_link_except_the_generation_defaults(checkpoint: Path, model: ServedModel) -> None:
    """Nothing large is copied; the contract wins over the checkpoint, which keeps the rest."""
    before = snapshot(checkpoint)
    served = lay_out(model, checkpoint)
    assert str(served) == model.path
    links = {path.name: path.resolve() for path in served.iterdir() if path.is_symlink()}
    names = ("encoding", "config.json", "model.safetensors")
    assert links == {name: (checkpoint / name).resolve() for name in names}
    generation = served / "generation_config.json"
    assert not generation.is_symlink()
    assert json.loads(generation.read_text()) == {"eos_token_id": 2, **CONTRACT}
    assert snapshot(checkpoint) == before


def test_it_is_there_at_every_moment_of_a_change(checkpoint: Path, model: ServedModel) -> None:
    """A link is exchanged; what it pointed to stays for an engine that is loading, and goes when that is long over."""
    served = lay_out(model, checkpoint)
    before = served.resolve()
    hotter = model.model_copy(update={"generation_config": {"temperature": 0.9}})
    lay_out(hotter, checkpoint)
    assert served.is_symlink()
    assert served.resolve() != before
    assert json.loads((before / "generation_config.json").read_text())["temperature"] == 0.6
    os.utime(before, (0, 0))
    lay_out(model, checkpoint)
    assert not before.exists()
    assert json.loads((served / "generation_config.json").read_text())["temperature"] == 0.6


def test_directory_of_an_earlier_release_is_replaced(checkpoint: Path, model: ServedModel) -> None:
    """It was no link then."""
    Path(model.path).mkdir(parents=True)
    (Path(model.path) / "config.json").write_text("old")
    assert (lay_out(model, checkpoint) / "config.json").read_text() == "{}\n"


def test_other_users_may_read_it(checkpoint: Path, model: ServedModel) -> None:
    """Services run as a user of their own."""
    assert lay_out(model, checkpoint).stat().st_mode & 0o777 == 0o755


def test_a_checkpoint_without_generation_defaults_gets_the_contracts(checkpoint: Path, model: ServedModel) -> None:
    """Also when what it has is no table."""
    (checkpoint / "generation_config.json").unlink()
    assert json.loads((lay_out(model, checkpoint) / "generation_config.json").read_text()) == CONTRACT
    (checkpoint / "generation_config.json").write_text("[]")
    assert json.loads((lay_out(model, checkpoint) / "generation_config.json").read_text()) == CONTRACT


def test_what_is_current_is_left_alone(checkpoint: Path, model: ServedModel) -> None:
    """A running engine keeps the directory it opened."""
    inode = lay_out(model, checkpoint).stat().st_ino
    assert lay_out(model, checkpoint).stat().st_ino == inode


def test_a_change_replaces_the_directory_as_a_whole(checkpoint: Path, model: ServedModel) -> None:
    """New contract, new file in the checkpoint, other checkpoint: never half of each."""
    inode = lay_out(model, checkpoint).stat().st_ino
    colder = model.model_copy(update={"generation_config": {**CONTRACT, "temperature": 0.1}})
    served = lay_out(colder, checkpoint)
    assert served.stat().st_ino != inode
    assert json.loads((served / "generation_config.json").read_text())["temperature"] == 0.1
    (checkpoint / "tokenizer.json").write_text("{}")
    assert (lay_out(colder, checkpoint) / "tokenizer.json").is_symlink()
    (checkpoint / "tokenizer.json").unlink()
    assert "tokenizer.json" not in {path.name for path in lay_out(colder, checkpoint).iterdir()}


def test_a_file_that_was_changed_by_hand_is_put_right(checkpoint: Path, model: ServedModel) -> None:
    """The contract is on the node file's word alone."""
    served = lay_out(model, checkpoint)
    (served / "generation_config.json").write_text("{}")
    assert json.loads((lay_out(model, checkpoint) / "generation_config.json").read_text())["temperature"] == 0.6


def test_a_failure_halfway_leaves_what_was_there(
    checkpoint: Path, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no temporary directory."""
    served = lay_out(model, checkpoint)
    before, entries = snapshot(served), sorted(served.parent.iterdir())
    (checkpoint / "tokenizer.json").write_text("{}")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.symlink_to", fail)
    with pytest.raises(InputError) as error:
        lay_out(model, checkpoint)
    assert str(error.value) == (
        f"{served.parent}, key node.state_dir: cannot be written (No space left on device); "
        "make room there for this user, or set another directory"
    )
    assert snapshot(served) == before
    assert sorted(served.parent.iterdir()) == entries


def test_a_checkpoint_that_cannot_be_read(tmp_path: Path, checkpoint: Path, model: ServedModel) -> None:
    """Absent, a file, or with generation defaults that are no JSON: one line, and nothing is laid out."""
    absent = tmp_path / "absent"
    with pytest.raises(InputError) as error:
        lay_out(model, absent)
    assert str(error.value) == (
        f"{absent}, key model.path: cannot be read (No such file or directory); name a readable checkpoint directory"
    )
    with pytest.raises(InputError, match=r"cannot be read \(Not a directory\)"):
        lay_out(model, checkpoint / "config.json")
    (checkpoint / "generation_config.json").write_text("{")
    with pytest.raises(InputError, match=r"is not JSON .*; restore the file of the checkpoint"):
        lay_out(model, checkpoint)
    assert not (tmp_path / "state").exists()


def test_a_state_directory_that_cannot_be_made(tmp_path: Path, checkpoint: Path, model: ServedModel) -> None:
    """One line, before anything is started."""
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"key node\.state_dir: cannot be written \(Not a directory\); make room"):
        lay_out(model.model_copy(update={"path": str(tmp_path / "file" / "served" / "toy")}), checkpoint)
