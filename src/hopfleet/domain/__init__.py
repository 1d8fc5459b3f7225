"""The vocabulary of Hopfleet as frozen data. Standard library only, without effects, imported by all other folders."""
