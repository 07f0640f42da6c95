"""Finite weights for `--load-format dummy`: the engine's own are near zero, with scales that give no usable logits.

    SGLANG_PLUGINS=dsv41_synthetic,...  DSV41_SYNTHETIC_SEED=1  DSV41_SYNTHETIC_GAINS=attention=0.5,family=4

Every tensor depends on the seed, its name and its shape alone, so two engines of the same layout hold the same model. A matrix is
normal with unit gain (standard deviation 1/sqrt(fan-in)); a quantised one is spread over the codes and its scales are the power
of two that gives the same gain.

A random network is chaotic: rounding flips codes, index selections and experts, each flip changes what follows, and among 129,280
independent logits the best two lie close together. Greedy tokens then differ between any two runs and say nothing about kernels. So
four things are not random (`Gains`; `study.py` measures what they do to a small model of the same structure).

- **Families.** Every token belongs to a class of few, and every class has as many successors: their output rows carry a multiple of the class's
  embeddings, so the next token is one of them, and only which one is left to what the layers computed.
- **Salience.** A token's embedding has a random amount of one direction. It reaches keys of attention and of the index alike, and all
  queries look for it: what attention weighs most is what the index surely selects, and entries at the edge of a selection, which rounding
  swaps, weigh little.
- **Routing.** Experts differ in their bias, so that fewer tokens lie at the edge between two experts.
- **Size.** What attention and experts add is small beside the embedding: their errors are, too.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import re
import sys
import zlib
from typing import TYPE_CHECKING, Any

import torch

from dsv41_kernels import layout
from dsv41_kernels.serve import rank

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "DSV41_SYNTHETIC_SEED"
GAINS_VARIABLE = "DSV41_SYNTHETIC_GAINS"
_SCHEDULER = "sglang.srt.managers.scheduler"
_TARGET = "sglang.srt.model_loader.loader.initialize_dummy_weights"
_SCALES = ("weight_scale_inv", "weight_scale", "scale")
_FUSED = {
    ".wkv_gate.weight": (".wkv.weight", ".wgate.weight"),
    ".wqkv_a.weight": (".wq_a.weight", ".wkv.weight"),
}
"""Matrices that the engine holds as one or as two, depending on the kernels it runs. The second part has HEAD_DIM rows."""
_EMBEDDINGS = ("embed_tokens.weight", "embed.weight")
_LEAST_GAIN = 2.0**-40
_E4M3_SPREAD = 32.0
"""Standard deviation of E4M3 codes: far from the largest, 448, and from the subnormals."""
_E2M1_SPREAD = math.sqrt((0 + 0.25 + 1 + 2.25 + 4 + 9 + 16 + 36) / 8)
"""Standard deviation of uniformly drawn E2M1 codes."""


@dataclasses.dataclass(frozen=True)
class Gains:
    """What is not random, and how strongly. Sizes are relative to a normalised hidden state, whose channels have unit variance."""

    attention: float = 0.25
    """Gain of attention's output projection."""
    experts: float = 0.0625
    """Gain of the experts' down projections."""
    mixing: float = 0.25
    """Gain of the projections that mix the residual streams."""
    routing: float = 1.0
    """Standard deviation of the experts' selection bias."""
    common: float = 0.5
    """Mean of every embedding: the direction by which queries know that they are queries."""
    salience: float = 0.5
    """Standard deviation of the tokens' share of the salient direction."""
    focus: float = 0.5
    """Gain of that direction in attention's queries."""
    index: float = 3.0
    """Gain of that direction in index queries and index keys."""
    family: int = 2
    """Successors of a token."""
    kinship: float = 16.0
    """Logit of a successor, in standard deviations of all logits."""
    certainty: float = 2.0
    """Standard deviation of the logits, nats."""

    @staticmethod
    def read(text: str) -> Gains:
        """The defaults with `text` (`attention=0.5,family=4`) over them. Raises ValueError naming what it does not know."""
        names = [field.name for field in dataclasses.fields(Gains)]
        given: dict[str, Any] = {}
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            if name not in names:
                raise ValueError(f"no gain {name!r}; there are {', '.join(names)}")
            try:
                given[name] = int(value) if name == "family" else float(value)
            except ValueError as error:
                raise ValueError(f"{name}={value} is not a number") from error
            if given[name] < (1 if name == "family" else 0):
                raise ValueError(f"{name}={value} is too small")
        return Gains(**given)


@dataclasses.dataclass(frozen=True)
class Direction:
    """Channels with +1 in each group of `period`, the first `filled`; with `alternating`, every second one has -1."""

    period: int = 1
    filled: int = 1
    alternating: bool = False

    def vector(self, length: int, device: torch.device) -> torch.Tensor:
        """float32 [length]."""
        channel = torch.arange(length, device=device)
        value = (channel % self.period < self.filled).float()
        return value * (1 - 2 * (channel % 2)) if self.alternating else value


