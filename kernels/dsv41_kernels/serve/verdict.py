"""What a comparison of answers says, measured by a run of the engine alone that computes the same in another order."""

from __future__ import annotations

from typing import Any

CONTROL = "control"
"""Name of the variant by which the others are judged: the engine's own kernels, with prefills cut in other chunks."""
_FACTOR = 2.0
"""A variant may be this much further from the first than the control is: both are samples of the same rounding."""
_FLOOR_NATS = 1e-3
"""Distances below it are rounding of the log-probabilities themselves."""
_CHAOTIC = 0.25
"""A control that loses more of its tokens says only that these weights cannot tell rounding from a fault."""


def agreement(record: dict[str, Any]) -> float:
    """Share of all tokens that precede the first difference of their answer."""
    each = record["tokens"] / record["answers"]
    return float(
        (record["equal"] * each + sum(found["position"] for found in record["differences"])) / record["tokens"]
    )


def judge(record: dict[str, Any], control: dict[str, Any] | None) -> str:
    """The verdict on one record of kind `answers`: equal, as the control, different or undecided, with the numbers that decide.

    As the control is a variant that lost at most twice the share of tokens that the control lost, and whose log-probabilities (90th
    percentile of the difference in one prefill, where asked) are at most twice as far away.
    """
    name, first = record["variant"], record["against"]
    if record["equal"] == record["answers"]:
        return f"equal to {first}"
    lost = 1 - agreement(record)
    if name == CONTROL:
        return f"the control: {lost:.0%} of tokens follow a difference"
    if control is None:
        return f"different from {first}: {lost:.0%} of tokens follow a difference; no control says how many rounding would change"
    rounding = 1 - agreement(control)
    words, within = (
        [f"{lost:.0%} of tokens follow a difference, {rounding:.0%} in the control"],
        lost <= _FACTOR * rounding,
    )
    distance, its = (each.get("prefill_logprob_difference_nats", {}).get("p90") for each in (record, control))
    if distance is not None and its is not None:
        words.append(f"distance {distance} nats, {its} in the control")
        within = within and distance <= max(_FACTOR * its, _FLOOR_NATS)
    if rounding > _CHAOTIC:
        return f"undecided, rounding alone changes too much: {'; '.join(words)}"
    return f"{'as the control' if within else f'different from {first}'}: {'; '.join(words)}"


def control_of(records: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The control among records of kind `answers`, None when there is none."""
    return next((record for record in records if record["variant"] == CONTROL), None)
