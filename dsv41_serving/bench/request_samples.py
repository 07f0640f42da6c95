"""One telling value for every field of a chat completion and of a completion that SGLang 0.5.23 documents.

A value differs from the field's default, so that a router that drops, rounds or rewrites it shows. Fields inside messages,
tools and formats are named by their path, as a client writes it.
"""

from __future__ import annotations

from typing import Any

MODEL = "deepseek-v4.1-flash"
QUESTION = {"role": "user", "content": "Say yes."}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "strict": True,
    },
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Ulm"}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}
SCHEMA = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

CHAT_BASE: dict[str, Any] = {
    "model": MODEL,
    "messages": [QUESTION],
    "max_tokens": 2,
    "chat_template_kwargs": {"thinking": False},
}
COMPLETION_BASE: dict[str, Any] = {"model": MODEL, "prompt": "Say yes.", "max_tokens": 2}

# Sampling, limits and formats: the same in both.
_COMMON: dict[str, Any] = {
    "frequency_penalty": 0.1,
    "presence_penalty": 0.1,
    "logit_bias": {"7": -1.5},
    "n": 2,
    "seed": 7,
    "stop": ["never"],
    "stream": True,
    "temperature": 0.7,
    "top_p": 0.9,
    "user": "somebody",
    "return_hidden_states": True,
    "return_routed_experts": True,
    "routed_experts_start_len": 1,
    "return_cached_tokens_details": True,
    "return_spec_tokens_details": True,
    "return_token_ids": True,
    "top_k": 20,
    "min_p": 0.05,
    "min_tokens": 1,
    "regex": "yes|no",
    "ebnf": 'root ::= "yes"',
    "repetition_penalty": 1.1,
    "stop_token_ids": [3],
    "stop_regex": "nev.r",
    "no_stop_trim": True,
    "ignore_eos": True,
    "skip_special_tokens": False,
    "lora_path": "adapter",
    "session_id": "session",
    "session_params": {"id": "session"},
    "custom_logit_processor": "processor",
    "custom_params": {"a": 1},
    "watermark": {"enabled": False},
    "images_config": {"a": 1},
    "mm_processor_kwargs": {"a": 1},
    "rid": "request-1",
    "extra_key": "key",
    "cache_salt": "salt",
    "priority": 3,
    "data_parallel_rank": 0,
}

CHAT: dict[str, Any] = {
    **_COMMON,
    "model": MODEL,
    "messages": [{"role": "system", "content": "Be brief."}, QUESTION],
    "logprobs": True,
    "max_tokens": 3,
    "max_completion_tokens": 3,
    "response_format": {"type": "json_schema", "json_schema": {"name": "yes", "schema": SCHEMA, "strict": True}},
    "tools": [WEATHER],
    "tool_choice": "none",
    "parallel_tool_calls": False,
    "return_prompt_token_ids": True,
    "return_meta_info": True,
    "return_input_ids_in_sglext": True,
    "return_output_ids_in_sglext": True,
    "return_sampling_mask": True,
    "sampling_logprobs_mode": "support",
    "return_flat_raw_output_top_logprobs": True,
    "return_flat_raw_top_logprobs_b64": False,
    "reasoning_effort": "low",
    "thinking": {"type": "disabled"},
    "task": "action",
    "continue_final_message": True,
    "separate_reasoning": False,
    "stream_reasoning": False,
    "chat_template_kwargs": {"thinking": True, "reasoning_effort": 30},
    "max_dynamic_patch": 2,
    "min_dynamic_patch": 1,
    "use_audio_in_video": True,
    "video_config": {"a": 1},
    "input_ids": [5, 6, 7],
}
# A field that means nothing alone -> what it is sent with.
CHAT_WITH: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True, "top_logprobs": 2},
    "stream_options": {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
}

