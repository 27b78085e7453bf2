"""Answers by an OpenAI server, such as ``kvmm serve``, in place of a model of the app's own."""