_EVERY, _SALIENT = Direction(), Direction(alternating=True)
_LATENT = Direction(layout.HEAD_DIM, layout.HEAD_DIM - layout.ROPE_DIM)
_INDEX = Direction(layout.INDEX_DIM, layout.INDEX_DIM - layout.ROPE_DIM)
"""Channels that are not rotated: what lies there compares alike at every distance."""
_CARRIED = 2.0
"""Gain of a direction on its way into queries and entries, where a normalisation follows."""
_HEADS_AGREE = 4.0
"""Gain of the common direction in the weights of index heads: nearly all are positive."""


def _ways(gains: Gains) -> dict[str, tuple[Direction, Direction, float]]:
    """By the end of a matrix's name: the direction that it takes to another (out, in), and its gain."""
    return {
        ".indexer.wq_b.weight": (_INDEX, _EVERY, gains.index),
        ".indexer.wk.weight": (_INDEX, _LATENT, gains.index),
        ".indexer.weights_proj.weight": (_EVERY, _EVERY, _HEADS_AGREE),
        ".wq_a.weight": (_EVERY, _EVERY, _CARRIED),
        ".wq_b.weight": (_LATENT, _EVERY, gains.focus),
        ".wkv.weight": (_LATENT, _SALIENT, _CARRIED),
    }


def _guided(name: str, shape: torch.Size, gains: Gains, device: torch.device) -> torch.Tensor | float:
    """What is added to the random matrix `name`, in standard deviations of its entries."""
    for end, (out, into, gain) in _ways(gains).items():
        if name.endswith(end):
            rows, columns = shape[-2:]
            return gain / math.sqrt(columns) * torch.outer(out.vector(rows, device), into.vector(columns, device))
    return 0.0


def _gain(name: str, gains: Gains) -> float:
    if ".wo_b." in name:
        return gains.attention
    if ".w2_" in name or ".down_proj." in name:
        return gains.experts
    return gains.mixing if re.search(r"hc_\w+_fn$", name) else 1.0


def _exponent(gain: float, spread: float, fan_in: int) -> int:
    """The power of two that brings codes of standard deviation `spread` to `gain`; a gain of 0 to nearly nothing."""
    return round(math.log2(max(gain, _LEAST_GAIN) / (spread * math.sqrt(fan_in))))


