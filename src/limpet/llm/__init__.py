"""LLM agents: the protocol for models, the loop, prompts, tools and compaction."""
