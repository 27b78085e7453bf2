"""Logit drift and answer metrics of policies against full precision: prompts, runs, reports, figures."""
