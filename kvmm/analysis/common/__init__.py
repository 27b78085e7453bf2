"""Measuring code that several subjects share: exact prefill, recording, stored pages, reports by policy."""
