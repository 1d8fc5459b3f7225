"""The surroundings of the user's code: what workers take over from the script, and what trials may change meanwhile."""