# Values of other types, and fields of other APIs that clients send.
CHAT_FORMS: dict[str, dict[str, Any]] = {
    "model (absent)": {"model": None},
    "stop (string)": {"stop": "never"},
    "reasoning_effort (number)": {"reasoning_effort": 30},
    "reasoning_effort (digits)": {"reasoning_effort": "30"},
    "reasoning_effort (fraction)": {"reasoning_effort": 0.3},
    "reasoning": {"reasoning": {"effort": "low"}},
    "tool_choice (named)": {
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "max_tokens": 40,
    },
    "response_format (json_object)": {
        "messages": [{"role": "user", "content": "Answer in json."}],
        "response_format": {"type": "json_object"},
    },
    "response_format (structural_tag)": {
        "response_format": {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": SCHEMA}}
    },
    "max_tokens (0)": {"max_tokens": 0},
    "temperature (0)": {"temperature": 0},
    "temperature (2.5)": {"temperature": 2.5},
    "store": {"store": True},
    "metadata": {"metadata": {"a": "b"}},
    "functions": {"functions": [WEATHER["function"]]},
    "unknown_field": {"unknown_field": 1},
}

# Path inside the messages -> messages that have something there.
CHAT_MESSAGES: dict[str, list[dict[str, Any]]] = {
    "messages[0].role (developer)": [{"role": "developer", "content": "Be brief."}, QUESTION],
    "messages[0].role (latest_reminder)": [{"role": "latest_reminder", "content": "Be brief."}, QUESTION],
    "messages[0].role (function)": [{"role": "function", "name": "weather", "content": "sunny"}, QUESTION],
    "messages[0].tools": [{"role": "system", "content": "x", "tools": [WEATHER]}, QUESTION],
    "messages[0].name": [{"role": "user", "name": "Ada", "content": "Say yes."}],
    "messages[0].content (parts)": [{"role": "user", "content": [{"type": "text", "text": "Say yes."}]}],
    "messages[0].content (image)": [{"role": "user", "content": [IMAGE]}],
    "messages[1].reasoning_content": [
        QUESTION,
        {"role": "assistant", "content": "Yes.", "reasoning_content": "Easy."},
        QUESTION,
    ],
    "messages[1].content (thinking part)": [
        QUESTION,
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Easy."}, {"type": "text", "text": "Yes."}]},
        QUESTION,
    ],
    "messages[1].prefix": [QUESTION, {"role": "assistant", "content": "Ye", "prefix": True}],
    "messages[1].phase": [QUESTION, {"role": "assistant", "content": "Yes.", "phase": "final_answer"}, QUESTION],
    "messages[1].tool_calls": [QUESTION, CALLED, RESULT],
    "messages[1].content (null)": [QUESTION, CALLED, RESULT],
    "messages[2].tool_call_id": [QUESTION, CALLED, RESULT],
    "messages[2].content (tool, parts)": [
        QUESTION,
        CALLED,
        {**RESULT, "content": [{"type": "text", "text": "sunny"}]},
    ],
}

COMPLETIONS: dict[str, Any] = {
    **_COMMON,
    "model": MODEL,
    "prompt": "Say no.",
    "best_of": 2,
    "echo": True,
    "logprobs": 2,
    "max_tokens": 3,
    "suffix": "tail",
    "json_schema": '{"type":"object"}',
    "response_format": {"type": "json_schema", "json_schema": {"name": "yes", "schema": SCHEMA}},
    "custom_labels": {"a": "b"},
}
COMPLETIONS_WITH: dict[str, dict[str, Any]] = {
    "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
}
COMPLETION_FORMS: dict[str, dict[str, Any]] = {
    "model (absent)": {"model": None},
    "prompt (list)": {"prompt": ["Say yes.", "Say no."]},
    "prompt (token ids)": {"prompt": [5, 6, 7]},
    "n (list of prompts)": {"prompt": ["Say yes.", "Say no."], "n": 2},
    "unknown_field": {"unknown_field": 1},
}
