"""SGLang's own Llama, under the name by which SGLang looks for it in a model package."""

from sglang.srt.models.llama import LlamaForCausalLM

EntryClass = LlamaForCausalLM
