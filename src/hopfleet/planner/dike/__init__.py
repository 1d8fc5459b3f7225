"""Dike: how many parameter servers and workers a training gets, with which resources, and on which nodes."""
