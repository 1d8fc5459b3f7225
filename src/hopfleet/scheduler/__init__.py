"""Who trains what next: the state machine of units and the policies that order them. Pure."""
