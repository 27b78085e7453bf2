"""Conversations of the Ask tab: a visitor's session, its talks, streamed answers, saved files."""
