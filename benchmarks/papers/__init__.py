"""The tables and figures of the four papers that Hopfleet unites, made again: published figures beside ours."""
