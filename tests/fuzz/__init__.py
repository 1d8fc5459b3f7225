"""Damaged and hostile files: each is refused in words, or has no effect."""
