"""A feed-forward of many experts, of which each row has a few.

Owns: router, experts and the shared expert in the operators of `compute/ops.py`, and their slots.
May not know: any one family's names, how an operator runs.
Read next: `mixtral.py`, `qwen_moe.py`.

Experts come one by one, or stacked in a tensor (E, F, M), where each is a part of it: whole rows,
which are read where they lie. Sources: arXiv 2401.04088; arXiv 2401.06066 for shared experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from firsthand.compute.ops import ExpertWeights, Ops, RoutingRule, X
from firsthand.models.spec import MAX_EXPERTS, MAX_FFN_WIDTH, ExpertsSpec, Words
from firsthand.values import dataclass
from firsthand.weights.checkpoint import Slot, Whole


@dataclass(frozen=True, slots=True)
class Names:
    """What a family calls its experts, without `model.layers.N.`"""

    block: str  # the module that has router and experts
    gate: str
    up: str
    down: str

    def expert(self, layer: int, index: int) -> ExpertWeights:
        prefix = f"model.layers.{layer}.{self.block}.experts.{index}"
        return ExpertWeights(*(f"{prefix}.{it}.weight" for it in (self.gate, self.up, self.down)))

    def stacked(self, layer: int, which: str) -> str:
        return f"model.layers.{layer}.{self.block}.experts.{which}.weight"

    def shared(self, layer: int) -> ExpertWeights:
        prefix = f"model.layers.{layer}.{self.block}.shared_expert"
        return ExpertWeights(*(f"{prefix}.{it}.weight" for it in (self.gate, self.up, self.down)))

    def gguf(self) -> MappingProxyType[str, str]:
        """GGUF's names of the router and of the stacked and shared experts."""
        block = f"model.layers.{{}}.{self.block}"
        return MappingProxyType(
            {
                "blk.{}.ffn_gate_inp": f"{block}.gate",
                "blk.{}.ffn_gate_exps": f"{block}.experts.{self.gate}",
                "blk.{}.ffn_up_exps": f"{block}.experts.{self.up}",
                "blk.{}.ffn_down_exps": f"{block}.experts.{self.down}",
                "blk.{}.ffn_gate_inp_shexp": f"{block}.shared_expert_gate",
                "blk.{}.ffn_gate_shexp": f"{block}.shared_expert.{self.gate}",
                "blk.{}.ffn_up_shexp": f"{block}.shared_expert.{self.up}",
                "blk.{}.ffn_down_shexp": f"{block}.shared_expert.{self.down}",
            }
        )


def mixture(ops: Ops[X], names: Names, spec: ExpertsSpec, layer: int, h: X, activation: str) -> X:
    """(T, M) of (T, M), normed already. The shared expert is one more, which every row has."""
    block = f"model.layers.{layer}.{names.block}"
    logits = ops.linear(h, f"{block}.gate.weight")
    experts = [names.expert(layer, index) for index in range(spec.num_experts)]
    shared = None
    if spec.shared_width:
        shared = ops.linear(h, f"{block}.shared_expert_gate.weight")
        experts.append(names.shared(layer))
    weights = ops.route(logits, RoutingRule(spec.top_k, spec.renormalise), shared)
    return ops.experts(h, weights, experts, activation)


def mixture_slots(names: Names, spec: ExpertsSpec, layer: int, m: int) -> Iterator[Slot]:
    """A router stays as the file has it: of two close experts, an error takes the other."""
    block = f"model.layers.{layer}.{names.block}"
    e, f = spec.num_experts, spec.width
    yield Slot(f"{block}.gate.weight", (e, m), is_exact=True)
    for index in range(e):
        expert = names.expert(layer, index)
        for name, which, n, k in (
            (expert.gate, names.gate, f, m),
            (expert.up, names.up, f, m),
            (expert.down, names.down, m, f),
        ):
            whole = Whole(names.stacked(layer, which), (e, n, k), index * n)
            yield Slot(name, (n, k), part_of=whole)
    if spec.shared_width:
        shared, f = names.shared(layer), spec.shared_width
        yield Slot(f"{block}.shared_expert_gate.weight", (1, m), is_exact=True)
        yield Slot(shared.gate, (f, m))
        yield Slot(shared.up, (f, m))
        yield Slot(shared.down, (m, f))


GGUF_OPTIONS = frozenset(
    (
        "expert_used_count",
        "expert_feed_forward_length",
        "expert_shared_feed_forward_length",
    )
)


def of_gguf(words: Words, width: int, renormalise: bool) -> ExpertsSpec:
    """`width` where the file does not say it."""
    fields = words.fields
    num_experts = fields.integer("expert_count", 1, MAX_EXPERTS)
    shared = "blk.0.ffn_up_shexp.weight" in words.tensor_shapes
    return ExpertsSpec(
        num_experts=num_experts,
        top_k=fields.integer("expert_used_count", 1, num_experts),
        width=fields.integer("expert_feed_forward_length", 1, MAX_FFN_WIDTH, width),
        renormalise=renormalise,
        shared_width=words.tensor_shapes["blk.0.ffn_up_shexp.weight"][0] if shared else 0,
    )
