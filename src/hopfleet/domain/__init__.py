"""The words of Hopfleet as frozen data. Standard library only, no effects, imported by everybody."""
