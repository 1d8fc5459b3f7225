"""Decides what happens next: a pure fold over messages, and the decisions that follow from it."""
