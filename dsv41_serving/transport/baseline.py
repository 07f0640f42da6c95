"""Keep the baseline of a node true: measure in the short form when there is none, none that holds, or a bad one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.capacity import read_shape, request
from dsv41_serving.errors import GateError
from dsv41_serving.transport.proof import explain_stale, hands_over, read_proof, store_proof
from dsv41_serving.transport.prove import prove_transport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsv41_serving.facts.model import Facts
    from dsv41_serving.plan.model import Plan
    from dsv41_serving.spec.model import NodeSpec
    from dsv41_serving.transport.proof import Proof


def keep_baseline(
    spec: NodeSpec, plan: Plan, facts: Facts, *, arguments: Sequence[str], say: Callable[[str], None]
) -> Proof | None:
    """Return the baseline of `plan` on this machine, measured now if need be; None where nothing is handed over.

    `arguments` are the global options that mean this node. Raises GateError when nothing can be handed over, or arrives as other
    bytes; InputError when the result cannot be kept. A slow lane is said, with its remedy.
    """
    if not hands_over(plan):
        return None
    proof = read_proof(plan.state_dir)
    if proof is None or not proof.good or explain_stale(proof, plan, facts):
        shape = read_shape(request.find_checkpoint(spec), spec.model.name)
        command = " ".join(["dsv41", *arguments, "transport", "prove"])
        proof = prove_transport(spec, plan, facts, shape, command=command, say=lambda _: None, short=True)
        store_proof(proof, plan.state_dir)
    wrong = next((pair for pair in proof.pairs if not pair.matched), None)
    if wrong is not None:
        raise GateError(
            f"{wrong.prefill} -> {wrong.decode}: other bytes arrive than were sent over {wrong.lane}",
            where="transport",
            remedy="dsv41 transport prove; do not serve on this lane",
        )
    broken = next((each for each in proof.collectives if each.problem), None)
    if broken is not None:
        raise GateError(
            f"all-reduce over the GPUs of {broken.engine}: {broken.problem}",
            where="transport",
            remedy="dsv41 preflight, family links; then dsv41 transport prove",
        )
    if proof.reason:
        say(f"hand-off: {proof.best_gb_s:.2f} GB/s over {proof.lane}: {proof.reason}; mend: {proof.remedy}")
    return proof
