"""Views of the journal: a fold over its messages, and the tables, charts, frames and live displays made from it."""
