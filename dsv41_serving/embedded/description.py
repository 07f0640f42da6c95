"""What `deploy/models/NAME.toml` says: where a model comes from, how it is made and what it must achieve."""

from __future__ import annotations

import hashlib
import json
import tomllib
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dsv41_serving import resources
from dsv41_serving.embedded import special_tokens
from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

Unknown = Literal["unknown"]
Share = Annotated[float, Field(ge=0, le=1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Source(_Part):
    """One file inside an installed Python package; nothing is fetched."""

    package: str
    """Distribution name."""
    version: str
    module: str
    """Import name; it is located, never imported."""
    file: str
    """Path below the module's directory."""
    size_bytes: int
    sha256: str
    licence: str


class Sampling(_Part):
    """The chat defaults that go into generation_config.json."""

    temperature: float
    top_p: float


class Turn(_Part):
    """One worked example for the teacher."""

    user: str
    assistant: str


class Teacher(_Part):
    """The ChatML context in which the unchanged model writes what the new rows are to reproduce."""

    system: str
    turns: tuple[Turn, ...]
    max_tokens: int


class Distillation(_Part):
    """The optimisation of the rows: a fixed number of Adam steps from a fixed seed."""

    seed: int
    steps: int
    answers_per_step: int
    """Samples of a step with thinking off."""
    thoughts_per_step: int
    """Samples of a step with thinking on."""
    learning_rate: float
    warmup_steps: int
    final_rate_share: Share
    """The share of the learning rate that the cosine decay ends at."""
    betas: tuple[float, float]
    system_share: Share
    """Share of samples that begin with one of `system_prompts`."""
    system_prompts: tuple[str, ...]
    history_share: Share
    """Share of samples whose conversation has an earlier turn."""
    efforts: tuple[int, ...]
    """Reasoning budgets drawn from for thinking-on samples; 0 stands for the server's default."""


class HeldOut(_Part):
    """A prompt that is never trained on. `expect` lists strings one of which a right answer contains."""

    prompt: str
    expect: tuple[str, ...] = ()


class Thresholds(_Part):
    """What the held-out check must reach; a model that misses one is not published."""

    max_tokens: int
    """Length limit of held-out answers, thought included."""
    kl_answers_max: float
    """Mean KL divergence, nats per token, from the teacher's held-out answers with thinking off."""
    kl_share_max: Share
    """The same as a share of what the undistilled rows give."""
    thoughts_closed_min: Share
    """Held-out thinking-on prompts after which </think> comes unaided and text follows."""
    answers_clean_min: Share
    """Thinking-off answers that have text and no special token but the end of sentence."""
    answers_ended_min: Share
    """Thinking-off answers that end with the end of sentence."""
    answers_expected_min: Share
    """Thinking-off answers that contain what `expect` names, among the prompts that have one."""


class _Description(_Part):
    name: str
    summary: str
    recipe_version: int = 1
    """Raised whenever the code makes different bits from the same constants."""

    def key(self) -> str:
        """Return the sha256 (hex) of everything the made files depend on, except the processor.

        The key names inputs, not output bits: another processor may round differently and still finds its own cache.
        """
        inputs = {
            "description": self.model_dump(mode="json"),
            "special_tokens": special_tokens.ALL,
            "torch": metadata.version("torch"),
        }
        return hashlib.sha256(json.dumps(inputs, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class Converted(_Description):
    """A small real model that learns V4.1's chat tokens."""

    kind: Literal["converted"]
    size_mb: int
    """Disk space that the prepared model takes, 10^6 bytes."""
    source: Source
    sampling: Sampling
    renames: dict[str, str]
    unused_token: str
    """A token the model never writes; new output rows are copies of its row."""
    initial_rows: dict[str, tuple[str, ...]]
    """Special token to the pieces of text whose first tokens' mean embedding it starts from."""
    answers: Teacher
    thoughts: Teacher
    distillation: Distillation
    thresholds: Thresholds
    training_prompts: tuple[str, ...]
    held_out: tuple[HeldOut, ...]


class RandomWeights(_Part):
    """Shape and seed of a Llama network without training."""

    seed: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int
    logit_scale: float
    """Standard deviation of the logits: large enough that the most likely token leads clearly."""


class Random(_Description):
    """Random weights behind a DeepSeek tokenizer, for tests of shapes and plumbing."""

    kind: Literal["random"]
    size_mb: int
    source: Source
    sampling: Sampling
    renames: dict[str, str]
    weights: RandomWeights


class Synthetic(_Description):
    """V4.1's own architecture at a rank's size behind a DeepSeek tokenizer: no weights, the engine draws them from a seed."""

    kind: Literal["synthetic"]
    size_mb: int
    source: Source
    sampling: Sampling
    renames: dict[str, str]
    layers: int
    heads: int
    """Query heads: a rank's share of 64."""
    experts: int
    expert_width: int
    """Columns of an expert: a rank's share of 2,304."""
    context: int
    """Longest sequence, tokens."""


class Checkpoint(_Description):
    """A production checkpoint that the operator provides."""

    kind: Literal["checkpoint"]
    repository: str
    revision: str
    """Short commit id as reported; the full id is unknown until the operator fills it in."""
    former_revisions: dict[str, str]
    """Short commit id to the reason not to use it."""
    weight_files: int
    size_gb: float
    """Approximate size of all files, 10^9 bytes."""
    licence: str
    config: dict[str, Any]
    """Fields of config.json (or of its text_config) and the values they must have."""
    files: dict[str, str] | Unknown
    """File name to sha256."""


Description = Annotated[Converted | Random | Synthetic | Checkpoint, Field(discriminator="kind")]
_ADAPTER: TypeAdapter[Converted | Random | Synthetic | Checkpoint] = TypeAdapter(Description)


def load_description(name: str) -> Converted | Random | Synthetic | Checkpoint:
    """Return the description of model `name`.

    Raises InputError for a name without a file, for invalid TOML and for unknown or missing keys.
    """
    directory = resources.data_dir("deploy") / "models"
    path = directory / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in directory.glob("*.toml")))
        raise InputError(f"no model {name!r}", where=str(directory), remedy=f"use one of {known}")
    return parse_description(path)


def parse_description(path: Path) -> Converted | Random | Synthetic | Checkpoint:
    """Return what the file at `path` describes. Raises InputError when it is not valid."""
    try:
        return _ADAPTER.validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"is not valid TOML: {error}", where=str(path), remedy="mend the file") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"][1:]) or "kind"
        raise InputError(f"{key}: {first['msg']}", where=str(path), remedy="mend the key") from error
