"""Agents that a language model drives: what a model is asked and says, the loop, the context, compaction."""