def _weight_of(name: str, tensors: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """The quantised weight that the scale `name` belongs to, or None when `name` is not a block scale."""
    for suffix in _SCALES:
        if name.endswith(suffix):
            stem = name.removesuffix(suffix)
            for candidate in (f"{stem}weight", stem.removesuffix("_")):
                if candidate in tensors:
                    return tensors[candidate]
    return None


def _normal(shape: torch.Size, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    return torch.randn(shape, generator=generator, device=device, dtype=torch.float32)


def _generator(name: str, seed: int, device: torch.device) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(zlib.crc32(f"{seed}:{name}".encode()))


def fill(name: str, tensor: torch.Tensor, tensors: dict[str, torch.Tensor], seed: int, gains: Gains) -> None:
    """Overwrite `tensor`, the entry `name` of the state dict `tensors`, in place."""
    for end, parts in _FUSED.items():
        if name.endswith(end):
            sizes = [tensor.shape[0] - layout.HEAD_DIM, layout.HEAD_DIM]
            for part, piece in zip(parts, torch.split(tensor, sizes), strict=True):
                fill(name.removesuffix(end) + part, piece, tensors, seed, gains)
            return
    generator = _generator(name, seed, tensor.device)
    weight = _weight_of(name, tensors)
    exponent = 0
    if weight is not None:
        packed = weight.dtype in (torch.uint8, torch.int8)
        spread, fan_in = (_E2M1_SPREAD, 2 * weight.shape[-1]) if packed else (_E4M3_SPREAD, weight.shape[-1])
        exponent = _exponent(_gain(name, gains), spread, fan_in)
    if weight is not None and tensor.dtype is torch.uint8:
        tensor.fill_(127 + exponent)
    elif weight is not None:
        tensor.copy_(torch.full(tensor.shape, 2.0**exponent, device=tensor.device).to(tensor.dtype))
    elif tensor.dtype in (torch.uint8, torch.int8) and tensor.dim() >= 2:  # noqa: PLR2004  packed E2M1 codes
        tensor.view(torch.uint8).random_(0, 256, generator=generator)
    elif not tensor.dtype.is_floating_point:
        return
    elif tensor.dim() < 2:  # noqa: PLR2004
        _fill_vector(name, tensor, generator, gains)
    elif name.endswith(_EMBEDDINGS):
        _fill_embedding(tensor, generator, gains)
    elif name.endswith("lm_head.weight") or name == "head.weight":
        tensor.copy_(_output_rows(tensor.shape, tensors, seed, generator, gains))
    else:
        _fill_matrix(name, tensor, generator, gains)


def _fill_vector(name: str, tensor: torch.Tensor, generator: torch.Generator, gains: Gains) -> None:
    noise = _normal(tensor.shape, generator, tensor.device)
    if "norm" in name:
        tensor.copy_(1 + 0.1 * noise)
    elif name.endswith("_scale"):
        tensor.fill_(1)
    elif name.endswith("e_score_correction_bias"):
        tensor.copy_(gains.routing * noise)
    else:
        tensor.copy_(0.1 * noise)


def _fill_matrix(name: str, tensor: torch.Tensor, generator: torch.Generator, gains: Gains) -> None:
    guided = _guided(name, tensor.shape, gains, tensor.device)
    if tensor.element_size() == 1:
        for part in tensor.flatten(0, -3) if tensor.dim() > 2 else (tensor,):  # noqa: PLR2004
            codes = _E4M3_SPREAD * (_normal(part.shape, generator, part.device) + guided)
            part.copy_(codes.clamp_(-448, 448).to(part.dtype))
        return
    noise = _normal(tensor.shape, generator, tensor.device) + guided
    tensor.copy_(noise * (_gain(name, gains) / math.sqrt(tensor.shape[-1])))


def _fill_embedding(tensor: torch.Tensor, generator: torch.Generator, gains: Gains) -> None:
    rows, hidden = tensor.shape
    own = _normal(tensor.shape, generator, tensor.device)
    salience = _normal(torch.Size((rows, 1)), generator, tensor.device)
    tensor.copy_(own + gains.common + gains.salience * salience * _SALIENT.vector(hidden, tensor.device))


def _output_rows(
    shape: torch.Size, tensors: dict[str, torch.Tensor], seed: int, generator: torch.Generator, gains: Gains
) -> torch.Tensor:
    """Rows of the output projection: noise, and the embeddings of the class that a token succeeds.

    Token t is of class t modulo the number of classes; which class a token succeeds is drawn. Of an embedding only what is its own counts.
    """
    name = next((name for name in tensors if name.endswith(_EMBEDDINGS)), None)
    if name is None or tensors[name].shape != shape:
        raise ValueError(f"the output rows {tuple(shape)} need embeddings of the same shape")
    rows, hidden = shape
    device = tensors[name].device
    own = _normal(shape, _generator(name, seed, device), device)
    count = max(1, rows // gains.family)
    classes = torch.zeros(count, hidden, device=device)
    for part in torch.split(own, count):  # sums in a fixed order: an atomic one would differ between servers
        classes[: len(part)] += part
    succeeded = torch.randperm(rows, generator=generator, device=device) % count
    noise = own.normal_(generator=generator)
    return gains.certainty * (noise / math.sqrt(hidden) + gains.kinship / hidden * classes[succeeded])


def initialize(model: torch.nn.Module, seed: int, gains: Gains) -> None:
    """Fill every tensor of `model`. Raises ValueError for one that came out without finite values."""
    tensors = model.state_dict()
    for name, tensor in tensors.items():
        fill(name, tensor, tensors, seed, gains)
        if tensor.dtype in (torch.bfloat16, torch.float16, torch.float32) and not bool(tensor.isfinite().all()):
            raise ValueError(f"{name}: not finite after initialisation")


def register() -> None:
    """Entry point. When `DSV41_SYNTHETIC_SEED` is set, replace the engine's dummy weights and pad heads as a rank does."""
    seed = os.environ.get(VARIABLE, "")
    if not seed:
        return
    if not seed.isdecimal():
        raise SystemExit(f"{VARIABLE}={seed!r} is not a whole number; set one, or unset it")
    try:
        gains = Gains.read(os.environ.get(GAINS_VARIABLE, ""))
    except ValueError as error:
        raise SystemExit(f"{GAINS_VARIABLE}: {error}") from error
    hooks = importlib.import_module("sglang.srt.plugins.hook_registry")

    def replaced(_original: Callable[..., Any], model: torch.nn.Module, *_args: Any, **_kwargs: Any) -> None:
        initialize(model, int(seed), gains)

    hooks.HookRegistry.register(_TARGET, replaced, hooks.HookType.AROUND)
    # The other processes of a server have no model, and importing it there costs seconds.
    if _SCHEDULER in sys.modules:
        rank.register()
