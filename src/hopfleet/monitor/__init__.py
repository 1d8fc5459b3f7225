"""Views of the journal: a fold over its messages, and tables, charts, data frames and live displays of that fold."""
